"""The stage *sample*: completions of all prompts of a step, by the engine of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from torch import nn

from qwenvl.data.seeds import stable_random
from qwenvl.files import written_whole
from qwenvl.rollout.drafts import CountsDrafts, DraftCounts, Drafter
from qwenvl.rollout.engine import EngineWithWeights, RolloutEngine, SamplingParams, SamplingRequest, lost_together
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.step.encode import Encode, EncodeLooks
from qwenvl.step.meter import Meter
from qwenvl.step.processes import Processes
from qwenvl.step.types import EncodedPrompts, Sampled, StepContext
from qwenvl.tools.toolbox import Conversations, Toolbox
from qwenvl.types import PromptBatch, RolloutBatch


class Sampler(Protocol):
    """The stage that turns prompts into completions: ``SampleNow``, or ``SampleAhead`` around it."""

    def ready(self, step: StepContext) -> AbstractContextManager[None]:
        """Context in which the policy can run, and the engine has its weights. All processes enter it together."""
        ...

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[Sampled]:
        """G completions of each prompt, within ``ready``. All processes call it together."""
        ...

    def finish(self, step: StepContext) -> None:
        """All completions of the step are sampled. Within ``ready``; all processes call it together."""
        ...

    def check(self) -> None:
        """Raise an error of sampling in the background, as soon as it is known."""
        ...

    def start(self) -> None:
        """A training begins: versions of weights count from 0 again."""
        ...

    def close(self) -> None:
        """The training is over: nothing is sampled in the background any more."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write what a resumed run needs into a checkpoint. All processes call it together."""
        ...

    def load(self, folder: str | Path) -> None:
        """Read what ``save`` wrote."""
        ...


@dataclass(frozen=True)
class SampleNow:
    """Samples the completions of a step when it is its turn.

    Attributes:
        encode: makes prompts the model's inputs.
        engine: samples completions.
        group_size: G, completions per prompt.
        params: how they are drawn.
        toolbox: answers the calls of completions. None: there are no tools.
        looks: makes what tools show the model's inputs.
        processes: all of the run, which may share the weights of the policy.
        process: the number of this one.
    """

    encode: Encode
    engine: RolloutEngine
    group_size: int
    params: SamplingParams
    toolbox: Toolbox | None
    looks: EncodeLooks
    processes: Processes
    process: int = 0

    @property
    def drafter(self) -> Drafter | None:
        """The drafter of the engine. None: the engine does not draft."""
        return self.engine.drafter if isinstance(self.engine, SharedPrefixEngine) else None

    @contextmanager
    def ready(self, step: StepContext) -> Iterator[None]:
        """See ``Sampler.ready``."""
        if step.version is None:
            self.looks.forget()  # a script may have changed the tower
        with self.processes.gather_weights(step.policy, step.wrapped):
            if not isinstance(self.engine, EngineWithWeights):
                yield
                return
            with step.meter.time("time/sync_s"), lost_together(self.engine):
                self.engine.sync(step.policy, step.version)
            with lost_together(self.engine):
                yield
            self.engine.rest()

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> list[Sampled]:
        """See ``Sampler``."""
        return self.of_encoded(self.encode(batches, step), step)

    def of_encoded(self, encoded: Sequence[EncodedPrompts], step: StepContext, staleness: int = 0) -> list[Sampled]:
        """Completions of prompts that are the model's inputs already."""
        drafter = self.drafter
        learning = nullcontext() if drafter is None else drafter.learning()
        with step.meter.time("time/sample_s"), lost_together(self.engine), learning:
            rollouts = self.completions(encoded, self.group_size, self.params, step)
        if isinstance(self.engine, CountsDrafts):
            log_drafts(step.meter, self.engine.take_counts())
        return [
            Sampled(batch=each.batch, prompts=each.inputs, rollout=rollout, staleness=staleness)
            for each, rollout in zip(encoded, rollouts, strict=True)
        ]

    def completions(
        self, encoded: Sequence[EncodedPrompts], group_size: int, params: SamplingParams, step: StepContext
    ) -> list[RolloutBatch]:
        """Completions of all micro-batches, drawn together. Not collective: processes may call it unequally often."""
        batches = [each.batch for each in encoded]
        conversations = None
        if self.toolbox is not None:
            conversations = self.conversations(batches, group_size, step.policy)
        request = SamplingRequest(
            prompts=[each.inputs for each in encoded],
            group_size=group_size,
            params=params,
            seed=seed_of(batches, step),
            conversations=conversations,
        )
        with self.encode.autocast():
            return self.engine.sample(step.policy, request)

    def conversations(self, batches: Sequence[PromptBatch], group_size: int, model: nn.Module) -> Conversations:
        """The beginning of the conversations with ``group_size`` completions of each prompt.

        Args:
            model: encodes what tools show.
        """
        assert self.toolbox is not None
        records = []
        for batch in batches:
            for record in batch.records:
                records += [record] * group_size
        return self.toolbox.begin(records, partial(self.looks, model))

    def finish(self, step: StepContext) -> None:
        """See ``Sampler.finish``. There is nothing to do."""

    def check(self) -> None:
        """See ``Sampler.check``. Nothing is sampled in the background."""

    def start(self) -> None:
        """See ``Sampler.start``."""
        if isinstance(self.engine, EngineWithWeights):
            self.engine.forget()
        self.looks.forget()  # a script may have changed the tower

    def close(self) -> None:
        """See ``Sampler.close``. Nothing is sampled in the background."""

    def save(self, folder: str | Path) -> None:
        """See ``Sampler.save``: what drafts are taken from. The next step is sampled anew."""
        if self.drafter is not None:
            with written_whole(self._drafts_file(folder)) as path:
                path.write_text(json.dumps(self.drafter.state()), encoding="utf-8")

    def load(self, folder: str | Path) -> None:
        """See ``Sampler.load``. A checkpoint of a run without drafts has no file, and the history begins anew.

        Raises:
            ValueError: the file does not hold the state of a drafter.
        """
        path = self._drafts_file(folder)
        if self.drafter is None or not path.is_file():
            return
        try:
            self.drafter.load(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: expected completions that drafts are taken from, found: {error}") from None

    def _drafts_file(self, folder: str | Path) -> Path:
        return Path(folder) / f"drafts_{self.process}.json"


def log_drafts(meter: Meter, counts: DraftCounts) -> None:
    """Logs how many tokens forwards gave, and how many tokens of drafts were right."""
    if counts.forwards:
        meter.mean("sampling/tokens_per_forward", counts.tokens / counts.forwards, weight=counts.forwards)
    if counts.drafted:
        meter.mean("sampling/accepted_frac", counts.accepted / counts.drafted, weight=counts.drafted)


def seed_of(batches: Sequence[PromptBatch], step: StepContext) -> int:
    """The seed of the completions of these prompts."""
    drawn = []
    for batch in batches:
        for epoch, record in zip(batch.epochs, batch.records, strict=True):
            drawn.append((epoch, record.id))
    # The process is part of the seed: two that draw the same prompt should not draw the same completions.
    return stable_random(step.seed, step.process, *drawn, *step.purpose).getrandbits(63)
