"""Writes docs/rewards.md from the docstrings of the reward functions: ``python scripts/make_rewards_doc.py``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qwenvl.rewards.table import BY_FLAG, TABLE, Entry  # noqa: E402 (works without an installed package)

HEAD = """# Rewards

Made from the docstrings in `qwenvl/rewards/` by `python scripts/make_rewards_doc.py`; a test keeps it true.

A reward function takes completions and gives each a number. A run names its functions and their weights; the total of
a completion is the weighted sum, and the parts are logged as `reward/<name>`. Without a choice a run scores with
`format` (weight 0.3) and `accuracy` (0.7).

## Choosing

| flag | meaning |
|---|---|
| `--reward_funcs a "b(limit=9)"` | names of the table below, of plugins, `package.module:name` or `file.py:name` |
| `--reward_weights 1 0.5 2` | one for each; without it each counts 1 |
| `--external_plugins file.py` | files whose functions carry `@reward("name")` |
| `--reward_model PATH` | reward models, appended after the functions, their weights last in `--reward_weights` |
| `--reward_aggregation` | `sum`, or `normalize_then_sum` (below) |
| `--reward_timeout` | seconds that one call may take |
| `--reward_workers` | processes for functions marked `cpu_heavy`, and for `math_accuracy` |
| `--on_reward_error` | `error` (stop) or `skip` |
| `--response_format` | the form that `format` and `strict_format` expect |

Arguments are given in brackets: `--reward_funcs accuracy "cosine(max_len=512)"`. Their values are numbers, texts in
quotes, `True`, `False` and `None` (the default). `GRPOTrainer(..., reward_funcs=[...])` takes the same texts, and a
settings file also a mapping:

```yaml
reward_funcs:
  - accuracy
  - cosine: {max_len: 512, correctness_func: numeric}
```

Below and in `qwenvl rewards list` each function has its arguments with default, unit and bounds. A default that is
written as a flag is the value of that flag. `correctness_func` is a reward by name, itself with arguments or without:
`"cosine(correctness_func='numeric(tolerance=0.01)')"`.

A record may choose for itself: its field `reward`, a name or a list of names, routes it to these functions, and the
others do not apply to it. A row that no function scores is an error.

With `normalize_then_sum` each function's values are centred on the group's mean and divided by its standard deviation
before they are weighed, so that a function with a wide range does not drown the others.

```console
$ qwenvl rewards list
$ qwenvl rewards try accuracy --completion "<answer>(1) (3)</answer>" --solution "(1) (2)"
accuracy: 0.333333
$ qwenvl rewards try countdown --completion "<answer>(7 - 3) * 6</answer>" --field nums=[3,6,7] --field target=24
countdown: 1
```

## Temporal contrast

`--temporal_contrast` tests whether an answer needed the order of the frames. Each video prompt is answered a few more
times (`--temporal_contrast_share` of the group) with its frames in random order. Where the ordered group's mean of
`--correctness_func` exceeds the shuffled one's by more than `--temporal_contrast_margin`, its correct completions get
`--temporal_contrast_bonus` on top of their total, logged as `reward/temporal_contrast`; others get 0, prompts without
video none, nor does a record whose field `reward` names other functions. It costs the sampling of the second group and
one more run of the vision tower, and cannot be combined with `--async_rollouts`.

## Your own

```python
# my_rewards.py
from qwenvl.rewards import reward


@reward("brief")
def brief(completions, *, limit=200, **columns):
    return [1.0 if len(text) < limit else 0.0 for text in completions]
```

`--external_plugins my_rewards.py --reward_funcs accuracy "brief(limit=100)" --reward_weights 1 0.2`, or in a script
`GRPOTrainer(..., reward_funcs=["accuracy", brief])`.

Its arguments are the keyword-only parameters with a default, as `limit` here; those of a class are the parameters of
its `__init__`. An argument that is not given takes the column of its name, if the records have one. With
`limit: Annotated[int, Argument("Longest text.", "characters", least=1)] = 200` (`from qwenvl.rewards import Argument`)
a value of another type or out of bounds is refused before the run begins, and no column is read.

A function is called once for all rows that are its own and returns one value for each: a number, or None where it does
not apply. It gets the columns that its signature names, all of them with `**columns`:

| column | one value per completion |
|---|---|
| `completions` | the text |
| `solution` | the last gpt turn of the record |
| `prompts` | the messages before it, `[{"role": ..., "content": ...}]` |
| `completion_ids`, `finish_reasons` | token ids without padding; `stop` or `length` |
| `opened_think` | whether the prompt ends inside a think block, as those of thinking checkpoints do |
| `image_paths`, `video_paths` | the record's media, as paths |
| every field of the record | as it stands in the file; None where a record lacks it |
| `trainer_state`, `log_metric` | not per completion: the Trainer's state; `log_metric(name, number)` adds to the log |

- `async def` functions run together under one event loop; plain ones run one after another, in the trainer's thread,
  or in a thread of their own where `--reward_timeout` is set.
- `@reward("name", cpu_heavy=True)` with `--reward_workers` runs a function in worker processes, one completion at a
  time; with a timeout a completion that hangs costs its own process only.
- A method or attribute `check(solution, fields)` may say in a sentence why a record cannot be scored; it is asked when
  the data is read, so that a run does not find out on its last day.
- A function that raises, or gives NaN, infinity or something that is no number, stops the run with its name, the line
  of your file, the record and the completion. `QWENVL_TRACEBACK=1` before the command shows the whole traceback.
  With `--on_reward_error skip` the value becomes None and is counted (`reward/<name>/skipped`).
  Above 5 % of a function's last 1,000 rows the run stops anyway.
- `sys.exit` and `os._exit` in a function are failures like any other exception: neither ends the run. Only a function
  that imported `os._exit` under a name of its own, or C code, can still end the process.
- A function gets copies of its columns and of `trainer_state`. What it changes in them is seen by no other function.
- `math_accuracy` bounds how long it computes for one pair. A pair beyond the bound has no value (None), is named in the
  log, and is counted in `reward/math_accuracy/unfinished`.
- A completion that no function gave a value has no reward. Its group is compared without it: it counts in no mean and
  no standard deviation, its advantage is 0, and its row in the run folder has the total `null`. In a group with fewer
  than two rewards every advantage is 0. Evaluation leaves such completions out. Where none is left it has no metrics
  and a warning, or ends the run if `--metric_for_best_model` needs one.
- `total`, `std`, `max` and `temporal_contrast` are the run's own metrics: no function can have one of these names.

## Functions written for other libraries

- **TRL, ms-swift**: functions and classes with `__call__(self, completions, **kwargs)` run unchanged:
  `--reward_funcs their_file.py:accuracy_reward`. A completion reads as text and as TRL's list of one message
  (`completion[0]["content"]`). A class is made with the arguments in brackets. Of a file for ms-swift,
  leave out the lines that import or register with swift, unless it is installed.
- **verl**: `--reward_funcs verl:their_file.py:compute_score`, or `adapt_verl(compute_score)` in a script.
  `ground_truth` is the record's field of that name, else `reward_model["ground_truth"]`, else the solution; a dict's
  other numbers are logged.

## The table

What a model writes is never executed, and reading it takes linear time: an answer longer than 10,000 characters scores
as if it were not there. The *answer* is the inside of the first `<answer>...</answer>` of the completion; without one
the answer is missing. The solution is compared by its own answer block, or whole where it has none. In both, full-width
forms and other compatibility characters are read as plain ones (NFKC): （1） is (1). Superscripts, subscripts and
fractions stay as they are: x² is not x2. Functions marked * need `pip install "qwenvl[rewards]"`.
"""

BY_FLAG_HEAD = """Two rewards are set by a flag of their own, and not among `--reward_funcs`:
"""

EXTRA = {"action_order", "math_accuracy", "ocr", "rouge", "box_iou", "box_giou"}


def page() -> str:
    """The whole text of docs/rewards.md."""
    parts = [HEAD, *overview(TABLE), "", BY_FLAG_HEAD, *overview(BY_FLAG, "--")]
    for name, entry in (TABLE | BY_FLAG).items():
        parts += ["", f"### {name}", "", escaped(entry.rule.split("\n\nArgs:")[0])]
        if own := entry.arguments():
            parts += ["", "| argument | default | meaning |", "|---|---|---|"]
            parts += [f"| `{argument}` | `{default}` | {escaped(text)} |" for argument, default, text in own]
    return "\n".join(parts) + "\n"


def overview(entries: Mapping[str, Entry], prefix: str = "") -> list[str]:
    """Lines of a table with one row for each entry."""
    lines = [f"| {'flag' if prefix else 'name'} | range | rule |", "|---|---|---|"]
    for name, entry in entries.items():
        mark = "*" if name in EXTRA else ""
        lines.append(f"| [`{prefix}{name}`](#{name}){mark} | {span(entry)} | {escaped(entry.summary)} |")
    return lines


def span(entry: Entry) -> str:
    """The range of the values."""
    return "any number" if math.isinf(entry.high) else f"{entry.low:g} to {entry.high:g}"


def escaped(text: str) -> str:
    """A docstring as Markdown. What looks like a tag outside of code is shown as it is."""
    outside = text.replace("``", "`").split("`")
    outside[::2] = [part.replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*") for part in outside[::2]]
    return "`".join(outside)


if __name__ == "__main__":
    (ROOT / "docs" / "rewards.md").write_text(page(), encoding="utf-8")
