"""The journal of a run: experiences, losses and evaluations become metrics and rows of the run folder."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path

import torch
from torch.utils.data import Dataset

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.errors import BadMediaError
from qwenvl.grpo.diagnostics import equal_groups, reward_std, unique_fraction
from qwenvl.grpo.loss import LossOutput
from qwenvl.rewards.functions.looking import answered_calls, looks_iou, readable_evidence
from qwenvl.rewards.functions.text import thinking_of
from qwenvl.run_log.log import RunLog
from qwenvl.step.meter import Meter
from qwenvl.step.rows import rollout_rows
from qwenvl.step.types import Experience, TrainStep
from qwenvl.types import BadSample, PromptBatch, RewardBatch, RolloutBatch

MOST_BAD_IN_A_ROW = 16
"""Samples that may be left out in a row. Of a data set with a third of bad files, 16 follow each other once in 10^8."""


def launch_facts() -> dict[str, str]:
    """The command, the time and the hardware of this process. The value of a flag that ends in token is left out."""
    words: list[str] = []
    for before, word in pairwise(["", Path(sys.argv[0]).name, *sys.argv[1:]]):
        if re.fullmatch(r"--[\w-]*token", before):  # --hub_token VALUE
            words.append("...")
        else:  # --hub_token=VALUE
            words.append(re.sub(r"\A(--[\w-]*token=).*", r"\1...", word))
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    named = [f"{count} x {name}" for name, count in Counter(gpus).items()]
    return {
        "command": shlex.join(words),
        "started": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "hardware": ", ".join([*named, f"{os.cpu_count()} CPU cores"]),
    }


class Journal:
    """Turns experiences, losses and evaluations into the meter's metrics and the run folder's rows."""

    def __init__(self, args: GRPOConfig, meter: Meter, dataset: Dataset | None = None):
        """
        Args:
            dataset: the one to train on. If it has several parts, their shares and rewards are logged.
        """
        self.runlog = RunLog(args.output_dir, rank=args.process_index, world_size=args.world_size)
        self.bad_samples: dict[str, BadSample] = {}
        self.drawn_for_training = Counter(used=0, left_out=0)
        self._bad_in_a_row = 0
        # Prompts, loss and its metrics of each micro-batch of the present step. A loss may be NaN or infinite.
        self.trained_on: list[tuple[PromptBatch, float, dict[str, float]]] = []
        self._args = args
        self._decoder = getattr(dataset, "decoder", None)
        self._ruler = getattr(dataset, "ruler", None)
        parts = getattr(dataset, "parts", ())
        self._datasets = [part.name for part in parts] if len(parts) > 1 else []
        self._meter = meter

    def collected(self, step: int, experience: Experience) -> None:
        """Log metrics and rollouts of a micro-batch that was sampled for optimizer step ``step`` (the first is 1).

        The metrics include dropped groups.
        """
        if not len(experience.batch):
            return
        self._sampled(experience.batch, experience.rollout, experience.rewards)
        self._meter.count("group/count", len(experience.batch))  # a step of a small data set has fewer than flags say
        if experience.penalty is not None:
            for amount, total in zip(experience.penalty.amounts.tolist(), experience.rewards.totals(), strict=True):
                self._meter.mean("penalty/kl", amount / self._args.grpo_beta)
                self._meter.mean("penalty/total", None if total is None else total - amount)
        if self._args.async_rollouts:
            self._meter.mean("async/staleness", experience.staleness, weight=len(experience.batch))
        rows = rollout_rows(
            step,
            "train",
            experience.batch,
            experience.rollout,
            experience.rewards,
            experience.advantages.tolist(),
        )
        self.runlog.log_rollouts(rows)
        for each in experience.dropped:
            self._sampled(each.batch, each.rollout, each.rewards)
            rows = rollout_rows(step, "train", each.batch, each.rollout, each.rewards)
            self.runlog.log_rollouts(replace(row, dropped=True) for row in rows)
        for batch in experience.refills:
            self.drawn(batch)

    def begin_step(self) -> None:
        """Begin an optimizer step: its metrics and losses count from here."""
        self._meter.step()
        self.trained_on = []

    def trained(self, step: TrainStep, number: int, output: LossOutput) -> None:
        """Log the loss of the micro-batch ``number``, whose fixed log-probs are known.

        On fresh completions the ratio is 1 by definition, and not logged.
        """
        experience = step.experiences[number]
        fixed = step.fixed_of(number)
        ratio_is_one = step.iteration == 0 and not (fixed is not None and fixed.old_is_sampler)
        self.trained_on.append((experience.batch, output.loss.item(), output.metrics))
        tokens = int(experience.loss_mask.sum())
        for name, value in output.metrics.items():
            if name.startswith("loss/"):
                self._meter.mean(name, value * step.counts.passes)  # the shares of a step sum to its loss
            elif not (ratio_is_one and name.startswith("ratio/")):
                self._meter.mean(name, value, weight=tokens)

    def evaluated(self, step: int, split: str, batch: PromptBatch, rollout: RolloutBatch, rewards: RewardBatch) -> None:
        """Log the rollouts of an evaluation after optimizer step ``step``."""
        self.left_out(batch)
        self.runlog.log_rollouts(rollout_rows(step, split, batch, rollout, rewards))

    def begin(self, finished_steps: int) -> None:
        """Write the settings and versions, and delete the rows of steps that a resumed run repeats."""
        self.runlog.begin(finished_steps)
        settings = {**self._args.to_dict(), "processes": self._args.world_size, "video_decoder": self._decoder}
        settings["template_arguments"] = self._ruler and self._ruler.effective_arguments
        self.runlog.write_config(
            settings,
            launch=launch_facts(),
            resumed_at=finished_steps,
            set_by_user=self._args.set_by_user,
        )

    def drawn(self, batch: PromptBatch) -> None:
        """Count the samples that training drew from each data set, left-out ones included.

        Raises:
            BadMediaError: ``MOST_BAD_IN_A_ROW`` samples in a row were left out.
        """
        self.left_out(batch)
        self._bad_in_a_row = 0 if len(batch) else self._bad_in_a_row + len(batch.bad)
        if self._bad_in_a_row >= MOST_BAD_IN_A_ROW:
            raise BadMediaError(
                f"none of the last {self._bad_in_a_row} samples could be read, the latest: {batch.bad[-1].error}. "
                "--on_bad_sample skip leaves out single files: are the media still where they were?"
            )
        self.drawn_for_training.update(used=len(batch), left_out=len(batch.bad))
        left_out = [bad.record for bad in batch.bad]
        names = [record.dataset for record in (*batch.records, *left_out)]
        for name in self._datasets:
            self._meter.count(f"dataset/{name}/drawn", names.count(name))

    def left_out(self, batch: PromptBatch) -> None:
        """Count and remember the samples that were left out of a batch."""
        self._meter.count("data/bad_samples", len(batch.bad))
        self.bad_samples |= {sample.record.where: sample for sample in batch.bad}

    def _sampled(self, batch: PromptBatch, rollout: RolloutBatch, rewards: RewardBatch) -> None:
        """Log metrics of P groups of training."""
        meter = self._meter
        size = self._args.grpo_sample_size
        for name, values in rewards.columns().items():
            for value in values:
                meter.mean(f"reward/{name}", value)
        for total in rewards.totals():
            if total is not None:
                meter.max("reward/max", total)
        for name, logged in rewards.metrics.items():
            for value, rows in Counter(logged).items():
                meter.mean(name, value, weight=rows)
        for name, flags in rewards.failed.items():
            if any(flags) or self._args.on_reward_error == "skip":
                meter.count(f"reward/{name}/skipped", sum(flags))
        if self._datasets:
            groups = rewards.total.view(len(batch), -1)  # P x G
            for record, group in zip(batch.records, groups, strict=True):
                if not group.isnan().all():
                    meter.mean(f"dataset/{record.dataset}/reward", float(group.nanmean()))
        meter.mean("reward/std", reward_std(rewards.total, size), weight=len(batch))
        meter.mean("group/unique_frac", unique_fraction(rollout.texts, size), weight=len(batch))
        equal_share = equal_groups(rewards.total, size).float().mean().item() if len(batch) else 0.0
        meter.mean("group/zero_std_frac", equal_share, weight=len(batch))
        lengths = rollout.completion_mask.sum(1).tolist()
        for length, reason in zip(lengths, rollout.finish_reasons, strict=True):
            meter.mean("completion/length_mean", length)
            meter.max("completion/length_max", length)
            meter.mean("completion/truncated_frac", float(reason == "length"))
        self._thinking(batch, rollout)
        self._looks(batch, rollout)
        self._worth_of_looks(rollout, rewards)
        self.seen(batch)

    def _looks(self, batch: PromptBatch, rollout: RolloutBatch) -> None:
        """Log the calls of tools in each completion: their number, tokens, errors and seconds, and where they look."""
        meter = self._meter
        for n, turns in enumerate(rollout.turns or ()):
            calls = list(chain.from_iterable(turn.calls for turn in turns))
            meter.mean("look/calls", len(calls))
            meter.mean("look/looked_frac", float(bool(answered_calls(turns))))
            meter.mean("look/tokens", sum(call.tokens for call in calls))
            for call in calls:
                meter.mean("look/error_frac", float(call.error is not None))
                meter.mean("look/seconds", call.seconds)
            record = batch.records[n // self._args.grpo_sample_size]
            spans = readable_evidence(record.fields)
            if spans:
                meter.mean("look/evidence_iou", looks_iou(turns, spans))

    def _thinking(self, batch: PromptBatch, rollout: RolloutBatch) -> None:
        """Log the length of the thinking part of each completion, 0 without one, and whether it was cut inside it.

        Nothing is measured where no completion of the micro-batch thinks. (What is logged must not depend on earlier
        steps, which a resumed run has not seen.)
        """
        if self._ruler is None:
            return
        size = self._args.grpo_sample_size
        found = []  # for each completion the thinking of each of its turns, and whether it ends. None: no thinking
        for n, text in enumerate(rollout.texts):
            turns = [text] if rollout.turns is None else [turn.text for turn in rollout.turns[n]]
            found.append([thinking_of(turn, batch.opened_think[n // size]) for turn in turns])
        if all(part is None for part in chain.from_iterable(found)):
            return
        tokenizer = self._ruler.processor.tokenizer
        for parts, reason in zip(found, rollout.finish_reasons, strict=True):
            tokens = 0
            is_whole = True
            for part in parts:
                is_whole = part is None or part[1]
                if part is not None:
                    tokens += len(tokenizer(part[0], add_special_tokens=False)["input_ids"])
            was_cut = reason == "length" and not is_whole  # in its last turn
            self._meter.mean("completion/thinking_mean", tokens)
            self._meter.mean("completion/thinking_cut_frac", float(was_cut))

    def _worth_of_looks(self, rollout: RolloutBatch, rewards: RewardBatch) -> None:
        """Log mean rewards with and without a look, over the groups that have completions of both kinds."""
        size = self._args.grpo_sample_size
        scored = list(zip(rollout.turns or (), rewards.totals(), strict=False))
        for start in range(0, len(scored), size):
            with_look: list[float] = []
            without: list[float] = []
            for turns, total in scored[start : start + size]:
                if total is not None:
                    (with_look if answered_calls(turns) else without).append(total)
            if with_look and without:
                self._meter.mean("look/reward_with", sum(with_look) / len(with_look))
                self._meter.mean("look/reward_without", sum(without) / len(without))

    def seen(self, batch: PromptBatch) -> None:
        """Log metrics of the prompts of a micro-batch: lengths and frames."""
        if self._args.fit_frames:
            self._meter.count("data/fitted_prompts", sum(fitted is not None for fitted in batch.fitted))
        if self._args.per_device_train_batch_size > 1:
            mask = batch.attention_mask
            self._meter.mean("prompt/padding_frac", 1 - float(mask.float().mean()), weight=mask.numel())
        for mask, clips in zip(batch.attention_mask, batch.frames, strict=True):
            self._meter.mean("prompt/tokens", int(mask.sum()))
            self._meter.mean("prompt/frames", sum(len(clip.indices) for clip in clips))
            self._meter.count("data/rescaled_clips", sum(clip.rescaled for clip in clips))
