"""Writes docs/flags.md from the dataclasses that define the flags: ``python scripts/make_flags_doc.py``."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qwenvl.config.flags import FLAG_GROUPS, arguments, describe  # noqa: E402 (works without an installed package)
from qwenvl.config.unknown import SUCCESSORS  # noqa: E402
from qwenvl.train.warmup.config import WarmupOptions  # noqa: E402

HEAD = """# Flags

Made from the options of the rooms (`qwenvl/*/options.py`) by `python scripts/make_flags_doc.py`; a test keeps it true.

`python qwenvl/train/train_grpo.py`, `qwenvl train` and `scripts/train_grpo.sh` take these flags, and so does
`GRPOConfig(...)` in a script. All [TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer)
of transformers are flags too, with the defaults they have there, except for those in the table of the Trainer below. A
value out of range is an error that names the range; a flag that would have no effect beside the others is an error that
says why. `qwenvl warmup` takes those on the model, the data and the Trainer, and its own, in a table below.

A settings file sets the same names, in YAML or JSON, given as the first argument or by `--config`; flags override it:

```yaml
# run.yaml
model_name_or_path: Qwen/Qwen3.5-4B
dataset_use: data/sop.json
learning_rate: 1e-6
grpo_sample_size: 8
```

```bash
python qwenvl/train/train_grpo.py run.yaml --max_steps 100
```

Some values are rows with arguments, as a function is called: `--loss_type "grpo(delta=4, dual_clip=3)"`, in a file
`loss_type: grpo(delta=4)` or `loss_type: {grpo: {delta: 4}}`. Tables below have the arguments.

Truth values are written `--tune_mm_llm False`, `--no_tune_mm_llm` or `--tune_mm_vision`. Relative paths, in the file
too, start at the working directory.
"""
KINDS = {"str": "text", "int": "integer", "float": "number", "bool": "True, False"}


def page() -> str:
    """The whole text of docs/flags.md."""
    parts = [HEAD]
    for group in (*FLAG_GROUPS, WarmupOptions):
        rows = []
        for name, kind, default, text in describe(group):
            rows.append(f"| `{name}` | {values(kind)} | {shown(default)} | {text.replace('<', '&lt;')} |")
        title = group.__doc__.rstrip(".")
        parts += [f"## {title}\n", "| flag | values | default | meaning |", "|---|---|---|---|", *rows, ""]
        parts += of_rows(group)
    parts += ["## Names from elsewhere\n", "| there | here |", "|---|---|"]
    parts += [f"| `{old}` | {new} |" for old, new in SUCCESSORS.items()]
    return "\n".join(parts) + "\n"


def of_rows(group: type) -> list[str]:
    """The table of the arguments that values of a group's flags can have in brackets."""
    rows = [
        f"| `{each.name}` | {names} | `{name}` | {values(kind)} | {shown(default)} | {text} |"
        for each in fields(group)
        for names, arguments_of in arguments(each).items()
        for name, kind, default, text in describe(arguments_of)
    ]
    if not rows:
        return []
    head = ["| flag | of | argument | values | default | meaning |", "|---|---|---|---|---|---|"]
    return ["Arguments, in brackets behind the value:\n", *head, *rows, ""]


def values(kind: str) -> str:
    return KINDS.get(kind, kind).replace("bool|", "True, False, ").replace("|", ", ")


def shown(default: object) -> str:
    return "unset" if default is None else f"`{default}`"


if __name__ == "__main__":
    (ROOT / "docs" / "flags.md").write_text(page(), encoding="utf-8")
