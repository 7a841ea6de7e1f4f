"""CPU seconds and memory of opening a data set, for each kind of file (Linux).

    python scripts/bench/records.py                              # 20,000 records of each kind
    python scripts/bench/records.py --records 1000000            # 1 GB of disk, 10 minutes of CPU

Each measurement is a process of its own:

    start         what a run does before its first step, with default flags
    load          all records become a list, as of files up to 512 MB
    stream        the file is opened for random access, with an empty cache folder; reads: 1,000 records afterwards
    again         the same, with the cache folder of the first opening

Memory is the peak of the resident set over what the process held before, mapped files included.
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
from random import Random

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


def measure(path: Path, how: str) -> dict[str, float]:
    """One of the measurements, in this process."""
    if how == "start":
        from qwenvl.data.dataset import load_dataset
        from qwenvl.data.order import EpochSampler
        from qwenvl.rewards.resolve import build_rubric

        check = build_rubric().check_record
        before, began = peak_mb(), time.process_time()
        records = load_dataset(str(path), check_record=check)
        next(iter(EpochSampler(records.parts)))
    else:
        from qwenvl.data.records import record_file
        from qwenvl.data.records.catalog import DatasetSource

        if path.suffix == ".parquet":
            import pyarrow.parquet  # noqa: F401 (loading the library is not what is measured)
        source = DatasetSource(path.name, path, path.parent)
        record_file.LOADED_BYTES = record_file.LOADED_RECORDS = 2**62 if how == "load" else -1
        before, began = peak_mb(), time.process_time()
        records = record_file.RecordFile(source, seed=0).load()
    opened = time.process_time()
    if how == "stream":
        for index in Random(0).sample(range(len(records)), min(1000, len(records))):
            assert records[index].id == f"clip_{index}"
    read = time.process_time() - opened
    return {"records": len(records), "open": opened - began, "read": read, "memory": peak_mb() - before}


def peak_mb() -> float:
    """The largest resident set so far, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def child(path: Path, how: str, count: int) -> dict[str, float]:
    """One of the measurements in a fresh process."""
    command = [sys.executable, __file__, "--measure", str(path), "--how", how]
    environment = os.environ | {"QWENVL_CACHE": str(path.parent / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    found = json.loads(done.stdout)
    assert found["records"] == count
    return found


def show(kind: str, folder: Path, count: int, only_start: bool) -> None:
    """One line of the table."""
    path, cache = folder / f"bench.{kind}", folder / "cache"
    write(path, count)
    found = {}
    for how in ["start"] if only_start else ["start", "load", "stream", "again"]:
        if how != "again":
            shutil.rmtree(cache, ignore_errors=True)
        found[how] = child(path, "stream" if how == "again" else how, count)
    cells = [f"{each['open']:.2f} s, {each['memory']:,.0f} MB" for each in found.values()]
    if not only_start:
        copies = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / 2**20
        cells += [f"{found['again']['read']:.2f} s", f"{copies:,.0f} MB"]
    print(f"| {kind}, {path.stat().st_size / 2**20:,.0f} MB | {' | '.join(cells)} |", flush=True)
    path.unlink()
    shutil.rmtree(cache, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records in each file (20000)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of file (all)")
    parser.add_argument("--folder", type=Path, help="where the files are written (a temporary folder)")
    parser.add_argument("--only_start", action="store_true", help="measure the start of a run alone")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--how", default="load", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure, args.how)))
        return
    names = ["start"] if args.only_start else ["start", "load", "stream", "again", "1,000 reads", "copies"]
    print(f"{args.records:,} records; python {sys.version.split()[0]}")
    print(f"| kind | {' | '.join(names)} |\n|---" + "|---" * len(names) + "|")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        (Path(folder) / "clips").mkdir()
        for i in range(CLIPS):
            (Path(folder) / "clips" / f"{i}.mp4").touch()
        for kind in args.kinds:
            show(kind, Path(folder), args.records, args.only_start)


if __name__ == "__main__":
    main()
