"""How heavy the house is: lines, files, words, flags, classes. `tests/test_house.py` holds these as upper bounds.

python scripts/house.py
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = {"docs/flags.md", "docs/rewards.md"}


def tracked(*folders: str) -> list[Path]:
    """Files of the repository in these folders."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file()]


def measure() -> dict[str, int]:
    """Each number by its name."""
    sources = [path for path in tracked("qwenvl") if path.suffix == ".py"]
    names = {path: _module(path) for path in sources}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources}
    importers: Counter[str] = Counter()
    bases: dict[str, list[str]] = {}
    for path, tree in trees.items():
        importers.update(_imported(tree) & set(names.values()) - {names[path]})
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
    pages = [path for path in tracked("README.md", "docs") if path.suffix == ".md"]
    prose = [path for path in pages if str(path.relative_to(ROOT)) not in GENERATED]
    return {
        "lines of qwenvl": _lines(sources),
        "lines of tests": _lines([path for path in tracked("tests") if path.suffix == ".py"]),
        "lines of scripts": _lines(tracked("scripts")),
        "words of README and docs": sum(len(path.read_text(encoding="utf-8").split()) for path in prose),
        "own flags of qwenvl train": own_flags(),
        "files of qwenvl": len(sources),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "classes": sum(isinstance(node, ast.ClassDef) for tree in trees.values() for node in ast.walk(tree)),
        "levels of inheritance": max(_depth(name, bases) for name in bases),
    }


def own_flags() -> int:
    """Flags of `qwenvl train` beside those of transformers."""
    from transformers import TrainingArguments

    from qwenvl.config.grpo_config import GRPOConfig

    return len({each.name for each in fields(GRPOConfig)} - {each.name for each in fields(TrainingArguments)})


def _lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8", errors="replace").splitlines()) for path in paths)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module) -> set[str]:
    """Modules that import statements name, and those that names from packages may be."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {node.module or "" for node in nodes} | {
        f"{node.module}.{name.name}" for node in nodes for name in node.names
    }


def _depth(name: str, bases: dict[str, list[str]]) -> int:
    """Classes of the package above a class, with itself, below one of a library."""
    return 1 + max((_depth(base, bases) for base in bases[name] if base in bases and base != name), default=0)


if __name__ == "__main__":
    for name, number in measure().items():
        print(f"{name:30}{number:>8,}")
