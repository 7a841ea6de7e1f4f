"""What a run says while it gets ready: plain lines on standard error, from the first process only."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Print one line on standard error at once, in the first process of a run alone."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


@contextmanager
def ends_at_ctrl_c(command: str) -> Iterator[None]:
    """End the process with one line where Ctrl-C comes before there is a run, which says more.

    Args:
        command: what the line begins with.
    """
    try:
        yield
    except KeyboardInterrupt:
        say(f"{command}: stopped by Ctrl-C")
        raise SystemExit(130) from None


def shows_bars() -> bool:
    """Whether progress is drawn as a bar. A file or a pipe gets plain lines: a bar would fill it with itself."""
    return sys.stderr is not None and sys.stderr.isatty()


def settle_output() -> None:
    """Switch off what other libraries would write without need.

    These are the bars of transformers and of the hub where the output is no terminal, and DeepSpeed's warning that the
    run is on a CPU: accelerate imports DeepSpeed in every run that has it installed, asked for or not. Tokenizers warn
    in each process of the data loader that they do not use threads any more, unless they are told before. accelerate
    calls torch's DDP by a name that newer versions of it warn about.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    if not shows_bars():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return "Setting accelerator to CPU" not in record.getMessage()
