"""The house stands as docs/architecture.md draws it: what may import what, and how large a thing may grow.

Read from the import statements of the source, those inside of functions included.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest

from qwenvl.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "qwenvl"
SOURCES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "files": -1,
    "types": -1,
    "option": 0,
    "yaml_text": 0,
    "failure": -1,
    "own_code": 0,
    "child": 0,
    "versions": 0,
    "timeline": -1,
    "characters": -2,
    "times": -2,
    "run_log": 0,
    "console": 0,
    "run_lock": 0,
    "rewards": 1,
    "grpo": 1,
    "plan": 1,
    "data": 2,
    "model": 2,
    "tools": 3,
    "rollout": 4,
    "config": 5,
    "step": 6,
    "train": 7,
    "inspection": 7,
    "evaluate": 8,
    "use": 9,
    "demo": 9,
    "commands": 10,
    "cli": 11,
    "runlog": 11,
    "__main__": 12,
}
ASIDE = {  # rooms beside the stairs, and all that each may import
    "vllm_server": {"vllm_server", "files", "types"},
}
DOORS_TO_ASIDE = {"vllm_server": (4, "wire")}  # from which floor, and to what of the room
OF_ANOTHER_ENVIRONMENT = {"vllm_server": {"vllm"}}  # what a room has where it runs
FORBIDDEN = {"grpo": {"transformers"}, "run_log": {"torch", "transformers"}}
FORBIDDEN_AT_LOAD = {"rewards": {"transformers"}}  # a reward model loads it when it is asked for
STANDARD_LIBRARY_ONLY = {"types", "runlog", "option", "child", "files", "versions", "cli"}
STANDARD_LIBRARY_ONLY |= {"characters", "failure", "own_code", "plan", "timeline", "times"}
# Files of their own for optional packages, whose classes they derive from. They are imported in calls alone.
IMPORTED_LATE = {"qwenvl.use.web", "qwenvl.rewards.bounded_client"}
IMPORT_NAMES = {"pillow": "PIL", "pyyaml": "yaml"}  # where it is not the distribution's name

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 70


class Import(NamedTuple):
    """An imported module: its file and line, its full name, and when it is loaded."""

    where: str
    room: str  # of the file
    name: str
    when: str  # "load" with the file, by a "call", or for type checkers: "typing"

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    @property
    def module(self) -> str:
        """The name of the file."""
        return self.where.partition(":")[0].removesuffix(".py").replace("/", ".")

    @property
    def target(self) -> str | None:
        """The room that is imported."""
        return self.name.split(".")[1] if self.name.startswith("qwenvl.") else None


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports() -> list[Import]:
    """Of all files."""
    return [
        Import(f"{path.relative_to(ROOT)}:{line}", path.relative_to(PACKAGE).with_suffix("").parts[0], name, when)
        for path in SOURCES
        for line, name, when in walk(tree_of(path).body, "load")
    ]


def walk(nodes: Iterable[ast.AST], when: str) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by full name"
            for alias in node.names:  # from qwenvl import files names a room too
                name = f"{node.module}.{alias.name}" if node.module == "qwenvl" else node.module
                yield node.lineno, name, when
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from walk(ast.iter_child_nodes(node), "call")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from walk(node.body, "typing")
        else:
            yield from walk(ast.iter_child_nodes(node), when)


def test_a_room_imports_downwards_only():
    rooms = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in SOURCES} - {"__init__"}
    assert rooms == FLOORS.keys() | ASIDE.keys(), "give a room its floor here and in docs/architecture.md"

    def may(each: Import) -> bool:
        if each.room in ASIDE:
            return each.target in ASIDE[each.room]
        if each.target in ASIDE:
            floor, door = DOORS_TO_ASIDE[each.target]
            return FLOORS[each.room] >= floor and each.name.startswith(f"qwenvl.{each.target}.{door}".rstrip("."))
        return FLOORS.get(each.target, 99) < FLOORS[each.room]

    between = [each for each in imports() if each.target not in (None, each.room) and each.room != "__init__"]
    assert [each for each in between if not may(each)] == []


def test_no_import_runs_in_a_circle():
    """Neither between rooms nor inside of one. Imports inside of functions and for type checkers count as well."""
    try:
        TopologicalSorter({module: imported_files(path) for module, path in modules().items()}).prepare()
    except CycleError as error:
        pytest.fail("imports run in a circle: " + " <- ".join(error.args[1]))


def modules() -> dict[str, Path]:
    """The files of the package by the names that they are imported by."""
    named = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imported_files(path: Path) -> set[str]:
    """The modules of the package that a file imports, ``from qwenvl.data import errors`` taken for ``errors``."""
    known, found = modules(), set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


def test_pure_rooms_import_no_forbidden_library():
    for each in imports():
        assert each.top not in FORBIDDEN.get(each.room, ()), each
        assert each.when != "load" or each.top not in FORBIDDEN_AT_LOAD.get(each.room, ()), each
        if each.room in STANDARD_LIBRARY_ONLY and each.when != "typing":
            assert each.top in {*sys.stdlib_module_names, "qwenvl"}, f"{each}: it keeps to the standard library"


def test_imports_are_declared_and_optional_ones_are_late():
    optional, needed = set(), set()
    for each in requires("qwenvl"):
        name = re.split(r"[\[<>=!~; ]", each)[0]
        (optional if ";" in each else needed).add(IMPORT_NAMES.get(name, name.replace("-", "_")))
    own = {*sys.stdlib_module_names, "qwenvl"}
    for each in imports():
        if each.top in own | OF_ANOTHER_ENVIRONMENT.get(each.room, set()) or each.when == "typing":
            continue
        assert each.top in needed | optional, f"{each}: not among the dependencies of setup.py (pip install -e . again)"
        late = each.when == "call" or each.module in IMPORTED_LATE
        assert each.top in needed or late, f"{each}: not always installed: import it where it is needed"
    early = [each for each in imports() if each.name in IMPORTED_LATE and each.when == "load"]
    assert not early, f"{early}: import it where it is needed"


def test_no_command_imports_another_and_each_command_has_its_line():
    commands = {path.stem for path in (PACKAGE / "commands").glob("*.py")} - {"__init__"}
    assert {f"qwenvl.commands.{name}" for name in commands} == {module for module, _ in COMMANDS.values()}
    assert [each for each in imports() if each.room == each.target == "commands"] == []


def test_training_imports_no_page_of_a_report():
    lowest = FLOORS["inspection"]
    for each in imports():
        if each.name.startswith("qwenvl.run_log.report") and each.room != "run_log":
            assert FLOORS[each.room] >= lowest and each.room != "train", each


def test_evaluation_imports_nothing_of_training():
    assert [each for each in imports() if (each.room, each.target) == ("evaluate", "train")] == []


def test_the_file_that_launchers_run_takes_its_own_folder_off_the_path(tmp_path):
    """A file of ``qwenvl/train`` may be called like a module of the standard library or of a dependency."""
    copied = tmp_path / "qwenvl"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("re", "pathlib", "typing", "signal", "json", "dataclasses", "torch", "transformers", "yaml"):
        (copied / "train" / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')", encoding="utf-8")
    command = [sys.executable, str(copied / "train" / "train_grpo.py"), "--help"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "qwenvl train" in ran.stdout


def test_files_and_functions_stay_small_and_public_names_have_docstrings():
    for path in SOURCES:
        tree = tree_of(path)
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_A_FILE, path
        assert not tree.body or ast.get_docstring(tree), f"{path}: no docstring at its head"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MOST_LINES_OF_A_FUNCTION, f"{path}:{node.lineno}: {node.name} has {lines} lines"
        for node in tree.body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}:{node.lineno}: {node.name} has no docstring"


def test_names_and_types_load_without_torch():
    code = (
        "import sys, qwenvl, qwenvl.types, qwenvl.run_log.log, qwenvl.cli\n"
        "assert 'GRPOTrainer' in dir(qwenvl)\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'loaded too early'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
