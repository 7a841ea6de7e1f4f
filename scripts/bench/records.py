"""How long a data set takes to open and how much memory it needs, for each kind of file.

    python scripts/bench/records.py                              # 20,000 records of each kind
    python scripts/bench/records.py --records 1000000            # 1 GB of disk, 10 minutes of CPU
    python scripts/bench/records.py --kinds json csv --folder /scratch

Each measurement runs in a process of its own, which imports the library and then opens one file:

    start         what a training run does with default flags: the data set is opened, its records are checked by the
                  rewards and their clips looked for as far as that is done at the start, and the first one is drawn
    load          all records become a list, as below --stream_above_mb
    stream        the file is opened for reading at random, as above --stream_above_mb, with an empty cache folder
    stream again  the same, with the cache folder that the first opening left
    1,000 reads   records read in a random order afterwards

Times are CPU seconds of the process, which a busy machine changes little. Memory is the peak of the resident set over
what the process held before. Pages of mapped files count in it, although the system takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random

KINDS = ("jsonl", "json", "csv", "jsonl.gz", "json.gz", "parquet")
READS = 1000
CLIPS = 1000


def rows(count: int) -> Iterator[dict[str, str]]:
    """Simple records of the prompt form, about 280 bytes each, with a clip that many share."""
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
    """A file of ``count`` rows, of the kind that its name says."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(rows(count))), path, row_group_size=100_000)
        return
    with gzip.open(path, "wt", 1) if path.suffix == ".gz" else open(path, "w") as file:
        if ".csv" in path.suffixes:
            writer = csv.DictWriter(file, list(next(rows(1))))
            writer.writeheader()
            writer.writerows(rows(count))
            return
        between = "\n" if ".jsonl" in path.suffixes else ",\n"
        file.write("" if ".jsonl" in path.suffixes else "[")
        for i, row in enumerate(rows(count)):
            file.write((between if i else "") + json.dumps(row))
        file.write("\n" if ".jsonl" in path.suffixes else "]\n")


def start(path: Path) -> dict[str, float]:
    """Do in this process what a run does before its first step."""
    from qwenvl.data.dataset import load_dataset
    from qwenvl.data.order import EpochSampler
    from qwenvl.rewards.resolve import build_rubric

    check = build_rubric().check_record
    before, began = peak_mb(), time.process_time()
    dataset = load_dataset(str(path), check_record=check)
    next(iter(EpochSampler(dataset.parts)))
    return {"records": len(dataset), "open": time.process_time() - began, "memory": peak_mb() - before}


def measure(path: Path, stream: bool) -> dict[str, float]:
    """Open the file in this process and read from it."""
    from qwenvl.data.records.catalog import DatasetSource
    from qwenvl.data.records.record_file import RecordFile

    if path.suffix == ".parquet":
        import pyarrow.parquet  # noqa: F401 (loading the library is not what is measured)
    source = DatasetSource(path.name, path, path.parent)
    before, began = peak_mb(), time.process_time()
    above = -1 if stream else 2**62
    records = RecordFile(source, seed=0).load(above, above)
    opened = time.process_time()
    if stream:
        for index in Random(0).sample(range(len(records)), min(READS, len(records))):
            assert records[index].id == f"clip_{index}"
    return {
        "records": len(records),
        "open": opened - began,
        "read": time.process_time() - opened,
        "memory": peak_mb() - before,
    }


def peak_mb() -> float:
    """The largest resident set so far, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def child(path: Path, how: str, cache: Path) -> dict[str, float]:
    """One of the measurements in a fresh process."""
    command = [sys.executable, __file__, "--measure", str(path), "--how", how]
    done = subprocess.run(command, env=os.environ | {"QWENVL_CACHE": str(cache)}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr}")
    return json.loads(done.stdout)


def show(kind: str, folder: Path, count: int, only_start: bool) -> None:
    """One line of the table. The file and its copies in the cache are deleted afterwards."""
    path, cache = folder / f"bench.{kind}", folder / "cache"
    try:
        write(path, count)
        size = path.stat().st_size / 2**20
        begun = child(path, "start", cache)
        line = f"| {kind}, {size:,.0f} MB | {begun['open']:.2f} s, {begun['memory']:,.0f} MB |"
        if only_start:
            print(line, flush=True)
            return
        shutil.rmtree(cache, ignore_errors=True)
        load = child(path, "load", cache)
        shutil.rmtree(cache, ignore_errors=True)
        first, again = (child(path, "stream", cache) for _ in range(2))
        kept = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) / 2**20
    finally:
        path.unlink(missing_ok=True)
        shutil.rmtree(cache, ignore_errors=True)
    assert begun["records"] == load["records"] == first["records"] == count
    print(
        f"{line} {load['open']:.2f} s, {load['memory']:,.0f} MB "
        f"| {first['open']:.2f} s, {first['memory']:,.0f} MB | {again['open']:.2f} s, {again['memory']:,.0f} MB "
        f"| {again['read']:.2f} s | {kept:,.0f} MB |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records in each file (20000)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of file (all)")
    parser.add_argument("--folder", type=Path, help="where the files are written (a temporary folder)")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only_start", action="store_true", help="measure the start of a run alone")
    parser.add_argument("--how", default="load", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(start(args.measure) if args.how == "start" else measure(args.measure, args.how == "stream")))
        return
    print(f"{args.records:,} records; python {sys.version.split()[0]}" + "".join(map(versioned, ("numpy", "pyarrow"))))
    if args.only_start:
        print("| kind | start |\n|---|---|")
    else:
        print(f"| kind | start | load | stream | stream again | {READS:,} reads | cache |")
        print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        (Path(folder) / "clips").mkdir()
        for i in range(CLIPS):
            (Path(folder) / "clips" / f"{i}.mp4").touch()
        for kind in args.kinds:
            show(kind, Path(folder), args.records, args.only_start)


def versioned(name: str) -> str:
    """``, name version``. Nothing where the package is not installed."""
    try:
        return f", {name} {version(name)}"
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
