"""Texts on standard output, lines of the first process of a run on standard error, and evaluations as text.

Both outputs are free of characters that steer a terminal, whatever the texts quote of files and models. No torch here.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from qwenvl.failure import harmless
from qwenvl.types import EVALUATED, EVALUATED_LOSS


def show(text: str) -> None:
    """Print a text on standard output."""
    print(harmless(text))


def say(line: str) -> None:
    """Print one line on standard error at once, in the first process of a run alone."""
    if os.environ.get("RANK", "0") == "0":
        print(harmless(line), file=sys.stderr, flush=True)


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


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def settle_output() -> None:
    """Switch off useless output of other libraries: bars of files that are read and written, warnings that are no news.

    The bars would stand between our own lines. The warnings are deprecated names that accelerate, peft, torch and
    transformers call themselves, threads of tokenizers in the workers of a data loader, and hints that concern a GPU
    where there is none.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    if not torch.cuda.is_available():
        for library in ("DeepSpeed", "transformers.integrations.hub_kernels"):
            logging.getLogger(library).addFilter(_is_error)  # a level would be set anew when the library is imported
    of_torch = r"`torch\.distributed\.\w+`"  # all_gather_into_tensor for one, which accelerate calls
    for deprecated in ("`broadcast_buffers`", r"`(is_)?gradient_checkpointing\w*`", of_torch):
        warnings.filterwarnings("ignore", f"{deprecated} is deprecated", FutureWarning)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def evaluation_lines(step: int, logs: Mapping[str, float]) -> list[str]:
    """One line for each evaluation in a log entry."""
    return [f"step {step}: {name} {with_interval(name, logs)}" for name in evaluated(logs)]


def evaluated(logs: Mapping[str, float]) -> list[str]:
    """The main metrics of the evaluations in a log entry: total rewards, or losses."""
    ends = (EVALUATED, EVALUATED_LOSS)
    return [name for name in logs if name.endswith(ends) and name != "train_loss"]  # the Trainer's own


def with_interval(name: str, logs: Mapping[str, float]) -> str:
    """A metric of an evaluation, with its interval if it has one. The interval of a single prompt is NaN."""
    interval = logs.get(f"{name}_ci95")
    return f"{logs[name]:.3f}" if interval is None or math.isnan(interval) else f"{logs[name]:.3f} +- {interval:.3f}"
