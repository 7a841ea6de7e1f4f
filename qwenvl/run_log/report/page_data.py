"""The data of a page: scripts in its folder ``data``, which the page loads when it needs them.

A page that is opened as a file can load scripts and nothing else. But where somebody serves the folder to a browser,
every page of the web may load its scripts too, and read their data. So each script does nothing unless the page around
it has the key of the folder. The key stands in the page and in a file, which other sites cannot read.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwenvl.files import written_whole

KEY_FILE = "key.json"  # loaded as a script it is a syntax error
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class PageData:
    """The folder ``data`` of a page.

    Attributes:
        folder: it exists.
        key: of the page, which has it as the attribute ``data-key`` of its root element.
    """

    folder: Path
    key: str

    @classmethod
    def of(cls, page: Path) -> PageData:
        """The data of the page in a folder, with the key that it has, or a new one.

        Another key would change all files, and pages that are open could load none of them any more.
        """
        folder = page / "data"
        folder.mkdir(parents=True, exist_ok=True)
        key = _read_key(folder / KEY_FILE)
        if key is None:
            key = secrets.token_hex(16)
            write_if_other(folder / KEY_FILE, as_json({"key": key}) + "\n")
        return cls(folder, key)

    def write(self, name: str, call: str) -> None:
        """Write a script.

        Args:
            name: of the file below the folder.
            call: what it calls, with the data as arguments: ``report.page(0, 0, [...])``.
        """
        # Compared with a literal, which no page can see or change.
        guard = f'if (document.documentElement.dataset.key === "{self.key}")'
        write_if_other(self.folder / name, f"{guard} {call};\n")


def _read_key(path: Path) -> str | None:
    """The key in a file. None where it has none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) and _KEY.fullmatch(key) else None


def as_json(value: Any) -> str:
    """A value as JSON for a script, without spaces."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def write_if_other(path: Path, text: str) -> None:
    """Write a file as a whole, unless it has the same content already."""
    data = text.encode()
    if path.exists() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    with written_whole(path) as partial:
        partial.write_bytes(data)
