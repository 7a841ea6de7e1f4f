"""The pages name what is there: flags, rewards, metrics and messages."""

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest
from transformers import TrainingArguments

from qwenvl.config.other_names import HERE_FOR
from qwenvl.config.settings import TrainingSettings

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("[A-Z]*.md")), *sorted((ROOT / "docs").glob("*.md"))]
MIGRATION = ROOT / "docs" / "coming_from.md"
FENCED = re.compile(r"^ *```.*?^ *```$", flags=re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


@cache
def strings() -> list[str]:
    """The texts in the source. What is filled in is ``\\0``."""
    found = []
    for path in sorted((ROOT / "qwenvl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@cache
def flags() -> set[str]:
    """The flags of all commands: options of the rooms, those of the Trainer, and those of parsers of their own."""
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    for path in [*(ROOT / "qwenvl").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        known |= set(re.findall(r"^ +(\w+): [^=\n]+ = option\(", text, flags=re.MULTILINE))
        known |= set(re.findall(r'"--([\w-]+)"', text))
    return known


def is_logged(name: str) -> bool:
    """Whether a number of this name stands in the source, or in what the page on training says of the Trainer's."""
    written = name.replace("<name>", "\0")
    return written in strings() or f"`{name}`" in (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def ours(page: Path) -> str:
    """The text of a page without blocks, and of a migration table only the column of our names."""
    lines = FENCED.sub("", page.read_text(encoding="utf-8")).split("\n")
    if page == MIGRATION:
        lines = [line.split(" | ")[0] if line.startswith("| `--") else line for line in lines]
    return "\n".join(lines)


def rows(page: Path, section: str) -> list[list[str]]:
    """The cells of the table in a section of a page, without its head."""
    body = page.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in body.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r" \|(?= |$)", line[1:-2])] for line in lines[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_flags_that_a_page_names_exist(page):
    codes = [code for code in CODE.findall(ours(page)) if code.startswith("--")]
    named = [flag for code in codes for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", code)]
    assert [flag for flag in named if flag.removeprefix("no_") not in flags()] == []


def test_each_trl_flag_without_a_flag_here_is_answered_with_our_name():
    there = [name for row in rows(MIGRATION, "Flag for flag") for name in CODE.findall(row[1])]
    assert [name for name in there if name not in {*flags(), *HERE_FOR}] == []


def test_each_name_of_another_library_that_is_answered_stands_on_the_page():
    named = set(CODE.findall(MIGRATION.read_text(encoding="utf-8")))
    assert [name for name in HERE_FOR if name not in named] == []


def test_no_name_that_is_answered_is_a_flag_of_training():
    known = {each.name for each in dataclasses.fields(TrainingSettings)}
    assert known.isdisjoint(HERE_FOR)


def messages() -> list[str]:
    """The messages that the page of symptoms quotes: its blocks of text, and the first column of two tables."""
    page = ROOT / "docs" / "troubleshooting.md"
    blocks = re.findall(r"^```text\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    cells = [row[0] for title in ("The run stops", "When each warning is given") for row in rows(page, title)]
    return [line for block in blocks for line in block.splitlines()] + [
        code for cell in cells for code in CODE.findall(cell)
    ]


def test_the_messages_that_the_page_of_symptoms_quotes_are_printed():
    """The parts between ``...`` stand in one text of the source, in this order."""
    for message in messages():
        parts = [part.strip() for part in message.split("...") if part.strip()]
        assert sum(map(len, parts)) >= 10, f"{message}: too short to be told from others"
        pattern = re.compile(".*".join(map(re.escape, parts)), flags=re.DOTALL)
        assert any(pattern.search(text) for text in strings()), message


def test_the_numbers_that_the_page_of_symptoms_names_are_logged():
    page = ours(ROOT / "docs" / "troubleshooting.md")
    named = {code for code in CODE.findall(page) if re.fullmatch(r"[a-z_]+/[\w<>]+", code)}
    assert len(named) > 20
    assert [name for name in sorted(named) if not is_logged(name)] == []
