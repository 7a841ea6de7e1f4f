"""The house stands as docs/architecture.md draws it: what may import what, and how large a thing may grow.

Read from the import statements of the source, those inside of functions included.
"""

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "qwenvl"
SOURCES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {
    "files": -1,
    "types": -1,
    "runlog": 0,
    "option": 0,
    "yaml_text": 0,
    "failure": 0,
    "child": 0,
    "health": 0,
    "rewards": 1,
    "grpo": 1,
    "plan": 1,
    "data": 2,
    "model": 2,
    "tools": 3,
    "rollout": 4,
    "config": 5,
    "train": 6,
    "doctor": 6,
    "evaluate": 7,
    "use": 8,
    "demo": 8,
    "cli": 8,
    "__main__": 9,
}
ASIDE = {  # rooms beside the stairs, and all that each may import
    "report": {"report", "runlog", "files", "health", "types"},
    "vllm_server": {"vllm_server", "files", "types"},
}
DOORS_TO_ASIDE = {"report": (6, ""), "vllm_server": (4, "wire")}  # from which floor, and to what of the room
OF_ANOTHER_ENVIRONMENT = {"vllm_server": {"vllm"}}  # what a room has where it runs
FORBIDDEN = {"grpo": {"transformers"}, "report": {"torch", "transformers"}}
FORBIDDEN_AT_LOAD = {"rewards": {"transformers"}}  # a reward model loads it when it is asked for
STANDARD_LIBRARY_ONLY = {"types", "runlog", "option", "child", "files", "health", "cli"}
STANDARD_LIBRARY_ONLY |= {"failure", "plan"}
IMPORT_NAMES = {"pillow": "PIL", "pyyaml": "yaml"}  # where it is not the distribution's name

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 70


@dataclass(frozen=True)
class Import:
    """An imported module: full name, line, and whether it is loaded with the file, by a call, or for type checkers."""

    name: str
    line: int
    when: str  # "load", "call" or "typing"

    @property
    def top(self) -> str:
        return self.name.split(".")[0]

    @property
    def room(self) -> str | None:
        parts = self.name.split(".")
        return parts[1] if parts[0] == "qwenvl" and len(parts) > 1 else None


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[Import]:
    return list(walk(tree_of(path).body, "load"))


def walk(nodes: list[ast.AST], when: str) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, when)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by full name"
            for alias in node.names:  # from qwenvl import runlog names a room too
                yield Import(
                    f"{node.module}.{alias.name}" if node.module == "qwenvl" else node.module, node.lineno, when
                )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from walk(list(ast.iter_child_nodes(node)), "call")
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from walk(node.body, "typing")
        else:
            yield from walk(list(ast.iter_child_nodes(node)), when)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def every_source(function):
    return pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))(function)


@every_source
def test_a_room_imports_downwards_only(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in FLOORS or room in ASIDE, f"{room} has no floor: give it one here and in docs/architecture.md"
    for each in imports(path):
        if each.room is None or each.room == room:
            continue
        if room in ASIDE:
            assert each.room in ASIDE[room], f"line {each.line}: {room} imports {each.room}"
        elif each.room in ASIDE:
            floor, door = DOORS_TO_ASIDE[each.room]
            inside = each.name.startswith(f"qwenvl.{each.room}.{door}" if door else f"qwenvl.{each.room}")
            assert FLOORS[room] >= floor and inside, f"line {each.line}: {room} imports {each.name}"
        else:
            assert FLOORS.get(each.room, 99) < FLOORS[room], f"line {each.line}: {room} imports {each.room}"


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


@every_source
def test_pure_rooms_stay_pure(path):
    room = room_of(path)
    for each in imports(path):
        forbidden = FORBIDDEN.get(room, set()) | (FORBIDDEN_AT_LOAD.get(room, set()) if each.when == "load" else set())
        assert each.top not in forbidden, f"line {each.line}: {room} imports {each.name}"
        if room in STANDARD_LIBRARY_ONLY and each.when != "typing":
            plain = each.top in sys.stdlib_module_names or each.top == "qwenvl"
            assert plain, f"line {each.line}: {room} imports {each.name}; it keeps to the standard library"


@every_source
def test_what_is_imported_is_declared_and_what_is_optional_is_imported_late(path):
    needed, optional = declared_dependencies()
    for each in imports(path):
        if each.top in sys.stdlib_module_names or each.top == "qwenvl" or each.when == "typing":
            continue
        if each.top in OF_ANOTHER_ENVIRONMENT.get(room_of(path), set()):
            continue
        assert each.top in needed | optional, f"line {each.line}: {each.top} is not among the dependencies of setup.py"
        late = each.top in needed or each.when == "call"
        assert late, f"line {each.line}: {each.top} is not always installed: import it inside of what needs it"


@cache
def declared_dependencies() -> tuple[set[str], set[str]]:
    """Import names in setup.py: of what is always installed, and of extras and what some platforms lack."""
    declared = {}
    stand_in = ModuleType("setuptools")
    stand_in.setup, stand_in.find_packages = declared.update, lambda **_: []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "setuptools", stand_in)
        building = ModuleType("setuptools.command.build_py")
        building.build_py = object
        patch.setitem(sys.modules, building.__name__, building)
        runpy.run_path(str(ROOT / "setup.py"))
    required, extras = declared["install_requires"], declared["extras_require"]
    everywhere = [each for each in required if ";" not in each]
    elsewhere = [each for each in required if ";" in each] + [each for group in extras.values() for each in group]
    return set(map(import_name, everywhere)), set(map(import_name, elsewhere))


def import_name(requirement: str) -> str:
    name = requirement.split(";")[0].split("[")[0]
    for mark in "<>=!~ ":
        name = name.split(mark)[0]
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


@pytest.mark.parametrize("path", sorted((PACKAGE / "train").glob("*.py")), ids=lambda path: path.name)
def test_no_file_of_train_hides_a_module(path):
    """``python qwenvl/train/train_grpo.py`` puts this folder first on ``sys.path``."""
    taken = (set(sys.stdlib_module_names) | set(packages_distributions())) - {"qwenvl"}
    assert path.stem not in taken, f"import {path.stem} would find this file"


@every_source
def test_files_and_functions_stay_small(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE, "a noun is hiding in this file"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MOST_LINES_OF_A_FUNCTION, f"line {node.lineno}: {node.name} has {lines} lines"


@every_source
def test_what_is_public_says_what_it_is(path):
    tree = tree_of(path)
    if tree.body:
        assert ast.get_docstring(tree), "no docstring at the head of the file"
    for node in tree.body:
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"line {node.lineno}: {node.name} has no docstring"


def test_tests_mirror_the_rooms():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders <= rooms


def test_names_and_types_load_without_torch():
    code = (
        "import sys, qwenvl, qwenvl.types, qwenvl.runlog, qwenvl.cli\n"
        "assert 'GRPOTrainer' in dir(qwenvl)\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'loaded too early'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
