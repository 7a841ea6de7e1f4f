"""Everything that only a GPU can tell, in one call of ten minutes.

    python scripts/bench/gpu/all.py --out runs/gpu                  # on a machine with a GPU
    python scripts/bench/gpu/all.py --out runs/gpu --rehearse       # tiny models on the CPU, to try the script

It runs the tests that need a GPU, compares the fast paths with the plain ones in bfloat16, and measures steps at real
sizes, decoding, attention, waits and long video, each part in a process of its own with a time limit. A part that fails
or takes too long is written down as such, and the others go on. It needs PyTorch, transformers, peft and pytest, and no
weights or data. The folder gets `report.md` (the tables), `results.jsonl` (their rows), `log.txt` (what was printed)
and `profiles/`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Part:
    """One command.

    Attributes:
        name: of the part.
        command: arguments after ``python``. Those with ``/`` in front are files beside this one.
        limit: seconds.
        measures: it takes the options that all measuring parts have.
    """

    name: str
    command: tuple[str, ...]
    limit: int
    measures: bool = True


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--maxfail=20")

PARTS = (
    Part("tests", (*PYTEST, "-m", "gpu", "tests/model"), 60, measures=False),
    Part("exact", ("/exact.py", "--models", "3b", "qwen3_vl_4b", "qwen3_5_4b", "--case", "500,4,64"), 90),
    Part("exact_flash", ("/exact.py", "--models", "3b", "--attention", "flash_attention_2", "--no_gradients"), 40),
    Part("parity_7b", ("/exact.py", "--models", "7b", "--no_gradients", "--case", "2000,8,64"), 40),
    Part("phases_3b", ("/phases.py", "--cases", "2000,8,256", "8000,8,256", "16000,16,256", "--plain"), 150),
    Part("decoding", ("/decoding.py", "--models", "3b", "qwen3_5_4b", "--case", "2000,8,128"), 120),
    Part("waits", ("/waits.py", "--case", "2000,8,32"), 40),
    Part("long_video", ("/phases.py", "--lora", "--cases", "16000,8,256", "64000,8,256", "256000,8,256"), 150),
    Part("attention", ("/attention.py", "--cases", "2000,8,256", "16000,16,256"), 60),
    Part("phases_others", ("/phases.py", "--model", "qwen3_vl_4b", "--cases", "2000,8,256", "--plain"), 40),
    Part("phases_linear", ("/phases.py", "--model", "qwen3_5_4b", "--cases", "2000,8,256", "--plain"), 60),
    Part("tests_on_device", (*PYTEST, "tests/model", "tests/rollout"), 120, measures=False),
    Part("phases_7b", ("/phases.py", "--model", "7b", "--lora", "--cases", "2000,8,256", "8000,8,256", "--plain"), 60),
)
"""In the order of their worth: the last ones are left out where time runs short."""

REHEARSED = {
    "exact": ("/exact.py", "--models", "tiny_qwen2_5_vl", "tiny_qwen3_5", "--case", "200,2,4"),
    "exact_flash": ("/exact.py", "--models", "tiny_qwen2_5_vl", "--attention", "flash_attention_2", "--no_gradients"),
    "parity_7b": ("/exact.py", "--models", "tiny_qwen3_vl", "--no_gradients", "--case", "200,2,4"),
    "phases_3b": ("/phases.py", "--model", "tiny_qwen2_5_vl", "--cases", "200,2,4", "--plain"),
    "decoding": ("/decoding.py", "--models", "tiny_qwen2_5_vl", "--case", "200,2,16", "--ways", "plain", "compiled"),
    "waits": ("/waits.py", "--model", "tiny_qwen2_5_vl", "--case", "200,2,4"),
    "long_video": ("/phases.py", "--model", "tiny_qwen2_5_vl", "--lora", "--cases", "400,2,4"),
    "attention": ("/attention.py", "--cases", "200,2,4", "--heads", "2,1,32"),
    "phases_others": ("/phases.py", "--model", "tiny_qwen3_vl", "--cases", "200,2,4", "--plain"),
    "phases_linear": ("/phases.py", "--model", "tiny_qwen3_5", "--cases", "200,2,4", "--plain"),
    "phases_7b": ("/phases.py", "--model", "tiny_qwen2_5_vl", "--lora", "--cases", "200,2,4", "--plain"),
}
"""The same parts with tiny models."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder, made where it is missing")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts together")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="only these")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results, end = options.out / "results.jsonl", time.monotonic() + 60 * options.minutes
    results.write_text("", encoding="utf-8")
    ends = {}
    with (options.out / "log.txt").open("w", encoding="utf-8") as log:
        for part in PARTS:
            if options.parts and part.name not in options.parts:
                continue
            limit = end - time.monotonic()  # a rehearsal may be slow
            ends[part.name] = run(part, options, log, limit if options.rehearse else min(part.limit, limit))
            print(f"{part.name}: {ends[part.name]}", flush=True)
            # The report of what is done so far is there if this is cut short.
            (options.out / "report.md").write_text(report(ends, results), encoding="utf-8")
    print((options.out / "report.md").read_text(encoding="utf-8"))


def run(part: Part, options: argparse.Namespace, log, limit: float) -> str:
    """Runs a part, and says in a few words how it ended."""
    if limit < 5:
        return "left out: no time was left"
    command = REHEARSED.get(part.name, part.command) if options.rehearse else part.command
    command = tuple(str(HERE / word[1:]) if word.startswith("/") else word for word in command)
    if part.measures:
        command += ("--results", str(options.out.resolve() / "results.jsonl"))
        command += ("--device", "cpu", "--repeats", "1") if options.rehearse else ()
    if part.name == "waits":
        command += ("--profiles", str(options.out.resolve() / "profiles"))
    log.write(f"\n$ python {' '.join(command)}\n")
    log.flush()
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    if part.name == "tests_on_device":
        environment["QWENVL_TEST_DEVICE"] = "cpu" if options.rehearse else "cuda"
    start = time.monotonic()
    try:
        ended = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"cut off after {limit:.0f} s"
    seconds = time.monotonic() - start
    return f"done in {seconds:.0f} s" if not ended.returncode else f"failed after {seconds:.0f} s, see log.txt"


def report(ends: dict[str, str], results: Path) -> str:
    """The tables as Markdown."""
    lines = [f"# {device_name()}", "", *table([{"part": name, "end": text} for name, text in ends.items()])]
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    for part in dict.fromkeys(row["part"] for row in rows):
        of_part = [row for row in rows if row["part"] == part]
        lines += ["", f"## {part}", "", *table([{n: v for n, v in row.items() if n != "part"} for row in of_part])]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows with the names of all of them as columns. What a row does not have is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["" if row.get(name) is None else str(row[name]).replace("|", "/") for name in names] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in (names, ["---"] * len(names), *cells)]


def device_name() -> str:
    """The card and the versions, asked for in another process: this one leaves the device alone."""
    code = (
        "import torch, transformers; c = torch.cuda; print(c.get_device_name() if c.is_available() else 'CPU', "
        "'· torch', torch.__version__, '· transformers', transformers.__version__)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown device"


if __name__ == "__main__":
    main()
