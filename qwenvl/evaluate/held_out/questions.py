"""What is asked: the records, which of them belong together, and each with and without its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset

from qwenvl.data.dataset import GRPODataset
from qwenvl.data.errors import RecordError
from qwenvl.data.seeds import stable_random
from qwenvl.evaluate.held_out.controls import CONTROLS, OTHER, partners, with_media_of, without_media
from qwenvl.evaluate.held_out.options import EvaluateOptions
from qwenvl.runlog.evaluation import AS_IT_IS
from qwenvl.types import BadSample, Record, Sample

BLOCK = 16
"""Records that are sampled and written together. Which of them share a draw does not hang on the number of processes,
nor on where an earlier evaluation stopped."""


OWN_STRATA = ("dataset", "actions", "duration")
"""What records can be told apart by that is no field of theirs."""


@dataclass(frozen=True)
class Questions:
    """The records that are asked about.

    Attributes:
        records: by their number in the data.
        clusters: what each shares with those that it depends on.
        controls: the evidence that is taken away, ``none`` first.
        partners: whose clip a record is shown for ``other_clip``.
    """

    records: Mapping[int, Record]
    clusters: Mapping[int, str]
    controls: tuple[str, ...]
    partners: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: GRPODataset, options: EvaluateOptions, seed: int) -> Questions:
        """As the options ask for them.

        Raises:
            RecordError, ValueError: a record lacks the field of ``cluster_by``, or no record has what a control takes.
        """
        numbers = list(range(len(dataset)))
        if options.limit is not None and options.limit < len(numbers):
            numbers = sorted(stable_random(seed, "evaluate").sample(numbers, options.limit))
        records = {number: dataset.record(number) for number in numbers}
        asked = cls(
            records,
            clusters_of(records, options.cluster_by),
            (AS_IT_IS, *options.wanted_controls),
            partners(records, seed) if OTHER in options.wanted_controls else {},
        )
        for by in set(options.wanted_strata or ()) - set(OWN_STRATA):  # before hours of sampling, not after
            for record in records.values():
                field_of(record.fields, by, record.where)
        for control in asked.controls:
            if not any(asked.applies(control, number) for number in numbers):
                lacks = "another clip to show" if control == OTHER else "what it takes away"
                raise ValueError(f"--controls {control} has no effect: no record has {lacks}; leave it out")
        return asked

    def applies(self, control: str, number: int) -> bool:
        """Whether a record is asked about under a control."""
        if control == AS_IT_IS:
            return True
        return CONTROLS[control].applies(self.records[number]) and (control != OTHER or number in self.partners)

    def record(self, control: str, number: int) -> Record:
        """The record as it is asked about."""
        record = self.records[number]
        if control == OTHER:
            return with_media_of(record, self.records[self.partners[number]])
        return without_media(record) if control == "text_only" else record

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """The numbers of the records that are sampled and written together."""
        numbers = list(self.records)
        return (tuple(numbers[start : start + BLOCK]) for start in range(0, len(numbers), BLOCK))

    def keys(self, block: Sequence[int]) -> dict[str, list[int]]:
        """For each control the numbers of a block that are asked about."""
        return {control: [n for n in block if self.applies(control, n)] for control in self.controls}


@dataclass(frozen=True)
class AskedSamples(Dataset):
    """Samples by (control, number of the record)."""

    dataset: GRPODataset
    questions: Questions
    seed: int

    def __len__(self) -> int:
        return len(self.questions.records)

    def __getitem__(self, key: tuple[str, int]) -> Sample | BadSample:
        control, number = key
        sample = self.dataset.sample(self.questions.record(control, number))
        if control == AS_IT_IS or isinstance(sample, BadSample):
            return sample
        return CONTROLS[control].sample(sample, self.seed)


def clusters_of(records: Mapping[int, Record], by: str | None = None) -> dict[int, str]:
    """What each record shares with those that it depends on: clips and images, also over others, else its own place.

    Args:
        by: a field of the records in place of clips and images.

    Raises:
        RecordError: a record does not have it.
    """
    if by is not None:
        return {number: str(field_of(record.fields, by, record.where)) for number, record in records.items()}
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    media = {number: [*record.videos, *record.images] or [record.where] for number, record in records.items()}
    for own in media.values():
        for other in own[1:]:
            parent[root(other)] = root(own[0])
    return {number: root(own[0]) for number, own in media.items()}


def field_of(row: Mapping[str, Any], path: str, where: str) -> Any:
    """A field of a record's row, also one within another: ``meta.view``.

    Raises:
        RecordError: it is not there.
    """
    value: Any = row
    for name in [path] if path in row else path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise RecordError(
                f"{where}: no field {path!r}, which --cluster_by or --strata names; it has {', '.join(row)}"
            )
        value = value[name]
    return value
