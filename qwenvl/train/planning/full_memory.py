"""Memory that is full in a run: what was being done, where it goes, and what helps most."""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from qwenvl.data.prompt_length import PromptLength
from qwenvl.plan.estimate import SAMPLING
from qwenvl.plan.remedies import Case, best_remedies
from qwenvl.plan.table import amount, memory_lines
from qwenvl.train.planning.case import case_of
from qwenvl.train.planning.lengths import prompt_lengths, sampled
from qwenvl.train.planning.taught import taught_of
from qwenvl.train.run.failures import OF_A_WORKER, FullMemoryError, first_line, is_full_memory, which_memory
from qwenvl.train.warmup.config import WarmupConfig
from qwenvl.types import PromptBatch

DOING = {
    "qwenvl/data": "decoding clips",
    "torch/utils/data": "decoding clips",
    "qwenvl/rollout": "sampling completions",
    "qwenvl/model/vision": "running the vision tower",
    "torch/autograd": "the backward pass",
    "torch/optim": "updating the weights",
    "qwenvl/train/grpo_trainer": "computing log-probs",
    "qwenvl/train/warmup/trainer": "computing log-probs",
}
"""What a run is doing, by the file in which an error comes up. The innermost one counts."""
RECORDS = 100
"""Records that are measured where no prompts are drawn: those that sizes are read from headers of."""
_SAMPLES = ("sampling completions", "running the vision tower")


@contextmanager
def told_what_takes_memory(trainer: Any) -> Iterator[None]:
    """Say of memory that is full within what it goes to, and the three best remedies.

    Args:
        trainer: a ``GRPOTrainer`` or that of a warm-up. Of others the error passes as it is.

    Raises:
        FullMemoryError: in the place of what the allocator raised.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_full_memory(error) or getattr(trainer, "train_dataset", None) is None:
            raise
        doing, first, which = what_it_did(error), first_line(error), which_memory(error)
        # What the failed step holds goes before anything is computed: else there is no memory to tell of it.
        traceback.clear_frames(error.__traceback__)
        trainer.step = None
        trainer.model.zero_grad(set_to_none=True)
        gc.collect()
        case = case_of_step(trainer)
        raise FullMemoryError("\n".join([f"{which} is full while {doing}: {first}.", *told(case, doing)])) from None


def told(case: Case, doing: str) -> Iterator[str]:
    """Where memory goes and what helps, as lines."""
    phases = None
    if doing in _SAMPLES:
        phases = SAMPLING
    made = case.estimate()
    yield f"What a step with prompts of {case.job.tokens:,} tokens takes, computed (docs/memory.md):"
    yield from (f"  {line}" for line in memory_lines(made))
    yield "What helps most, the cheapest first:"
    if doing == "decoding clips":
        yield "  --dataloader_num_workers 0, a lower --video_max_frames or a lower --video_max_frame_pixels"
    for each in best_remedies(case, phases):
        saved = made.peak_of(phases) - each.case.estimate().peak_of(phases)
        yield f"  {each.flags} saves {amount(saved)}; it costs {each.costs}"
    yield "qwenvl plan with the same flags tells more"


def what_it_did(error: BaseException) -> str:
    """What a run was doing when an error came up."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if OF_A_WORKER in str(error):
        files += re.findall('File "(.+?)"', str(error))
    for file in (file.replace("\\", "/") for file in reversed(files)):
        for part, doing in DOING.items():
            if part in file:
                return doing
    return "training"


def case_of_step(trainer: Any) -> Case:
    """What an estimate of the present step of a trainer is made of: its longest prompt.

    Where none is drawn, and in a warm-up, the longest of some records.
    """
    args, records = trainer.args, trainer.train_dataset.records
    drawn = getattr(getattr(trainer, "draws", None), "present", None) or ()
    longest = max((length for batch in drawn for length in _lengths(batch, trainer)), default=None)
    taught, ruler = None, trainer.data_collator.ruler
    if longest is None:
        longest = prompt_lengths(args, records, ruler, RECORDS, None).at(1.0)
    if isinstance(args, WarmupConfig):
        some = (records[number] for number in sampled(len(records), RECORDS, args.seed))
        taught = taught_of(some, trainer.learned_by, ruler)
    return case_of(
        args,
        trainer.model,
        longest,
        on_host=args.device.type == "cpu",
        engine=_engine(args),
        processes=max(1, args.world_size),
        taught=taught,
    )


def _lengths(batch: PromptBatch, trainer: Any) -> Iterator[PromptLength]:
    """The tokens of each prompt, and how many of them stand for vision."""
    config = trainer.processing_class
    pads = torch.tensor([config.image_token_id, config.video_token_id], device=batch.input_ids.device)
    for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
        yield PromptLength(int(mask.sum()), int(torch.isin(ids, pads).sum()))


def _engine(args: Any) -> Any:
    if args.deepspeed:
        stage = getattr(args.hf_deepspeed_config, "config", {}).get("zero_optimization", {}).get("stage", 2)
        return "zero3" if stage == 3 else "zero2"
    if args.fsdp:
        return "fsdp"
    return "ddp" if args.world_size > 1 else "none"
