"""One model asked all questions: samples are written as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice

from torch.utils.data import DataLoader

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.evaluate.answers import Respondent, build_respondent, loader_of
from qwenvl.evaluate.held_out.questions import AskedSamples, Questions
from qwenvl.evaluate.progress import told
from qwenvl.rewards import Rubric
from qwenvl.rewards.functions.text import answer_of
from qwenvl.runlog.evaluation import AS_IT_IS, EvaluationLog, Sample, SampleKey, hash_of
from qwenvl.train.evaluation import in_budget
from qwenvl.train.log.journal import rollout_rows
from qwenvl.types import BadSample, PromptBatch, RewardBatch, RolloutBatch


@dataclass(frozen=True)
class LeftOut:
    """A record that could not be asked about."""

    model: str
    control: str
    doc_id: int
    where: str
    error: str


@dataclass(frozen=True)
class Asking:
    """The questions for one model, and the process that asks them.

    Attributes:
        name: of the model.
        config: whose ``model_name_or_path`` is the model.
        samples: completions per prompt.
        done: samples that an earlier evaluation wrote.
        left_out: (control, number) of records that an earlier evaluation left out.
    """

    name: str
    config: GRPOConfig
    collator: GRPOCollator
    dataset: GRPODataset
    questions: Questions
    samples: int
    done: Set[SampleKey]
    left_out: Set[tuple[str, int]]

    def blocks(self) -> list[tuple[int, ...]]:
        """The blocks that this process has to ask: every so many of those that are not done, as there are processes."""
        left = [block for block in self.questions.blocks() if not self._is_done(block)]
        return left[self.config.process_index :: self.config.world_size]

    def ask(self, rubric: Rubric, log: EvaluationLog) -> list[LeftOut]:
        """Sample, score and write what is not done. Return the records that this process had to leave out."""
        blocks = self.blocks()
        keys = [
            (control, number)
            for block in blocks
            for control, numbers in self.questions.keys(block).items()
            for number in numbers
        ]
        if not keys:
            return []
        samples = AskedSamples(self.dataset, self.questions, self.config.seed)
        loader = loader_of(samples, keys, self.collator, self.config)
        respondent = build_respondent(self.config, self.collator, rubric)
        left_out: list[LeftOut] = []
        with_its_key = zip(keys, self._prompts(loader), strict=True)
        prompts = told(with_its_key, len(keys), self.name)
        for block in blocks:
            for control, numbers in self.questions.keys(block).items():
                batches = [batch for _, batch in islice(prompts, len(numbers))]
                left_out += [self._left_out(control, bad) for batch in batches for bad in batch.bad]
                self._answer(respondent, control, [batch for batch in batches if len(batch)], log)
        next(prompts, None)  # ends the bar
        return left_out

    def _prompts(self, loader: DataLoader) -> Iterator[PromptBatch]:
        for inputs in loader:
            yield inputs["prompts"]

    def _answer(self, respondent: Respondent, control: str, batches: Sequence[PromptBatch], log: EvaluationLog) -> None:
        """Completions of the prompts of a block, written as they come."""
        collector = replace(respondent.collector, process=0)  # draws are those of one process
        new_tokens = self.samples * collector.params.max_new_tokens
        for together in in_budget(batches, new_tokens=new_tokens, budget=self.config.rollout_token_budget):
            answers = collector.answer(respondent.model, together, self.samples)
            for batch, (rollout, rewards) in zip(together, answers, strict=True):
                log.log(self._samples(control, batch, rollout, rewards))

    def _samples(
        self, control: str, batch: PromptBatch, rollout: RolloutBatch, rewards: RewardBatch
    ) -> Iterator[Sample]:
        lengths = batch.attention_mask.sum(1).tolist()
        for n, row in enumerate(rollout_rows(0, control, batch, rollout, rewards)):
            p = n // self.samples
            record = batch.records[p]
            yield Sample(
                model=self.name,
                control=control,
                doc_id=record.index,
                sample=row.sample,
                record_id=row.record_id,
                where=row.where,
                dataset=record.dataset,
                cluster=self.questions.clusters[record.index],
                prompt=row.prompt,
                target=row.solution,
                completion=row.completion,
                answer=answer_of(row.completion) or "",
                tokens=row.tokens,
                prompt_tokens=lengths[p],
                finish_reason=row.finish_reason,
                rewards=row.rewards,
                total=row.total,
                clips=row.clips,
                images=row.images,
                fitted=row.fitted,
                doc_hash=hash_of(record.fields),
                doc=record.fields if control == AS_IT_IS and not row.sample else None,
            )

    def _is_done(self, block: Sequence[int]) -> bool:
        return all(
            (control, number) in self.left_out
            or all(SampleKey(self.name, control, number, n) in self.done for n in range(self.samples))
            for control, numbers in self.questions.keys(block).items()
            for number in numbers
        )

    def _left_out(self, control: str, bad: BadSample) -> LeftOut:
        return LeftOut(self.name, control, bad.record.index, bad.record.where, bad.error)
