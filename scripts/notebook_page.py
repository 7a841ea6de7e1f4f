"""A notebook as a page of Markdown, with its outputs: for the site, without a plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def notebook_page(path: Path) -> str:
    """The cells of a notebook: texts as they stand, code in blocks, and below it what it showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
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
