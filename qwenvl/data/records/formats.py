"""The rows of any kind of file. Any kind may hold any form of record: ``schemas`` knows the forms."""

from __future__ import annotations

from pathlib import Path

from qwenvl.data.records.rows import HUB_PREFIX
from qwenvl.data.records.tables import Table, parquet_table, saved_table, table_of_the_hub
from qwenvl.data.records.text import TextFile
from qwenvl.data.records.text_source import check_readable
from qwenvl.data.records.whole_file import WholeFile, whole_file


def open_rows(source: Path | str, read_as: str | None = None) -> TextFile | Table | WholeFile:
    """The rows of a file, which tells its kind by its content: JSON array, JSON lines, CSV or parquet.

    Args:
        source: a file, which may be gzipped if it is text. Or a folder that ``datasets``' ``save_to_disk`` wrote. Or
            ``hf:name`` or ``hf:name:split``.
        read_as: the preset of the rows, where it is known: some have files of a kind of their own.

    Returns:
        What gives its rows in order when it is iterated, and by number ``at_random()``. It can be sent to processes.

    Raises:
        RecordError: the file as a whole can't be read. Some damage shows only when its rows are read or counted.
    """
    if str(source).startswith(HUB_PREFIX):
        return table_of_the_hub(str(source))
    path = Path(source)
    if path.is_dir():
        return saved_table(path)
    check_readable(path)
    with open(path, "rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        return parquet_table(path)
    return whole_file(path, read_as) or TextFile(path)
