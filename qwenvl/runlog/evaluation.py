"""The folder of an evaluation: what it writes down, and how to read it back.

    evaluation.json    the protocol, and once it has ended the numbers
    samples.jsonl      one line for each record, model, control and sample: what was asked, shown, written and scored

Of several processes each writes a file of its own, ``samples-1.jsonl`` and so on, until the end joins them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qwenvl.files import written_whole
from qwenvl.runlog.run import RunLogError, SeenClip, append_lines, drop_cut_line, plain, whole_lines

FORMAT = 1
NUMBERS, SAMPLES = "evaluation.json", "samples.jsonl"
AS_IT_IS = "none"  # the control that takes nothing away


class SampleKey(NamedTuple):
    """Which line it is."""

    model: str
    control: str
    doc_id: int
    sample: int


@dataclass(frozen=True)
class Sample:
    """One completion of an evaluation.

    Attributes:
        model: its name in ``evaluation.json``.
        control: what was taken away from the record, ``none`` for the record as it is.
        doc_id: number of the record in the data that was asked about, from 0.
        sample: place among the completions of its prompt, from 0.
        record_id, where, dataset: the record's ``id``, its file and place, and its data set.
        cluster: what the record shares with those that it depends on: its clip or image, else its own place.
        prompt: messages, each with ``role`` and ``text``.
        target: the record's solution.
        completion: without special tokens.
        answer: what the rewards read of it, or "" where they found no answer block.
        tokens: of the completion, its end token included.
        prompt_tokens: of the prompt, vision tokens included.
        finish_reason: ``stop`` or ``length``.
        rewards: by function. None where it does not apply.
        total: their weighted sum. None for a completion that no function gave a reward.
        clips, images: what was shown, in order. Of another record where the control is ``other_clip``.
        fitted: what was lowered to make the prompt fit, as in a run's rollouts.
        doc_hash: of the row of the file that the record was read from, see ``hash_of``.
        doc: that row. On the first sample of the record as it is, None on others.
    """

    model: str
    control: str
    doc_id: int
    sample: int
    record_id: str
    where: str
    dataset: str
    cluster: str
    prompt: tuple[Mapping[str, str], ...]
    target: str
    completion: str
    answer: str
    tokens: int
    prompt_tokens: int
    finish_reason: str
    rewards: Mapping[str, float | None]
    total: float | None
    clips: tuple[SeenClip, ...] = ()
    images: tuple[str, ...] = ()
    fitted: Mapping[str, Any] | None = None
    doc_hash: str = ""
    doc: Mapping[str, Any] | None = None

    @property
    def key(self) -> SampleKey:
        """Which line it is."""
        return SampleKey(self.model, self.control, self.doc_id, self.sample)

    def row(self) -> dict[str, Any]:
        """The line as ``samples.jsonl`` has it: completion, answer and row by the names that lmms-eval gives them."""
        named = {**vars(self), "clips": [vars(clip) for clip in self.clips]}
        return {
            **{name: named.pop(name) for name in ("model", "control", "doc_id", "sample", "target")},
            "resps": [[named.pop("completion")]],
            "filtered_resps": [named.pop("answer")],
            **named,
        }

    @classmethod
    def of(cls, row: Mapping[str, Any], where: str) -> Sample:
        """What ``row`` made.

        Raises:
            RunLogError: something is missing. The message begins with ``where``.
        """
        try:
            rest = {name: value for name, value in row.items() if name in cls.__dataclass_fields__}
            clips = tuple(
                SeenClip(c["path"], tuple(c["indices"]), tuple(c["times"]), c["segments"] and tuple(c["segments"]))
                for c in row["clips"]
            )
            return cls(
                **rest
                | {
                    "completion": row["resps"][0][0],
                    "answer": row["filtered_resps"][0],
                    "clips": clips,
                    "images": tuple(row["images"]),
                    "prompt": tuple(row["prompt"]),
                }
            )
        except (KeyError, TypeError, IndexError) as error:
            raise RunLogError(f"{where}: not a sample: {type(error).__name__} {error}") from None


class EvaluationLog:
    """Writes the folder of an evaluation. Each process has its own.

    Args:
        folder: made when something is written.
        process: the number of this process. Only process 0 writes ``evaluation.json``.
    """

    def __init__(self, folder: str | os.PathLike[str], process: int = 0) -> None:
        self.folder, self.process = Path(folder), process
        self._path = self.folder / (f"samples-{process}.jsonl" if process else SAMPLES)

    def begin(self, numbers: Mapping[str, Any]) -> None:
        """Write what is known before the first sample, and make the file of samples ready for further lines."""
        self.folder.mkdir(parents=True, exist_ok=True)
        drop_cut_line(self._path)
        self.write(numbers)

    def log(self, samples: Iterable[Sample]) -> None:
        """Append lines."""
        append_lines(self._path, [sample.row() for sample in samples])

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Write ``evaluation.json`` anew."""
        if self.process == 0:
            with written_whole(self.folder / NUMBERS) as partial:
                text = json.dumps(plain({"format": FORMAT, **numbers}), indent=1, ensure_ascii=False, allow_nan=False)
                partial.write_text(text + "\n", encoding="utf-8")

    def join(self, samples: Iterable[Sample]) -> None:
        """Write all lines into one file, in this order, and delete those of other processes."""
        with written_whole(self.folder / SAMPLES) as partial:
            append_lines(partial, (sample.row() for sample in samples))
        for path in _sample_paths(self.folder):
            if path.name != SAMPLES:
                path.unlink()

    def forget(self) -> None:
        """Delete what an earlier evaluation wrote here."""
        for path in (self.folder / NUMBERS, *_sample_paths(self.folder)):
            path.unlink(missing_ok=True)


def read_evaluation(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What ``evaluation.json`` holds.

    Raises:
        RunLogError: there is none, it is not JSON, or of a later format.
    """
    path = Path(folder) / NUMBERS
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunLogError(f"{path}: no such file; is {folder} the output_dir of an evaluation?") from None
    except ValueError as error:
        raise RunLogError(f"{path}: not JSON: {error}") from None
    if not isinstance(numbers, dict) or numbers.get("format") != FORMAT:
        raise RunLogError(f'{path}: expected an object whose "format" is {FORMAT}: another version wrote it')
    return numbers


def read_samples(folder: str | os.PathLike[str]) -> dict[SampleKey, Sample]:
    """The lines of all processes by their keys. What was sampled twice, before and after a stop, is there once.

    Raises:
        RunLogError: a line, other than a cut last one, is not a sample.
    """
    samples: dict[SampleKey, Sample] = {}
    for path in _sample_paths(Path(folder)):
        for number, line in whole_lines(path):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise RunLogError(f"{path}:{number}: not JSON: {error}") from None
            sample = Sample.of(row, f"{path}:{number}")
            samples[sample.key] = sample
    return samples


def hash_of(value: Any) -> str:
    """The SHA-256 of a text, or of a value as JSON, as lmms-eval takes it of a row."""
    text = value if isinstance(value, str) else json.dumps(plain(value), indent=2, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _sample_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples*.jsonl"))
