"""Lines on standard error, from the first process of a run only. Imports no torch."""

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
    """End the process with one line at a Ctrl-C before the run has begun.

    Args:
        command: the beginning of the line.
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
    """Switch off useless output of other libraries.

    These are the bars of transformers and of the hub without a terminal; DeepSpeed's warning that the run is on a CPU,
    as accelerate imports DeepSpeed wherever it is installed; the warning of tokenizers in each worker of a data loader
    that they do not use threads any more; and the warning of torch's DDP about an argument that accelerate sets.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    if not shows_bars():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return "Setting accelerator to CPU" not in record.getMessage()
