"""The pictures of the documentation, of finished runs.

    qwenvl demo && python scripts/pictures.py runs/demo
    python scripts/pictures.py --looks runs/look   # of any run with --tools look
    python scripts/pictures.py --timelines runs/demo_timeline   # of qwenvl demo --timeline

It makes the pages of the runs again, opens them in a headless Chromium, and writes parts of them into docs/pictures.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from qwenvl.cli import main as qwenvl
from qwenvl.run_log.log import Rollout, read_evaluation, read_rollouts, read_samples
from tests.chromium import Page, find_chromium

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
# Without what stays in view while a reader scrolls, and without paths of this machine.
PLAIN = "const plain = document.createElement('style'); document.head.append(plain); " + (
    "plain.textContent = 'nav, .bar, .left { position: static !important }"
    " .title small, h1, h2 small, h3 small { display: none }'"
)
COLORS = 128  # of a picture: files that everybody clones stay small


def main(words: list[str]) -> None:
    """Write the pictures of a demo, or that of a run with looks or of a demo with timelines."""
    if not words:
        sys.exit(__doc__)
    program = find_chromium()
    if program is None:
        sys.exit("no Chromium on this machine; apt install chromium, or name one in $CHROMIUM")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Page(program, Path(folder) / "profile")
        try:
            kinds = {"--looks": looks, "--timelines": timelines}
            kinds.get(words[0], demo)(page, Path(words[-1]), Path(folder))
        finally:
            page.close()


def demo(page: Page, folder: Path, scratch: Path) -> None:
    """The pictures of a demo."""
    preview = scratch / "preview.html"
    data = str(folder / "data" / "train.json")
    small = [f"--video_{bound}_frame_pixels=3136" for bound in ("min", "max")]
    qwenvl(["preview", data, "--n", "2", "--model", str(folder / "model"), *small, "--out", str(preview)])
    report, evaluation = (report_of(folder / name) for name in ("run", "evaluation"))
    shoot(page, report + telling_group(folder / "run"), "group", ".title", 760, parents=1)
    shoot(page, report, "report", "#learning", 1000, most=548)
    shoot(page, evaluation, "evaluation", "#scores", 940, most=600)
    shoot(page, preview.as_uri(), "preview", "body", 900, most=775)


def looks(page: Page, run: Path, scratch: Path) -> None:
    """The picture of completions that look."""
    shoot(page, report_of(run) + group_with_looks(run), "turns", ".completions", 1240, most=1100)


def timelines(page: Page, folder: Path, scratch: Path) -> None:
    """The picture of a held-out clip with its solution and the answers of both models."""
    evaluation = folder / "evaluation"
    url = report_of(evaluation) + f"#id={gained_most(evaluation)}"
    shoot(page, url, "timeline", "#group .timeline", 1000)


def gained_most(evaluation: Path) -> str:
    """The id of the record on which the last model is farthest ahead of the first."""
    models = [each["name"] for each in read_evaluation(evaluation)["models"]]
    rewards: dict[str, dict[str, float]] = {}
    for each in read_samples(evaluation).values():
        if each.control == "none" and each.total is not None:
            rewards.setdefault(each.record_id, {})[each.model] = each.total
    return max(rewards, key=lambda record: rewards[record][models[-1]] - rewards[record][models[0]])


def report_of(folder: Path) -> str:
    """The address of the page of a run or an evaluation, made anew."""
    qwenvl(["report", str(folder), "--pictures", "5000"])
    return (folder / "report" / "index.html").as_uri()


def group_with_looks(run: Path) -> str:
    """The address of the group whose completions look most often at the evidence, and of which some are right."""
    best = max(read_rollouts(run, split="train"), key=lambda each: (each.total, sum(bool(t.calls) for t in each.turns)))
    return f"#step={best.step}&id={best.record_id}"


def telling_group(run: Path) -> str:
    """The address of a group with four texts of different rewards, one of them right."""
    groups: dict[tuple[int, str], list[Rollout]] = {}
    for rollout in read_rollouts(run, split="train"):
        groups.setdefault((rollout.step, rollout.record_id), []).append(rollout)

    def fits(group: list[Rollout]) -> bool:
        totals = [each.total for each in group]
        return len({each.completion for each in group}) == 4 == len(set(totals)) and max(totals) > 0.99

    step, record = next(place for place, group in groups.items() if fits(group))
    return f"#step={step}&id={record}"


def shoot(page: Page, url: str, name: str, selector: str, width: int, *, parents: int = 0, most: int = 2000) -> None:
    """Write the picture of an element, or of one that contains it, at most ``most`` pixels high."""
    page.show(width)
    page.open(url)
    element = f"document.querySelector({selector!r})" + ".parentElement" * parents
    page.wait(f"document.querySelector({selector!r}) !== null")
    time.sleep(1.0)  # frames that are drawn when they come into view
    page.run(PLAIN)
    page.run(f"{element}.scrollIntoView()")
    time.sleep(1.0)
    box = json.loads(
        page.run(f"""(() => {{ const b = {element}.getBoundingClientRect();
        return JSON.stringify({{x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}}) }})()""")
    )
    clip = {**box, "height": min(box["height"], most), "scale": 1}
    data = page.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(data)), formats=["PNG"]).convert("RGB").quantize(COLORS)
    picture.save(PICTURES / f"{name}.png", optimize=True)
    if page.errors:
        sys.exit(f"{url}: {page.errors}")


if __name__ == "__main__":
    main(sys.argv[1:])
