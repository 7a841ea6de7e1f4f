"""``--auto_fit``: before a run, the remedies that change nothing of what it learns, until a step fits into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.plan.job import Engine
from qwenvl.plan.remedies import cheapest_way, remedies
from qwenvl.plan.table import amount, memory_lines, remedy_lines
from qwenvl.train.display.console import say
from qwenvl.train.planning.case import case_of
from qwenvl.train.planning.plan import SHARE, lengths_of, policy_without_weights

RECORDS = 1000
"""Records whose prompts are measured."""


def fit_to_memory(args: GRPOConfig) -> None:
    """Change ``args`` so that a step with the longest prompts fits, and say what was taken.

    ``args.auto_fitted`` has what was taken afterwards, the settings by name. All processes come to the same.

    Raises:
        ValueError: nothing that leaves the result as it is makes the run fit. It says what would.
        OSError: what is wrong with the model or the data.
    """
    policy = policy_without_weights(args)
    lengths = lengths_of(args, policy, RECORDS)
    on_host = args.device.type == "cpu"
    engine: Engine = "ddp" if args.world_size > 1 else "none"
    case = case_of(args, policy, lengths.at(1.0), on_host=on_host, engine=engine, processes=args.world_size)
    room = room_of(args)
    peak = case.estimate().peak
    taken, after = cheapest_way(case, room, automatic=True)
    left = after.estimate()
    if left.peak > room:
        table = "\n".join(f"  {line}" for line in memory_lines(left))
        others = [each for each in remedies(after) if not each.automatic]
        told = "\n".join(f"  {line}" for line in remedy_lines(others, left.peak, room))
        raise ValueError(
            f"--auto_fit: a step with prompts of {case.job.tokens:,} tokens takes {amount(left.peak)} of "
            f"{amount(room)}, with all that changes nothing of what is learned:\n{table}\nWhat else helps:\n{told}"
        )
    settings: dict[str, Any] = {}
    for each in taken:
        settings |= each.settings
    take(args, settings)
    if settings:
        flags = " ".join(f"--{name} {value}" for name, value in settings.items())
        say(f"--auto_fit takes {flags}: a step then takes {amount(left.peak)} of {amount(room)}, not {amount(peak)}")
    else:
        say(f"--auto_fit changes nothing: a step takes {amount(peak)} of {amount(room)}")


def take(args: GRPOConfig, settings: Mapping[str, Any]) -> None:
    """Set what was taken, and note it."""
    for name, value in settings.items():
        setattr(args, name, value)
    if "gradient_checkpointing" in settings and hasattr(args, "activation_checkpointing"):
        args.activation_checkpointing = args.gradient_checkpointing  # its name in newer versions of transformers
    args.auto_fitted = dict(settings)


def room_of(args: GRPOConfig) -> float:
    """The bytes that a run may take: what it was told, or nine tenths of what the device has."""
    if args.fit_memory_gb is not None:
        return args.fit_memory_gb * 1e9
    if args.device.type == "cuda":
        return SHARE * torch.cuda.get_device_properties(args.device).total_memory
    return SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
