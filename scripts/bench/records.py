"""CPU seconds and memory of opening a data set, for each kind of file (Linux).

    python scripts/bench/records.py                              # 20,000 records of each kind
    python scripts/bench/records.py --records 1000000            # 1 GB of disk, 10 minutes of CPU

What a run does before its first step, with default flags, each time in a process of its own. Memory is the peak of the
resident set over what the process held before, mapped files included.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("jsonl", "json", "csv", "parquet")
CLIPS = 1000


def rows(count: int) -> Iterator[dict[str, str]]:
    """Records of the prompt form, about 280 bytes each, with a clip that many share."""
    steps = "(1) insert the fan (2) fasten the screw (3) take the lid (4) press the lid on (5) put the unit aside"
    for i in range(count):
        yield {
            "id": f"clip_{i}",
            "prompt": f"<video>Which of these steps does clip {i} of the station show, in their order? {steps}",
            "solution": f"<answer>({i % 5 + 1}) as listed</answer>",
            "station": f"line {i % 7}",
            "video": f"clips/{i % CLIPS}.mp4",
        }


def write(path: Path, count: int) -> None:
    """A file of the kind that its name says."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(rows(count))), path, row_group_size=100_000)
        return
    with open(path, "w") as file:
        if ".csv" in path.suffixes:
            writer = csv.DictWriter(file, list(next(rows(1))))
            writer.writeheader()
            writer.writerows(rows(count))
            return
        lines = ".jsonl" in path.suffixes
        file.write("" if lines else "[")
        for i, row in enumerate(rows(count)):
            file.write(("" if lines or not i else ",\n") + json.dumps(row) + "\n" * lines)
        file.write("" if lines else "]\n")


def measure(path: Path) -> dict[str, float]:
    """Open a data set in this process, and draw the order of its first epoch."""
    from qwenvl.data.dataset import load_dataset
    from qwenvl.data.order import EpochSampler
    from qwenvl.rewards.resolve import build_rubric

    check = build_rubric().check_record
    before, began = peak_mb(), time.process_time()
    records = load_dataset(str(path), check_record=check)
    next(iter(EpochSampler(records.parts)))
    return {"records": len(records), "open": time.process_time() - began, "memory": peak_mb() - before}


def peak_mb() -> float:
    """The largest resident set so far, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def show(kind: str, folder: Path, count: int) -> None:
    """One line of the table."""
    path, cache = folder / f"bench.{kind}", folder / "cache"
    write(path, count)
    command = [sys.executable, __file__, "--measure", str(path)]
    done = subprocess.run(command, env=os.environ | {"QWENVL_CACHE": str(cache)}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    found = json.loads(done.stdout)
    assert found["records"] == count
    size = path.stat().st_size / 2**20
    print(f"| {kind}, {size:,.0f} MB | {found['open']:.2f} s, {found['memory']:,.0f} MB |", flush=True)
    path.unlink()
    shutil.rmtree(cache, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records in each file (20000)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of file (all)")
    parser.add_argument("--folder", type=Path, help="where the files are written (a temporary folder)")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure)))
        return
    print(f"{args.records:,} records; python {sys.version.split()[0]}\n| kind | start |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        (Path(folder) / "clips").mkdir()
        for i in range(CLIPS):
            (Path(folder) / "clips" / f"{i}.mp4").touch()
        for kind in args.kinds:
            show(kind, Path(folder), args.records)


if __name__ == "__main__":
    main()
