"""Run folders and evaluation folders: their files, written and read with the standard library alone.

A run:

    run.json               the settings, and the versions of packages. Of a resumed run also those of earlier starts
    metrics.jsonl          one object per line: ``step`` and numbers
    rollouts/rank-0.jsonl  one completion per line, a file for each process

An evaluation:

    evaluation.json        the protocol, and at the end the numbers
    samples.jsonl          one line for each record, model, control and sample: prompt, media, completion, rewards.
                           Until the end, process 1 writes samples-1.jsonl, and so on
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from qwenvl.files import written_whole
from qwenvl.types import EVALUATED, EVALUATED_LOSS, FrameInfo, Turn

FORMAT = 1  # of ``evaluation.json``
NUMBERS = "evaluation.json"
SAMPLES = "samples.jsonl"
_SAMPLE_FILE = re.compile(r"samples(-\d+)?\.jsonl")
AS_IT_IS = "none"  # the control that takes nothing away
EntryTypes = Mapping[str, tuple[Any, str]]
"""Entries of an object in a file: the type of each, as ``isinstance`` takes it, and in words."""

_ENTRIES: EntryTypes = {  # of ``run.json``, beside the settings
    "versions": (dict, "an object"),
    "launch": (dict, "an object"),
    "set_by_user": (list, "a list"),
    "earlier_starts": (list, "a list"),
    "resumed_at": (int, "an integer"),
    "finished": (int, "an integer"),
    "trained": (int, "an integer"),
}
_SAVED = "finished"  # in ``run.json``, with the last step: the model is saved
_TRAINED = "trained"  # likewise: training has ended
_NON_FINITE: dict[Any, Any] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_CHUNK = 2**16  # bytes that are read at a time
_OF_A_RANK = re.compile(r"rank-(0|[1-9][0-9]*)\.jsonl")


class RunLogError(ValueError):
    """A file of a run or an evaluation is not what it should be. The message begins with file and line."""


Row = TypeVar("Row", bound="LoggedCompletion")


@dataclass(frozen=True, kw_only=True)
class LoggedCompletion:
    """One completion, as a line of a run or of an evaluation.

    Attributes:
        record_id, where: the record's ``id``, and its file and place.
        sample: number in its group, from 0.
        prompt: messages, each with ``role`` and ``text``.
        completion: without special tokens.
        tokens: of the completion, its end token included.
        finish_reason: ``stop`` or ``length``.
        rewards: by function. None where it does not apply.
        total: the weighted sum of the rewards. None for a completion that no function gave a reward.
        clips, images: of the prompt, in order.
        fitted: for each clip the ``frames`` that it would have had, and those that it has so that the prompt fits
            into ``max_prompt_length``. None where none was left out.
        turns: with tools.
        evidence: with tools, the spans of the record's field ``evidence``, in seconds.
        ended_by: the token that ended it, such as ``<|im_end|>``. Empty where it was cut, or ended by a stop string.
    """

    record_id: str
    sample: int
    prompt: tuple[Mapping[str, str], ...]
    completion: str
    tokens: int
    finish_reason: str
    rewards: Mapping[str, float | None]
    total: float | None
    clips: tuple[FrameInfo, ...] = ()
    images: tuple[str, ...] = ()
    where: str = ""
    fitted: Mapping[str, Any] | None = None
    turns: tuple[Turn, ...] = ()
    evidence: tuple[tuple[float, float], ...] = ()
    ended_by: str = ""

    @classmethod
    def of(cls: type[Row], row: Mapping[str, Any], where: str) -> Row:
        """The completion that a JSON object holds.

        Raises:
            RunLogError: a field is missing. The message begins with ``where``.
        """
        try:
            values = {name: value for name, value in row.items() if name in cls.__dataclass_fields__}
            if "resps" in row:  # of an evaluation, which has the names of lmms-eval
                values["completion"] = row["resps"][0][0]
                values["answer"] = row["filtered_resps"][0]
            values["images"] = tuple(row["images"])
            values["prompt"] = tuple(row["prompt"])
            values["clips"] = tuple(FrameInfo.of(clip) for clip in row["clips"])
            # Earlier versions wrote neither turns nor evidence.
            values["turns"] = tuple(Turn.of(turn) for turn in row.get("turns", ()))
            values["evidence"] = tuple((start, end) for start, end in row.get("evidence", ()))
            return cls(**values)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise RunLogError(f"{where}: no completion: {type(error).__name__} {error}") from None


@dataclass(frozen=True, kw_only=True)
class Rollout(LoggedCompletion):
    """One completion of a run.

    Attributes:
        step: optimizer step, from 1. In evaluation the last step before it.
        advantage: None in evaluation, and for a dropped completion.
        dropped: sampled and not trained on, because the rewards of its group are equal (``--filter_groups``).
        epoch: of the prompt. With weights: how often the record was drawn before.
        split: ``train``, or the name of the evaluation.
    """

    step: int
    solution: str
    advantage: float | None = None
    epoch: int = 0
    split: str = "train"
    dropped: bool = False


class RunLog:
    """Writes a run folder. Each process has its own.

    Args:
        folder: made when something is written.
        rank, world_size: of this process. Only rank 0 writes metrics and configuration.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0, world_size: int = 1) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self.world_size = world_size
        self._rollouts = self.folder / "rollouts" / f"rank-{rank}.jsonl"
        self._earlier: dict[Path, int] = {}  # bytes of a file before this process wrote to it

    def write_config(
        self,
        config: Mapping[str, Any],
        launch: Mapping[str, str] | None = None,
        resumed_at: int = 0,
        set_by_user: Collection[str] | None = None,
    ) -> None:
        """Write the settings of the run. Those of earlier starts stay in ``earlier_starts``, the oldest first.

        Args:
            launch: ``command``, ``started`` and ``hardware`` of the newest start.
            resumed_at: the finished steps at which it begins. 0: a new run, which has no earlier starts.
            set_by_user: the names of the settings that were given. All others have their default, or what it became on
                this machine.
        """
        if self.rank != 0:
            return
        content: dict[str, Any] = {"config": config, "versions": installed_versions()}
        if set_by_user is not None:
            content["set_by_user"] = sorted(set_by_user)
        if launch:
            content["launch"] = launch
        if resumed_at:
            content["resumed_at"] = resumed_at
            content["earlier_starts"] = self._earlier_starts(plain(config))
        write_json(self.folder / "run.json", content)

    def _earlier_starts(self, config: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The starts so far, as ``run.json`` has them. Each has those of its settings that the next start changed.

        Args:
            config: the settings of the next start.
        """
        try:
            written = read_config(self.folder)
        except RunLogError:  # a folder to which only checkpoints were copied
            return []
        changed = {name: value for name, value in written["config"].items() if config.get(name) != value}
        kept = {name: written[name] for name in ("launch", "resumed_at", "versions") if name in written}
        return [*written.get("earlier_starts", []), {**kept, "changed_settings": changed}]

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line of numbers to ``metrics.jsonl``. NaN and infinity are written as words and read back."""
        if self.rank == 0:
            # ``metrics`` may have a ``step`` too. The argument counts, and stands first.
            row = {"step": step, **metrics}
            row["step"] = step
            self._append(self.folder / "metrics.jsonl", [row])

    def log_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        """Append completions to the file of this process."""
        rows = [{"step": each.step, **asdict(each)} for each in rollouts]  # with the step in front
        self._append(self._rollouts, rows)

    def begin(self, step: int = 0) -> None:
        """Delete the rows that a run resumed after ``step``, or a new one (0), writes again. Call it before writing.

        These are the rows of later steps, and the completions of an evaluation that was interrupted: it has no line of
        metrics. A new run keeps the rows that this process wrote before, such as an evaluation of the untrained model.
        Rank 0 also deletes rows of processes beyond ``world_size``.

        Raises:
            RunLogError: a line of a file is no row.
        """
        metrics_by_step: dict[float, set[str]] = {}
        for row in read_metrics(self.folder):
            metrics_by_step.setdefault(row["step"], set()).update(row)
        paths = [self._rollouts]
        if self.rank == 0:
            paths.append(self.folder / "metrics.jsonl")
            paths += [path for path in _rollout_paths(self.folder) if _rank_of(path) >= self.world_size]
        for path in paths:
            if path.exists():
                self._keep_rows(path, step, metrics_by_step)

    def _keep_rows(self, path: Path, step: int, metrics_by_step: Mapping[float, set[str]]) -> None:
        """Write a file again with the rows that ``begin`` keeps.

        Args:
            metrics_by_step: the names of the metrics that a step has a line for.
        """
        # A new run drops all rows from before this process wrote. A resumed one keeps those of earlier steps.
        foreign_bytes = 0 if step else self._earlier.get(path, path.stat().st_size)
        kept = []
        offset = 0  # bytes before the line
        for _, line, row in _steps(path):
            split = row.get("split", "train")
            at_the_end = {f"{split}{ending}" for ending in (EVALUATED, EVALUATED_LOSS, "_runtime")}
            finished = split == "train" or not at_the_end.isdisjoint(metrics_by_step.get(row["step"], ()))
            if offset >= foreign_bytes and row["step"] <= step and finished:
                kept.append(line)
            offset += len(line.encode())
        with written_whole(path) as partial:
            partial.write_text("".join(kept), encoding="utf-8")
        self._earlier[path] = 0

    def finish(self, step: int, saved: bool = True) -> None:
        """Note in ``run.json`` that the run ended at ``step``. ``write_config`` of a resumed run removes the note.

        Args:
            saved: its model is in the folder.
        """
        if self.rank == 0:
            note = _SAVED if saved else _TRAINED
            write_json(self.folder / "run.json", {**read_config(self.folder), note: step})

    def _append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        if path not in self._earlier:
            path.parent.mkdir(parents=True, exist_ok=True)
            drop_cut_line(path)
            self._earlier[path] = path.stat().st_size if path.exists() else 0
        append_lines(path, rows)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"config": ..., "versions": ...}``, ``"trained": step`` once training has ended, and
    ``"finished": step`` once the model is saved. Of a resumed run also ``resumed_at`` and ``earlier_starts``.

    Raises:
        RunLogError: there is none, it is not JSON, or an entry of it is of another type.
    """
    path = Path(folder) / "run.json"
    content = _read_json(path, "a run")
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        expected = 'expected an object with "config", an object of settings'
        raise RunLogError(f"{path}: {expected}; is {path.parent} the folder of a run?")
    problem = misfit_entry(content, _ENTRIES)
    if problem is not None:
        raise RunLogError(f"{path}: {problem}")
    return content


def misfit_entry(content: Mapping[str, Any], types: EntryTypes) -> str | None:
    """The fault of the first entry of another type than ``types`` says. None: there is none. All may be missing."""
    for name, (kind, in_words) in types.items():
        if name in content and not isinstance(content[name], kind):
            return f"{name} must be {in_words}, got {json.dumps(content[name])[:80]}"
    return None


def read_metrics(folder: str | os.PathLike[str], split: str | None = None) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl`` in order. Empty before the first one.

    Args:
        split: ``train`` for the lines of optimizer steps, the name of an evaluation (``eval``) for its lines. None for
            all, with the Trainer's own line at the end of training.

    Raises:
        RunLogError: a line, other than a cut last one, is not an object with a ``step``.
    """
    marks = {"loss"} if split == "train" else {f"{split}{EVALUATED}", f"{split}{EVALUATED_LOSS}"}
    rows = []
    for _, _, row in _steps(Path(folder) / "metrics.jsonl"):
        if split is None or marks & row.keys():
            rows.append({name: _number(value) for name, value in row.items()})
    return rows


def _number(value: Any) -> Any:
    """A number of a line. NaN and infinity are words there."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def read_rollouts(
    folder: str | os.PathLike[str], step: int | None = None, split: str | None = "train"
) -> Iterator[Rollout]:
    """The completions of all processes, process by process in the order they were written.

    Args:
        step: only those of this step. None for all.
        split: only those of training, or of the evaluation of this name. None for all.

    Raises:
        RunLogError: a line, other than a cut last one, is not a rollout.
    """
    for path in _rollout_paths(Path(folder)):
        for where, _, row in _steps(path):
            if step in (None, row["step"]) and split in (None, row.get("split", "train")):
                yield Rollout.of(row, where)


class SampleKey(NamedTuple):
    """The key of a line of ``samples.jsonl``."""

    model: str
    control: str
    doc_id: int
    sample: int


@dataclass(frozen=True, kw_only=True)
class EvaluationSample(LoggedCompletion):
    """One completion of an evaluation.

    Attributes:
        model: its name in ``evaluation.json``.
        control: the evidence taken away from the record, ``none`` for the record as it is. With ``other_clip`` clips
            and images are those of another record.
        doc_id: number of the record in the data, from 0.
        dataset: name of the data set.
        cluster: a key that correlated records share: their clip or image, else the record's own place.
        target: the record's solution.
        answer: as the rewards read it, or "" without an answer block.
        prompt_tokens: of the prompt, vision tokens included.
        doc_hash: of the record's row in its file, see ``hash_of``.
        doc: that row. On the first sample of the record as it is, None on others.
    """

    model: str
    control: str
    doc_id: int
    dataset: str
    cluster: str
    target: str
    answer: str
    prompt_tokens: int
    doc_hash: str = ""
    doc: Mapping[str, Any] | None = None

    @property
    def key(self) -> SampleKey:
        """The key of its line."""
        return SampleKey(self.model, self.control, self.doc_id, self.sample)

    def row(self) -> dict[str, Any]:
        """The line as ``samples.jsonl`` has it: completion, answer and row by the names that lmms-eval gives them."""
        fields = {
            **vars(self),
            "clips": [vars(clip) for clip in self.clips],
            "turns": [asdict(turn) for turn in self.turns],
        }
        first = {name: fields.pop(name) for name in ("model", "control", "doc_id", "sample", "target")}
        completion = fields.pop("completion")
        answer = fields.pop("answer")
        return {**first, "resps": [[completion]], "filtered_resps": [answer], **fields}


class EvaluationLog:
    """Writes the folder of an evaluation. Each process has its own.

    Args:
        folder: made when something is written.
        process: the number of this process. Only process 0 writes ``evaluation.json``.
    """

    def __init__(self, folder: str | os.PathLike[str], process: int = 0) -> None:
        self.folder = Path(folder)
        self.process = process
        self._path = self.folder / (SAMPLES if process == 0 else f"samples-{process}.jsonl")

    def begin(self, numbers: Mapping[str, Any]) -> None:
        """Write ``numbers``, and make the file of samples ready for further lines."""
        self.folder.mkdir(parents=True, exist_ok=True)
        drop_cut_line(self._path)
        self.write(numbers)

    def log(self, samples: Iterable[EvaluationSample]) -> None:
        """Append lines."""
        append_lines(self._path, [sample.row() for sample in samples])

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Write ``evaluation.json`` anew."""
        if self.process == 0:
            write_json(self.folder / NUMBERS, {"format": FORMAT, **numbers})

    def join(self, samples: Iterable[EvaluationSample]) -> None:
        """Write all lines into one file, in this order, and delete those of other processes."""
        with written_whole(self.folder / SAMPLES) as partial:
            append_lines(partial, (sample.row() for sample in samples))
        for path in _sample_files(self.folder):
            if path.name != SAMPLES:
                path.unlink()

    def has_earlier(self) -> bool:
        """Whether the folder has an evaluation, of whatever version.

        Raises:
            RunLogError: the folder has an ``evaluation.json`` that no evaluation wrote.
        """
        path = self.folder / NUMBERS
        if not path.exists():
            return False
        numbers = _read_json(path, "an evaluation")
        if not isinstance(numbers, dict) or not {"format", "protocol"} <= numbers.keys():
            raise RunLogError(f"{path}: no evaluation wrote this file; give another --output_dir")
        return True

    def forget(self) -> None:
        """Delete the files of an earlier evaluation. Others in its folder, such as a report, stay."""
        # The file by which an evaluation is known goes last: a kill in between leaves one.
        for path in (*_sample_files(self.folder), self.folder / NUMBERS):
            path.unlink(missing_ok=True)


def read_evaluation(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of ``evaluation.json``.

    Raises:
        RunLogError: there is none, it is not JSON, or of a later format.
    """
    path = Path(folder) / NUMBERS
    numbers = _read_json(path, "an evaluation")
    if not isinstance(numbers, dict) or numbers.get("format") != FORMAT:
        raise RunLogError(f'{path}: expected an object whose "format" is {FORMAT}: another version wrote it')
    return numbers


def read_samples(folder: str | os.PathLike[str]) -> dict[SampleKey, EvaluationSample]:
    """The lines of all processes by their keys. A sample that was repeated after a stop is there once.

    Raises:
        RunLogError: a line, other than a cut last one, is not a sample.
    """
    samples = {}
    for path in _sample_files(Path(folder)):
        for where, _, row in read_lines(path):
            sample = EvaluationSample.of(row, where)
            samples[sample.key] = sample
    return samples


def hash_of(value: Any) -> str:
    """The SHA-256 of a text, or of a value as JSON, as lmms-eval takes it of a row."""
    text = value if isinstance(value, str) else json.dumps(plain(value), indent=2, ensure_ascii=False)
    # Names of files need not be UTF-8: Python then has lone surrogates in them.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _sample_files(folder: Path) -> list[Path]:
    """The files of samples of all processes. A file of the user's own, as samples_of_mine.jsonl, is none."""
    return sorted(path for path in folder.glob("samples*.jsonl") if _SAMPLE_FILE.fullmatch(path.name))


def _read_json(path: Path, of: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunLogError(f"{path}: no such file; is {path.parent} the output_dir of {of}?") from None
    except ValueError as error:
        raise RunLogError(f"{path}: not JSON: {error}") from None


def read_lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Place, text and value of each line of a JSONL file, without a last line that a crash cut off."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                value = json.loads(line)
            except ValueError as error:
                raise RunLogError(f"{path}:{number}: not JSON: {error}") from None
            yield f"{path}:{number}", line, value


def _steps(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, text and value of each line of a run."""
    for where, line, row in read_lines(path):
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise RunLogError(f'{where}: expected an object with an integer "step", got {line[:80]!r}')
        yield where, line, row


def _rollout_paths(folder: Path) -> list[Path]:
    """The files of the processes of a run. A file of another name, such as a user's copy of one, is left alone."""
    own = [path for path in folder.glob("rollouts/rank-*.jsonl") if _OF_A_RANK.fullmatch(path.name)]
    return sorted(own, key=_rank_of)


def _rank_of(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of JSON so that a crash leaves the old one or the new one."""
    with written_whole(path) as partial:
        partial.write_text(json.dumps(plain(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line for each row. The folder must be there."""
    # Half a surrogate pair, which a tokenizer can decode to, becomes the escape that JSON has for it.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def drop_cut_line(path: Path) -> None:
    """Truncate a file after its last line end, so that an appended line begins on its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:  # backwards: a file of rollouts may have gigabytes
            start = max(0, end - _CHUNK)
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                end = start + last + 1
                break
            end = start
        file.truncate(end)


def plain(value: Any) -> Any:
    """The value as JSON: NaN and infinity as words, arrays and tensors as numbers, other objects as their repr."""
    if isinstance(value, (str, int, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else repr(value)


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes. Those not installed are left out."""
    names = ("qwenvl", "torch", "torchvision", "transformers", "accelerate", "peft", "av", "decord")
    versions = {"python": platform.python_version()}
    for name in (*names, "deepspeed", "flash-attn", "vllm"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
