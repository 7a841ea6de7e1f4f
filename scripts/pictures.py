"""The pictures of the documentation, of a finished demo: ``python scripts/pictures.py runs/demo``.

    qwenvl demo && python scripts/pictures.py runs/demo

It makes the demo's pages again, opens them in a headless Chromium, and writes parts of them into docs/pictures.
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
from qwenvl.runlog import Rollout, read_rollouts
from tests.chromium import Page, find_chromium

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
# Without what stays in view while a reader scrolls, and without paths of this machine.
PLAIN = "const plain = document.createElement('style'); document.head.append(plain); " + (
    "plain.textContent = '* { position: static !important } .title small, h1, h2 small, h3 small { display: none }'"
)
COLORS = 128  # of a picture: files that everybody clones stay small


def main(demo: Path) -> None:
    """Write all pictures."""
    program = find_chromium()
    if program is None:
        sys.exit("no Chromium on this machine; apt install chromium, or name one in $CHROMIUM")
    PICTURES.mkdir(exist_ok=True)
    report, evaluation = demo / "run" / "report" / "index.html", demo / "evaluation" / "report" / "index.html"
    with tempfile.TemporaryDirectory() as folder:
        preview = Path(folder) / "preview.html"
        data = str(demo / "data" / "train.json")
        small = [f"--video_{bound}_frame_pixels=3136" for bound in ("min", "max")]
        qwenvl(["preview", data, "--n", "2", "--model", str(demo / "model"), *small, "--out", str(preview)])
        for page in (demo / "run", demo / "evaluation"):
            qwenvl(["report", str(page), "--pictures", "5000"])
        page = Page(program, Path(folder) / "profile")
        try:
            step, record = telling_group(demo / "run")
            shoot(page, f"{report.as_uri()}#step={step}&id={record}", "group", ".title", 760, parents=1)
            shoot(page, report.as_uri(), "report", "#learning", 1000, most=620)
            shoot(page, evaluation.as_uri(), "evaluation", "#scores", 900, most=700)
            shoot(page, preview.as_uri(), "preview", "body", 900, most=760)
        finally:
            page.close()


def telling_group(run: Path) -> tuple[int, str]:
    """Step and record of a group with four texts of different rewards, one of them right."""
    groups: dict[tuple[int, str], list[Rollout]] = {}
    for rollout in read_rollouts(run, split="train"):
        groups.setdefault((rollout.step, rollout.record_id), []).append(rollout)

    def fits(group: list[Rollout]) -> bool:
        totals = [each.total for each in group]
        return len({each.completion for each in group}) == 4 == len(set(totals)) and max(totals) > 0.99

    return next(place for place, group in groups.items() if fits(group))


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
    box = json.loads(page.run(f"""(() => {{ const b = {element}.getBoundingClientRect();
        return JSON.stringify({{x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}}) }})()"""))
    clip = {**box, "height": min(box["height"], most), "scale": 1}
    data = page.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB").quantize(COLORS)
    picture.save(PICTURES / f"{name}.png", optimize=True)
    if page.errors:
        sys.exit(f"{url}: {page.errors}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
