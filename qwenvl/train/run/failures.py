"""What the command says when a run is cut short by something other than its settings: one line, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from qwenvl.failure import memory_is_full, tell, which_memory
from qwenvl.rollout.engine import EngineLostError
from qwenvl.train.parity import ParityError
from qwenvl.train.run.checkpoints import newest_whole

OF_A_WORKER = "Original Traceback"  # stands in the text of an error that a process of a DataLoader met
INTERRUPTED = 130  # what a shell reports of a process that ended by Ctrl-C
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TORCH_WRITES = ("PytorchStreamWriter", "unexpected pos", "inline_container")
_LOST = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection was likely closed"),
    *("remote process exited", "NCCL communicator was aborted", "Socket Timeout", "Timed out waiting"),
)
_WORKER = "DataLoader worker (pid"


class FullMemoryError(RuntimeError):
    """Memory was full, and what it went to is known. The message says it."""


@contextmanager
def told_in_one_line(command: str, output_dir: str | Path | None) -> Iterator[None]:
    """End the process with one line for Ctrl-C, a full disk or memory, a lost process or numbers that are not finite.

    Errors of other kinds pass, and all do where ``QWENVL_TRACEBACK`` is set.

    Args:
        command: what the line begins with.
        output_dir: of the run. The line says from which of its checkpoints to go on. None for a command that makes no
            checkpoints.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        message = explanation(error, output_dir)
        if message is None or os.environ.get("QWENVL_TRACEBACK"):
            raise
        tell(f"{command}: {message}", consequence=_lost(error) is not None)
        raise SystemExit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


def explanation(error: BaseException, output_dir: str | Path | None) -> str | None:
    """What happened and what to do, for an error that is not the program's. None for all others."""
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by Ctrl-C{_go_on(output_dir)}"
    if isinstance(error, (FloatingPointError, ParityError)):
        return str(error)
    if isinstance(error, EngineLostError):
        return f"{error}{_go_on(output_dir)}"
    if lost := _lost(error):
        return f"another process of the run is gone ({lost}){_go_on(output_dir)}"
    if isinstance(error, RuntimeError) and str(error).startswith(_WORKER):
        return (
            f"a process that reads clips ahead is gone ({first_line(error)}). Most often memory was full, or /dev/shm: "
            f"a lower --dataloader_num_workers takes less{_go_on(output_dir)}"
        )
    if isinstance(error, FullMemoryError):
        return f"{error}{_go_on(output_dir)}"
    if memory_is_full(error):
        return (
            f"{which_memory(error)} is full: {first_line(error)}. What helps most: a lower --video_max_frames (or "
            f"--video_max_frame_pixels), {'' if output_dir is None else '--gradient_checkpointing True, '}a lower "
            f"--rollout_token_budget; then fewer completions per prompt and docs/scaling.md{_go_on(output_dir)}"
        )
    if _is_full_disk(error):
        folder = Path.cwd() if output_dir is None else output_dir
        free = shutil.disk_usage(_existing(folder)).free / 1e9
        return (
            f"no space left for {folder}: {first_line(error)}; {free:.1f} GB are free there. Free some"
            f"{'' if output_dir is None else ', or keep fewer checkpoints by --save_total_limit'}{_go_on(output_dir)}"
        )
    return None


def _go_on(output_dir: str | Path | None) -> str:
    if output_dir is None:
        return ""
    whole = newest_whole(output_dir)
    if whole is None and (weights := newest_whole(output_dir, lacks_optimizer=True)):
        return (
            f"; its checkpoints hold weights alone (--save_only_model): begin a new run with --start_from_weights "
            f"{weights} and another --output_dir"
        )
    if whole is None:
        return "; there is no checkpoint yet: the same command begins anew"
    return f"; go on from {whole} with --resume_from_checkpoint {whole}"


def _lost(error: BaseException) -> str | None:
    """What a process sees of another one that has died, while it waits for it. None for other errors."""
    other = isinstance(error, EngineLostError) or not isinstance(error, RuntimeError)  # servers are no processes of it
    if other or not torch.distributed.is_initialized():
        return None
    return next((words for words in _LOST if words in str(error)), None)


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    if type(error).__name__ == "SafetensorError":  # its writer has the system's error in its text alone
        return any(f"os error {number}" in str(error) for number in _FULL)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH_WRITES)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind where it has none. Of a DataLoader's worker the last line of the
    traceback that its text is."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if OF_A_WORKER in str(error) else 0].rstrip(".")[:400]


def _existing(path: str | Path) -> Path:
    path = Path(path).resolve()
    return path if path.exists() else _existing(path.parent)
