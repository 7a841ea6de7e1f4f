"""A run and its memory: ``--auto_fit`` before the first step, and the message where memory is full."""

from __future__ import annotations

import gc
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.prompt_length import PromptLength
from qwenvl.failure import memory_is_full, which_memory
from qwenvl.plan.memory import SAMPLING, amount, memory_lines
from qwenvl.plan.remedies import Case, best_remedies, cheapest_way, remedies, remedy_lines
from qwenvl.plan.sizes import Engine
from qwenvl.train.display.console import say
from qwenvl.train.planning.case import SHARE, case_of, lengths_of, lengths_of_data, policy_without_weights
from qwenvl.train.run.failures import OF_A_WORKER, FullMemoryError, first_line
from qwenvl.train.warmup.config import WarmupConfig

PHASES = {
    "qwenvl/data": "decoding clips",
    "torch/utils/data": "decoding clips",
    "qwenvl/rollout": "sampling completions",
    "qwenvl/model/vision": "running the vision tower",
    "torch/autograd": "the backward pass",
    "torch/optim": "updating the weights",
    "qwenvl/train/grpo_trainer": "computing log-probs",
    "qwenvl/train/warmup/trainer": "computing log-probs",
}
"""The phase of a run by the file in which an error is raised. The innermost file counts."""


def fit_to_memory(args: GRPOConfig) -> None:
    """Change ``args`` so that a step with the longest prompts fits, and print the changes.

    ``args.auto_fitted`` has the changed settings by name. All processes make the same changes.

    Raises:
        ValueError: no change that leaves the result as it is makes the run fit. The message names the other remedies.
        OSError: what is wrong with the model or the data.
    """
    policy = policy_without_weights(args)
    longest = lengths_of_data(args, 1000).at(1.0)
    on_host, engine = args.device.type == "cpu", engine_of(args)
    case = case_of(args, policy, longest, on_host=on_host, engine=engine, processes=args.world_size)
    room, peak = room_of(args), case.estimate().peak
    taken, after = cheapest_way(case, room, automatic=True)
    fitted = after.estimate()
    if fitted.peak > room:
        table = "\n".join(f"  {line}" for line in memory_lines(fitted))
        others = [each for each in remedies(after) if not each.automatic]
        helpful = "\n".join(f"  {line}" for line in remedy_lines(others, fitted.peak, room))
        raise ValueError(
            f"--auto_fit: a step with prompts of {case.job.tokens:,} tokens takes {amount(fitted.peak)} of "
            f"{amount(room)}, with all that changes nothing of what is learned:\n{table}\nWhat else helps:\n{helpful}"
        )
    args.auto_fitted = {name: value for each in taken for name, value in each.settings.items()}
    for name, value in args.auto_fitted.items():
        setattr(args, name, value)
    if "gradient_checkpointing" in args.auto_fitted and hasattr(args, "activation_checkpointing"):
        args.activation_checkpointing = args.gradient_checkpointing  # its name in newer versions of transformers
    if args.auto_fitted:
        flags = " ".join(f"--{name} {value}" for name, value in args.auto_fitted.items())
        say(f"--auto_fit takes {flags}: a step then takes {amount(fitted.peak)} of {amount(room)}, not {amount(peak)}")
    else:
        say(f"--auto_fit changes nothing: a step takes {amount(peak)} of {amount(room)}")


def room_of(args: GRPOConfig) -> float:
    """The bytes that a run may take: ``--fit_memory_gb``, or a share of the device's memory, on a CPU of the free."""
    if args.fit_memory_gb is not None:
        return args.fit_memory_gb * 1e9
    if args.device.type == "cuda":
        return SHARE * torch.cuda.get_device_properties(args.device).total_memory
    return SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def engine_of(args: Any) -> Engine:
    """What splits the model of a run."""
    if args.deepspeed:
        stage = getattr(args.hf_deepspeed_config, "config", {}).get("zero_optimization", {}).get("stage", 2)
        return "zero3" if stage == 3 else "zero2"
    if args.fsdp:
        return "fsdp"
    return "ddp" if args.world_size > 1 else "none"


@contextmanager
def told_what_takes_memory(trainer: Any) -> Iterator[None]:
    """Report full memory with the phase of the run, the memory table and the three best remedies.

    Args:
        trainer: a ``GRPOTrainer`` or a ``WarmupTrainer``. The errors of other trainers pass unchanged.

    Raises:
        FullMemoryError: in place of the error of the allocator.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not memory_is_full(error) or getattr(trainer, "train_dataset", None) is None:
            raise
        phase, first, which = phase_of(error), first_line(error), which_memory(error)
        # The tensors of the failed step go first, as the message needs memory too.
        traceback.clear_frames(error.__traceback__)
        trainer.step = None
        trainer.model.zero_grad(set_to_none=True)
        gc.collect()
        case = case_of_step(trainer)
        raise FullMemoryError(
            "\n".join([f"{which} is full while {phase}: {first}.", *message_lines(case, phase)])
        ) from None


def message_lines(case: Case, phase: str) -> Iterator[str]:
    """The memory table and the best remedies."""
    phases = SAMPLING if phase in ("sampling completions", "running the vision tower") else None
    made = case.estimate()
    yield f"What a step with prompts of {case.job.tokens:,} tokens takes, computed (docs/training.md, Memory):"
    yield from (f"  {line}" for line in memory_lines(made))
    yield "What helps most, the cheapest first:"
    if phase == "decoding clips":
        yield "  --dataloader_num_workers 0, a lower --video_max_frames or a lower --video_max_frame_pixels"
    for each in best_remedies(case, phases):
        saved = made.peak_of(phases) - each.case.estimate().peak_of(phases)
        yield f"  {each.flags} saves {amount(saved)}; it costs {each.costs}"
    yield "qwenvl plan with the same flags tells more"


def phase_of(error: BaseException) -> str:
    """The phase of a run in which an error was raised, in words."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if OF_A_WORKER in str(error):
        files += re.findall('File "(.+?)"', str(error))
    for file in (file.replace("\\", "/") for file in reversed(files)):
        for folder, phase in PHASES.items():
            if folder in file:
                return phase
    return "training"


def case_of_step(trainer: Any) -> Case:
    """The present step of a trainer with its longest prompt.

    Where no prompts are sampled yet, and in a warm-up, it is the longest of 100 records.
    """
    args, config, lengths, targets = trainer.args, trainer.processing_class, [], None
    for batch in getattr(getattr(trainer, "queue", None), "present", None) or ():
        vision = torch.tensor([config.image_token_id, config.video_token_id], device=batch.input_ids.device)
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
            lengths.append(PromptLength(int(mask.sum()), int(torch.isin(ids, vision).sum())))
    warmup = isinstance(args, WarmupConfig)
    if warmup or not lengths:
        learned = trainer.rewards if warmup else None
        measured = lengths_of(args, trainer.train_dataset.records, trainer.data_collator.ruler, 100, learned)
        lengths, targets = list(measured.each), measured.targets
    on_host, longest, processes = args.device.type == "cpu", max(lengths), max(1, args.world_size)
    return case_of(
        args, trainer.model, longest, on_host=on_host, engine=engine_of(args), processes=processes, targets=targets
    )
