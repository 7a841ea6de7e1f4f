"""Hooks of mkdocs.yml: pages of the repository's root and notebooks become pages of the site.

The pages are written for GitHub. Here links between the root and docs/ point to the pages of the site, and lists are
indented as Python-Markdown reads them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")
COLUMNS = re.compile(r"\S {3,}\S")  # words far apart in a line
ITEM = re.compile(r"(?:[-*+]|\d+\.) +")
WIDTH = 4  # of what Python-Markdown takes for one level of a list


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and a page beside each notebook."""
    for path in (ROOT / "docs").rglob("*.ipynb"):
        place = path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
        files.append(File.generated(config, place, content=notebook_page(path)))
    for name, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page as MkDocs takes it."""
    return indented(aligned(LINK.sub(lambda link: f"]({place_of(link[1], page.file.src_uri)}", markdown)))


def place_of(target: str, source: str) -> str:
    """The address on the site to which a link to a file of the repository leads.

    Example:
        >>> place_of("docs/data.md", "index.md"), place_of("../CHANGELOG.md", "data.md")
        ('data.md', 'changelog.md')
        >>> place_of("notebooks/first_run.ipynb", "quickstart.md")
        'notebooks/first_run.md'
    """
    target = re.sub(r"\.ipynb$", ".md", target)
    if source in ROOT_PAGES.values():
        return ROOT_PAGES.get(target, target.removeprefix("docs/"))
    return ROOT_PAGES.get(target.removeprefix("../"), target) if target.startswith("../") else target


def aligned(markdown: str) -> str:
    """The same text, whose blocks with columns are of a class of their own: on a phone their lines do not wrap.

    Example:
        >>> print(aligned("```\\nname   value\\nkl     0.1\\n```"))
        ``` {.text .columns}
        name   value
        kl     0.1
        ```
    """
    lines = markdown.split("\n")
    opened: int | None = None  # the line that the current block begins with
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number
            continue
        far_apart = [each for each in lines[opened + 1 : number] if COLUMNS.search(each)]
        if lines[opened] in ("```", "```text") and len(far_apart) > 1:
            lines[opened] = "``` {.text .columns}"
        opened = None
    return "\n".join(lines)


def indented(markdown: str) -> str:
    """The same text with what belongs to an item of a list indented by 4 for each level.

    GitHub takes what stands below the first letter of the item: 2 spaces below a dash, 3 below a number.

    Example:
        >>> indented("1. a\\n\\n   b")
        '1. a\\n\\n    b'
    """
    lines: list[str] = []
    items: list[int] = []  # where the text of each open item begins
    fence = ""
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if text and not fence:
            while items and indent < items[-1]:
                items.pop()
        shift = WIDTH * len(items) - items[-1] if items else 0
        lines.append(" " * (indent + shift) + text if text else line)
        if fence:
            fence = "" if text.startswith(fence) else fence
        elif text.startswith(("```", "~~~")):
            fence = text[:3]
        elif item := ITEM.match(text):
            items.append(indent + len(item[0]))
    return "\n".join(lines)


def notebook_page(path: Path) -> str:
    """The cells of a notebook: texts, code in blocks, and below them its outputs."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """One output of a cell."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "image/svg+xml" in data:
        return f"<div>{data['image/svg+xml']}</div>"
    if "image/png" in data:
        return f'<div><img alt="" src="data:image/png;base64,{data["image/png"].strip()}"></div>'
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    return f"```text\n{data['text/plain']}\n```"
