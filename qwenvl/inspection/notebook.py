"""Shows clips and runs in a notebook: frames side by side, a curve, a group of completions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from qwenvl.data.media.open import open_clip
from qwenvl.inspection.pictures import sheet
from qwenvl.run_log.log import Rollout, read_metrics, read_rollouts
from qwenvl.run_log.report.pages import grouped
from qwenvl.run_log.report.write import data_url


class Html(str):
    """HTML that Jupyter shows as such when it is the last value of a cell or given to ``display``."""

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<{len(self):,} characters of HTML>"


def film_strip(path: str | Path, indices: Sequence[int], width: int = 120) -> Html:
    """Frames of a clip, up to eight side by side.

    Args:
        indices: the numbers of the frames in the file, from 0.
        width: the width of one frame, in pixels.
    """
    with open_clip(str(path)) as clip:
        strip = sheet(clip.read(list(indices)), width)
    return Html(f'<img alt="{len(indices)} frames" src="{data_url(strip)}">')


def curve(run: str | Path, metric: str, width: int = 420, height: int = 150) -> Html:
    """A logged number of a run's training steps: each step pale, the mean of the last five bold.

    Raises:
        ValueError: the run has not logged this metric.
    """
    rows = [row for row in read_metrics(run, split="train") if row.get(metric) is not None]
    if not rows:
        raise ValueError(f"{run}: no {metric!r} in its metrics.jsonl; name a metric that the run has logged")
    values = [row[metric] for row in rows]
    low = min(values)
    high = max(values)

    def line(numbers: Sequence[float], color: str) -> str:
        places = []
        for n, number in enumerate(numbers):
            x = 40 + (width - 50) * n / max(1, len(values) - 1)
            y = height - 20 - (height - 45) * (number - low) / ((high - low) or 1)
            places.append(f"{x:.1f},{y:.1f}")
        return f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}" stroke-width="2"/>'

    means = []  # of the last five steps
    for n in range(len(values)):
        recent = values[max(0, n - 4) : n + 1]
        means.append(sum(recent) / len(recent))
    lines = line(values, "#a9d5d0") + line(means, "teal")
    texts = [
        (5, 15, metric),
        (5, 30, f"{high:.2f}"),
        (5, height - 16, f"{low:.2f}"),
        (width - 60, height - 3, f"step {rows[-1]['step']:.0f}"),
    ]
    labels = "".join(f'<text x="{x}" y="{y}" font-size="11" fill="gray">{escape(text)}</text>' for x, y, text in texts)
    return Html(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">{labels}{lines}</svg>')


def show_group(run: str | Path, step: int) -> Html:
    """The group of a training step with the most different rewards: frames, and completions, the best first.

    Raises:
        ValueError: the run has no completions of that step.
    """
    groups = list(grouped(read_rollouts(run, step=step, split="train")))
    if not groups:
        raise ValueError(f"{run}: no completions of step {step}; name a step that the run has trained on")
    group = max(groups, key=_different_rewards)
    strips = ""
    for clip in group[0].clips:
        times = ", ".join(f"{time:.2f}" for time in clip.times)
        strips += f"<p>frames at {times} s</p>{film_strip(clip.path, clip.indices)}"
    best_first = sorted(group, key=lambda each: (each.total is None, -(each.total or 0.0)))
    cells = [(_number(each.total), _number(each.advantage, "+"), escape(each.completion)) for each in best_first]
    rows = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
    head = "<tr><th>reward</th><th>advantage</th><th>completion</th></tr>"
    solution = f"<p>step {step}, solution: {escape(group[0].solution)}</p>"
    return Html(f"{strips}{solution}<table>{head}{rows}</table>")


def _different_rewards(group: Sequence[Rollout]) -> int:
    """The number of different rewards in a group."""
    return len({rollout.total for rollout in group})


def _number(value: float | None, sign: str = "") -> str:
    """A number with two digits, empty where there is none."""
    return "" if value is None else f"{value:{sign}.2f}"
