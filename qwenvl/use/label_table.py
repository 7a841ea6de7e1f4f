"""The table of labels, and when it may be replaced."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qwenvl.files import check_new, written_whole
from qwenvl.inspection.label_columns import LABEL_TABLE, as_cell
from qwenvl.run_log.log import write_json


class LabelTable:
    """A CSV file that is written anew by each call, as long as nobody else has changed it.

    People correct labels in the table itself, and the call that continues must not undo that.

    Args:
        path: of the table.
        folder: of the completions. It keeps the hashes of the table in ``table.json``.
    """

    def __init__(self, path: str | Path, folder: Path) -> None:
        self.path = Path(path)
        self._written = folder / "table.json"

    def check(self) -> None:
        """Raise FileExistsError where there is a file at ``path`` that is not the table as it was last written."""
        if not self._written.is_file():
            check_new(self.path, "--output")  # its name is a usual one for a table that people fill in by hand
        elif os.path.lexists(self.path) and _hash(self.path.read_bytes()) not in self._hashes():
            raise FileExistsError(
                f"--output {self.path}: was changed since it was written, and is not replaced; move it to another name "
                "and repeat the command, which then writes it again and asks nothing twice"
            )

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the table.

        Raises:
            FileExistsError: see ``check``.
        """
        self.check()
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, LABEL_TABLE, extrasaction="ignore")
        table.writeheader()
        for row in rows:
            table.writerow({name: as_cell(value) for name, value in row.items()})
        content = text.getvalue().encode("utf-8", errors="backslashreplace")
        # Both hashes, and before the table: a kill in between leaves a table that one of them fits.
        there = [_hash(self.path.read_bytes())] if os.path.lexists(self.path) else []
        write_json(self._written, {"sha256": [*there, _hash(content)]})
        with written_whole(self.path) as partial:
            partial.write_bytes(content)

    def _hashes(self) -> list[str]:
        """The hashes that the table may have."""
        if not self._written.is_file():
            return []
        try:
            return list(json.loads(self._written.read_text("utf-8"))["sha256"])
        except (ValueError, KeyError, TypeError):  # somebody edited it: then no table is known to be ours
            return []


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
