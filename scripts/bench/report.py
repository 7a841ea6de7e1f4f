"""How long a report of 100,000 completions takes to write and to open.

    python scripts/bench/report.py [--groups 12500] [--size 8] [--folder DIR]

Makes a run folder of that many rollouts, writes its report, and opens the page from the disk in a headless Chromium if
one is found: until the curves and the first group stand there, until a jump and a deep link do, and until a search of
all texts is done.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from qwenvl.doctor.report import make_report  # noqa: E402
from qwenvl.runlog import Rollout, RunLog, SeenClip  # noqa: E402
from tests.chromium import Page, find_chromium  # noqa: E402

WORDS = re.findall(r"\w+", "the hand takes a screw and puts it into board then driver turns fan cable cover is plugged")
PROMPTS = 16  # of a step
RECORDS = 3000


def main() -> None:
    """Make, write, open, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--groups", type=int, default=12500)
    parser.add_argument("--size", type=int, default=8, help="completions of a group")
    parser.add_argument("--folder", type=Path, help="keep the run and its report there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = args.folder or Path(temporary) / "run"
        make_run(folder, args.groups, args.size)
        started = time.perf_counter()
        written = make_report([folder], folder / "report")
        print(f"{args.groups * args.size:,} completions written as a report in {time.perf_counter() - started:.1f} s")
        files = [path for path in written.folder.rglob("*") if path.is_file()]
        print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB")
        if (program := find_chromium()) is None:
            print("no Chromium found: not opened")
            return
        measure(program, Path(temporary) / "chromium", written.page)


def measure(program: str, profile: Path, path: Path) -> None:
    """Open the page and print the seconds of each."""
    page = Page(program, profile)
    page.show(1280)
    group = "document.querySelector('#group article')"
    for name in ("opened, curves and first group", "opened again"):
        started = time.perf_counter()
        page.open(path.as_uri())
        page.wait(f"{group} !== null && document.querySelector('.chart svg') !== null")
        print(f"{name}: {time.perf_counter() - started:.2f} s")
    started = time.perf_counter()
    page.open(path.as_uri() + "#step=400&id=r-1234")
    page.wait(f"{group} !== null || document.querySelector('#count').textContent.includes('names no')")
    print(f"a deep link: {time.perf_counter() - started:.2f} s")
    started = time.perf_counter()
    page.run("report.list.filters.jump = 'worst', report.list.chosen = null, report.list.apply()")
    print(f"a jump: {time.perf_counter() - started:.2f} s")
    page.run("document.querySelector('#clear').click()")
    started = time.perf_counter()
    page.run("(q => { q.value = 'needle'; q.dispatchEvent(new Event('input')); })(document.querySelector('#filter-q'))")
    page.wait("report.list.filters.q === 'needle' && document.querySelector('#count').textContent.startsWith('5 of')")
    print(f"all texts searched: {time.perf_counter() - started:.2f} s; errors of the page: {page.errors}")
    page.close()


def make_run(folder: Path, groups: int, size: int) -> None:
    """A run folder like that of a long run: texts of 100 words, clips of 8 frames, five texts with a needle."""
    rng = random.Random(0)
    log = RunLog(folder)
    log.write_config({"learning_rate": 1e-6})
    needles = set(rng.sample(range(groups), 5))
    for first in range(0, groups, PROMPTS):
        step = first // PROMPTS + 1
        numbers = range(first, min(first + PROMPTS, groups))
        log.log_rollouts(row for n in numbers for row in group(rng, step, n, size, n in needles))
        log.log_metrics(step, {"loss": rng.random(), "reward/total": rng.random(), "time/sample_s": rng.random()})
    log.finish((groups - 1) // PROMPTS + 1)


def group(rng: random.Random, step: int, n: int, size: int, needle: bool) -> list[Rollout]:
    """One group of made-up completions."""
    record = n * 7919 % RECORDS
    clip = SeenClip(f"/clips/{record}.mp4", tuple(range(0, 80, 10)), tuple(k * 0.5 for k in range(8)), (0, 1) * 4)
    question = {"role": "user", "text": "<video>\nWhich steps are shown?\n" + " ".join(WORDS) * 3}
    rows = []
    for sample in range(size):
        right = rng.random()
        text = " ".join(rng.choices(WORDS, k=100)) + (" needle" if needle and not sample else "")
        answer = f"({rng.randint(1, 9)}) insert the fan ({rng.randint(1, 9)}) fasten the screw"
        rows.append(
            Rollout(
                step=step,
                record_id=f"r-{record}",
                sample=sample,
                prompt=(question,),
                solution="<answer>(2) insert the fan (4) fasten the screw</answer>",
                completion=f"<think>{text}</think><answer>{answer}</answer>",
                tokens=130,
                finish_reason="stop",
                rewards={"format": 1.0, "accuracy": right},
                total=0.3 + 0.7 * right,
                advantage=right - 0.5,
                clips=(clip,),
                epoch=n // RECORDS,
                where=f"data/sop.json[{record}]",
            )
        )
    return rows


if __name__ == "__main__":
    main()
