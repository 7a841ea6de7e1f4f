"""What a run says while it gets ready: plain lines on standard error, from the first process only."""

from __future__ import annotations

import logging
import os
import sys


def say(line: str) -> None:
    """Print one line on standard error at once, in the first process of a run alone."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr, flush=True)


def shows_bars() -> bool:
    """Whether progress is drawn as a bar. A file or a pipe gets plain lines: a bar would fill it with itself."""
    return sys.stderr is not None and sys.stderr.isatty()


def settle_output() -> None:
    """Switch off what other libraries would write without need.

    These are the bars of transformers and of the hub where the output is no terminal, and DeepSpeed's warning that the
    run is on a CPU: accelerate imports DeepSpeed in every run that has it installed, asked for or not.
    """
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    if not shows_bars():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    return "Setting accelerator to CPU" not in record.getMessage()
