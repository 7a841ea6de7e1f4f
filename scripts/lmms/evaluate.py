"""Runs tasks of lmms-eval on a model of this library, and reads them back into the table of ``qwenvl evaluate``.

It runs in the environment that ``scripts/evaluate.sh lmms`` makes.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

LMMS_EVAL = "0.7.3"
COMMAND = "scripts/evaluate.sh lmms"

sys.path[0] = str(Path(__file__).resolve().parents[2])  # the repository, and not this folder


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, write the folder, print the table. Ends with status 2 for a bad command."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, flags = make_parser().parse_known_args(words)
    from qwenvl.data.errors import told_to_the_user
    from qwenvl.evaluate.results import results_of
    from qwenvl.evaluate.results_table import table
    from qwenvl.run_log.log import EvaluationLog, hash_of

    with told_to_the_user(COMMAND):
        model, facts, protocol = prepared(own, flags)
        name = re.sub(r"[^\w.+-]+", "-", f"lmms-{Path(own.model).name}-on-{own.tasks}")[:120]
        folder = Path(own.output_dir or f"runs/evaluate/{name}")
        if folder.is_dir() and any(folder.iterdir()):
            raise FileExistsError(f"--output_dir {folder}: holds something already; give a folder that is new or empty")
        began, started = now(), time.perf_counter()
        found = run_tasks(model, own)
    facts["prompts_hash"] = hash_of("\x1e".join(model.prompts()))
    samples = list(samples_of(model.answered, found["samples"], facts["name"]))
    if not any(each.rewards for each in samples):
        raise SystemExit(f"{COMMAND}: no metric of these tasks has a number for each record")
    clusters = {"records": len(samples), "of": len(samples), "clusters": len({each.cluster for each in samples})}
    protocol["data"] |= clusters
    protocol["rewards"] = dict.fromkeys(samples[0].rewards, 1.0)
    log = EvaluationLog(folder)
    log.begin({"ended": None})
    log.join(samples)
    written = {
        **{"command": shlex.join(["bash", "scripts/evaluate.sh", "lmms", *words]), "models": [facts]},
        **{"controls": ["none"], "protocol": protocol, "settings_of": own.model, "began": began, "ended": now()},
        **{"left_out": [], "seconds": {facts["name"]: time.perf_counter() - started}},
        **results_of(samples, [facts["name"]], ["none"], "total", 1.0),
        "lmms_eval": {"version": LMMS_EVAL, "results": plain(found["results"]), "versions": found["versions"]},
    }
    log.write(written)
    print(table(written, folder))
    print("\n".join(["", f"by lmms-eval {LMMS_EVAL}:", *lines_of_tasks(found["results"])]))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The words and flags that are not of training."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, allow_abbrev=False)
    parser.add_argument("tasks", help="names of tasks, separated by commas")
    parser.add_argument("model", help="a checkpoint, an adapter, the folder of a run or a name on the hub")
    parser.add_argument("--limit", type=int, help="only the first so many records of each task")
    parser.add_argument("--task_folder", help="a folder with tasks of your own, as YAML files of lmms-eval")
    parser.add_argument("--output_dir", help="where everything is written [runs/evaluate/lmms-MODEL-on-TASKS]")
    return parser


def prepared(own: argparse.Namespace, flags: Sequence[str]) -> tuple[Any, Any, dict[str, Any]]:
    """The model to ask, what is known of it, and the protocol but for its data.

    Raises:
        ValueError, OSError: a flag, the model or its folder.
    """
    from qwenvl.console import settle_output
    from qwenvl.data.media.open import resolve_backend
    from qwenvl.data.options import FrameOptions, PromptOptions
    from qwenvl.data.records.parse import ReadOptions
    from qwenvl.evaluate.models import model_source
    from qwenvl.evaluate.protocol import model_facts
    from qwenvl.evaluate.settings import LMMS_GROUPS, Asking, asking_of, config_for, refuse_drawing, refuse_others
    from qwenvl.option import Options
    from qwenvl.run_log.log import installed_versions
    from scripts.lmms.model import QwenVL

    settle_output()
    refuse_others(flags, Options, LMMS_GROUPS)
    refuse_drawing(flags)
    if "--format" in flags:
        raise ValueError("--format has no effect: the tasks bring their questions; leave it out")
    known = model_source(own.model)
    config = config_for(known, flags)
    # Tasks bring their own requests for an answer. Only the spaces around media are those of training.
    framing = replace(asking_of(known, config, flags).framing, kinds=(), system=None)
    model = QwenVL(config, Asking(ReadOptions.of(config), framing, own.model))
    # The hash of the prompts is set once the tasks have asked.
    facts = model_facts(known, config, model.collator) | {"name": Path(known.path).name}
    protocol = {
        "data": {"dataset_use": f"lmms-eval {own.tasks}", "cluster_by": "clips and images"},
        "decoding": {
            **{"method": "greedy", "samples": 1, "max_new_tokens": config.generation_max_length},
            "repetition_penalty": config.generation_repetition_penalty,
            "stop_strings": list(config.stop_strings or ()),
        },
        "frames": asdict(FrameOptions.of(config)),
        "prompts": asdict(PromptOptions.of(config)),
        "decoder": resolve_backend(config.video_backend),
        "passes": {"by": "total", "at": 1.0},
        "seed": config.seed,
        "settings": {},
        "versions": installed_versions(),
    }
    return model, facts, protocol


def run_tasks(model: Any, own: argparse.Namespace) -> dict[str, Any]:
    """The results of lmms-eval for the model's answers: numbers of tasks, and each record with its metrics.

    Raises:
        ValueError: a task that lmms-eval does not know.
    """
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    manager = TaskManager("WARNING", include_path=own.task_folder, model_name="qwenvl")
    names = own.tasks.split(",")
    if unknown := [name for name in names if not manager.match_tasks([name])]:
        raise ValueError(f"lmms-eval {LMMS_EVAL} has no task {unknown[0]}; a task of your own needs --task_folder")
    return simple_evaluate(
        model, tasks=names, limit=own.limit, log_samples=True, task_manager=manager, verbosity="WARNING"
    )


def samples_of(answered: Sequence[Any], found: Mapping[str, Sequence[Mapping[str, Any]]], model: str) -> Iterator[Any]:
    """The answers with what lmms-eval's metrics gave each, as lines of ``samples.jsonl``.

    The total of a record is the mean of those metrics that are a number for each record.
    """
    from qwenvl.run_log.log import AS_IT_IS, EvaluationSample, hash_of

    scored = {(task, row["doc_id"]): row for task, rows in found.items() for row in rows}
    names = list(dict.fromkeys(name for row in scored.values() for name in metrics_of(row)))
    for number, each in enumerate(answered):
        row, line = each.row(), scored[each.task, each.doc_id]
        values, doc = metrics_of(line), plain(line.get("doc") or {})
        where = f"{each.task}[{each.doc_id}]"
        yield EvaluationSample(
            **{"model": model, "control": AS_IT_IS, "doc_id": number, "sample": 0, "record_id": where, "where": where},
            dataset=each.task,
            cluster=next(iter([*(clip.path for clip in row.clips), *row.images]), where),
            prompt=row.prompt,
            target=str(line.get("target", "")),
            completion=row.completion,
            answer=each.given,
            tokens=row.tokens,
            prompt_tokens=int(each.batch.attention_mask.sum()),
            finish_reason=row.finish_reason,
            rewards={name: values.get(name) for name in names},
            total=sum(values.values()) / len(values) if values else None,
            clips=row.clips,
            images=row.images,
            doc_hash=hash_of(doc),
            doc=doc,
        )


_OF_LMMS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "doc_hash", "prompt_hash", "target_hash"}


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a record that are a number, or an object with a number as its ``score``."""
    found = {}
    for name, value in row.items():
        value = value.get("score") if isinstance(value, Mapping) else value
        if name not in _OF_LMMS and isinstance(value, (bool, int, float)) and math.isfinite(value):
            found[name] = float(value)
    return found


def lines_of_tasks(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The numbers that lmms-eval itself makes of each task."""
    for task, values in results.items():
        for name, value in values.items():
            if isinstance(value, (int, float)) and "stderr" not in name and math.isfinite(value):
                yield f"  {task}: {name.split(',')[0]} {value:.4f}"


def plain(value: Any) -> Any:
    """A value that JSON can hold. Pictures and other objects become their names."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__


def now() -> str:
    """The time, as evaluations have it."""
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")


if __name__ == "__main__":
    raise SystemExit(main())
