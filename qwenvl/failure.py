"""Report a fatal error once: by the first process of a run that fails. Text for a terminal."""

from __future__ import annotations

import os
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "first-error.txt"
_FULL_GPU = ("CUDA out of memory", "CUDA error: out of memory", "BLAS_STATUS_ALLOC_FAILED", "DNN_STATUS_ALLOC_FAILED")
_FULL_FOR_NCCL = ("out of memory", "Failed to CUDA malloc", "Failed to CUDA calloc")  # it passes on what CUDA says
_FULL_HOST = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "std::bad_alloc")
LONGEST_LINE = 1000  # characters
# Control characters but for line ends and tabs, signs that turn the direction of text, and halves of characters.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_WIDTH = re.compile("[\u200b-\u200f\u202a-\u202e\ufeff]")  # they only change their neighbours


def full_memory(error: BaseException) -> str | None:
    """``GPU memory`` or ``memory`` if an error says that it is full, else None. Errors of workers are text alone."""
    text = text_of(error) if isinstance(error, RuntimeError | OSError) else ""
    of_nccl = "nccl" in text.lower() and any(words in text for words in _FULL_FOR_NCCL)
    if of_nccl or any(words in text for words in _FULL_GPU):
        return "GPU memory"
    full = any(words in text for words in _FULL_HOST)
    return "memory" if full or isinstance(error, MemoryError) else None


def text_of(error: BaseException) -> str:
    """The text of an error, or why it has none: a user's class may have a ``__str__`` that fails."""
    try:
        return str(error)
    except (Exception, SystemExit) as failed:
        return f"no text, its __str__ raised {type(failed).__name__}"


def printable(text: str) -> str:
    """A text without control characters. The middle of lines above 1,000 characters is left out.

    Example:
        >>> printable("clips/\\x1b[2Ja.mp4")
        'clips/\ufffd[2Ja.mp4'
    """
    lines = []
    for line in text.split("\n"):
        if len(line) > LONGEST_LINE:
            line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
        lines.append(_shown(line))
    return "\n".join(lines)


def visible(text: str) -> str:
    """A text without control characters, in one line of any length.

    Example:
        >>> visible("one\\n two\\x1b[2J")
        'one two\ufffd[2J'
    """
    return " ".join(_shown(text).split())


def harmless(text: str) -> str:
    """A text that can't steer a terminal, with its lines and tabs as they are.

    Example:
        >>> harmless("one\\n\\ttwo\\x1b[2J")
        'one\\n\\ttwo\ufffd[2J'
    """
    return _STEERING.sub("\ufffd", text.replace("\r\n", "\n"))


def beginning(text: str, most: int = 80) -> str:
    """A text of at most so many characters, of a longer one its beginning."""
    return text if len(text) <= most else text[: most - 3] + "..."


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "step"), counted(2000, "record")
        ('1 step', '2,000 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _shown(text: str) -> str:
    return "".join(" " if c.isspace() else c if c.isprintable() else "\ufffd" for c in _NO_WIDTH.sub("", text))


def tell(message: str, consequence: bool = False) -> None:
    """Print on standard error why a command ends.

    Of several processes, the first one of each machine that fails prints its message. One that fails later with another
    message prints its first line.

    Args:
        consequence: the message says that another process is gone. It is printed only if no process has said why.
    """
    message = printable(message)
    if (first := told_before(message)) is None:
        print(message, file=sys.stderr, flush=True)
    elif not consequence and first != message:
        line = next(iter(message.strip().splitlines()), "")
        print(f"process {os.environ['RANK']}, after that: {line}", file=sys.stderr, flush=True)


def has_failed() -> bool:
    """Whether a process of the run on this machine has reported a fatal error."""
    return (path := _path()) is not None and path.exists()


@contextmanager
def tells_errors_once() -> Iterator[None]:
    """Of several processes, end this one with status 1 at any error, and print one traceback. With one: no effect."""
    try:
        yield
    except Exception as error:
        if _path() is None:
            raise
        if (first := told_before(str(error))) is None:
            traceback.print_exc()
        elif first != str(error):
            tell(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def told_before(message: str) -> str | None:
    """The first fatal message of another process on this machine. None: this one is the first, with this message."""
    if (path := _path()) is None:
        return None
    partial = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    try:
        partial.write_text(message, encoding="utf-8")
        os.link(partial, path)  # only one of them succeeds, and the file is whole from its beginning
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    except OSError:  # better twice than not at all
        return None
    finally:
        partial.unlink(missing_ok=True)
    return None


def _path() -> Path | None:
    """A file that the processes of this machine share: torchrun has a folder for each start of them. None without."""
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(own).parents[1] / NAME if own and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


class NoGradientError(RuntimeError):
    """A part of the model that should learn has no gradient."""
