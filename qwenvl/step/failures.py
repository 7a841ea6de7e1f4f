"""One line, with what to do, for errors that are not the program's: Ctrl-C, a full disk or memory, a lost process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from qwenvl.failure import NoGradientError, full_memory, tell
from qwenvl.rollout.engine import EngineLostError
from qwenvl.step.parity import ParityError

OF_A_WORKER = "Original Traceback"  # in the text of an error of a DataLoader's worker
INTERRUPTED = 130  # the status of a process that Ctrl-C ended, in a shell
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# torch.save reports a write that failed as a RuntimeError with one of these in its text, without the system's number.
_TORCH_WRITES = ("PytorchStreamWriter", "unexpected pos", "inline_container")
# What gloo, NCCL and torch's store say when another process of a run has died.
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",
    "remote process exited",
    "NCCL communicator was aborted",
    "Socket Timeout",
    "Timed out waiting",
)
_WORKER = "DataLoader worker (pid"


@contextmanager
def told_in_one_line(
    command: str, output_dir: str | Path | None = None, go_on: Callable[[str | Path], str] | None = None
) -> Iterator[None]:
    """End the process with one line for Ctrl-C, a full disk or memory, a lost process or numbers that are not finite.

    Other errors pass, and with ``QWENVL_TRACEBACK`` in the environment all errors pass.

    Args:
        command: the beginning of the line.
        output_dir: of a run that trains. None: a command without checkpoints.
        go_on: what to do after a failure in this folder, as the end of a sentence. None: no advice.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        message = explanation(error, output_dir, go_on)
        if message is None or os.environ.get("QWENVL_TRACEBACK"):
            raise
        tell(f"{command}: {message}", consequence=_lost(error) is not None)
        raise SystemExit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


def explanation(
    error: BaseException, output_dir: str | Path | None, go_on: Callable[[str | Path], str] | None = None
) -> str | None:
    """An account of an error that is not the program's: what happened and what to do. None for other errors.

    Args:
        output_dir, go_on: see ``told_in_one_line``.
    """
    if isinstance(error, (FloatingPointError, NoGradientError, ParityError)):
        return str(error)
    said = None
    if isinstance(error, KeyboardInterrupt):
        said = "stopped by Ctrl-C"
    elif isinstance(error, EngineLostError):
        said = str(error)
    elif lost := _lost(error):
        said = f"another process of the run is gone ({lost})"
    elif isinstance(error, RuntimeError) and str(error).startswith(_WORKER):
        said = (
            f"a worker of the data loader is gone ({first_line(error)}). Most often memory was full, or /dev/shm: "
            "a lower --dataloader_num_workers takes less"
        )
    elif memory := full_memory(error):
        said = (
            f"{memory} is full: {first_line(error)}. What helps most: a lower --video_max_frames, a lower "
            "--rollout_token_budget"
        )
        if output_dir is not None:
            said += ", --gradient_checkpointing True; qwenvl plan with the same flags computes how much each saves"
    elif _is_full_disk(error):
        said = f"no space left for {output_dir or Path.cwd()}: {first_line(error)}; free some"
        said += "" if output_dir is None else ", or keep fewer checkpoints by --save_total_limit"
    if said is None or output_dir is None or go_on is None:
        return said
    return said + go_on(output_dir)


def _lost(error: BaseException) -> str | None:
    """The words of an error that says that another process has died. None for other errors."""
    of_server = isinstance(error, EngineLostError)
    if of_server or not isinstance(error, RuntimeError) or not torch.distributed.is_initialized():
        return None
    text = str(error)
    return next((words for words in _LOST if words in text), None)


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    # The writers of safetensors and tokenizers have the system's error in their text alone; the latter's is a bare
    # Exception.
    if type(error).__name__ == "SafetensorError" or type(error) is Exception:
        return any(f"os error {number}" in str(error) for number in _FULL)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH_WRITES)


def first_line(error: BaseException) -> str:
    """The first line of an error's text without its full stop, at most 400 characters, or its kind if it is empty.

    The text of an error in a DataLoader's worker is a traceback, whose last line is taken.
    """
    text = str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    line = lines[-1] if OF_A_WORKER in text else lines[0]
    return line.rstrip(".")[:400]
