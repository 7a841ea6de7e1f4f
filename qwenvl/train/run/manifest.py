"""The manifest of a checkpoint: its files with their sizes and checksums. It is written last and makes it whole."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qwenvl.files import UNFINISHED, written_whole

NAME = "manifest.json"
_LEFT_OUT = {NAME, "README.md"}  # a card is for readers: it may be edited, or get the numbers of an evaluation
_THREADS = 8  # zlib computes without Python's lock
_CHUNK_BYTES = 1 << 24


def seal(folder: Path) -> None:
    """Write the manifest of a folder, once the disk holds all of its files. The model card is no part of it.

    Raises:
        OSError: the disk is full, or a file can't be read.
    """
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.name not in _LEFT_OUT)
    with ThreadPoolExecutor(_THREADS) as pool:
        checksums = list(pool.map(_stored_checksum, files))
    rows = {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "crc32": checksum}
        for file, checksum in zip(files, checksums, strict=True)
    }
    with written_whole(folder / NAME) as partial:
        partial.write_text(json.dumps({"files": rows}, indent=1), encoding="utf-8")
        _checksum(partial, store=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)  # the names too
    os.close(descriptor)


def is_sealed(folder: Path) -> bool:
    """Whether the folder has a manifest."""
    return (folder / NAME).is_file()


def total_bytes(folder: Path) -> int:
    """The size of all files of a folder."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and UNFINISHED not in each.name)


def problem_of(folder: Path, read: bool) -> str | None:
    """The first file of a sealed folder that is not as it was when the manifest was written. None where all are.

    Args:
        read: compare the checksums too, not the sizes alone.
    """
    try:
        rows = json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]
        wanted = {name: (int(row["bytes"]), int(row["crc32"])) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / NAME}: cut short or unreadable: {error}"
    for name, (size, _) in wanted.items():
        if not (file := folder / name).is_file():
            return f"{file}: no such file"
        if file.stat().st_size != size:
            return f"{file}: it has {file.stat().st_size} bytes, and had {size} when it was saved"
    if read:
        for name, checksum in zip(wanted, _checksums(folder / name for name in wanted), strict=True):
            if checksum != wanted[name][1]:
                return f"{folder / name}: damaged: its checksum is not the one that it was saved with"
    return None


def _checksums(files: Iterable[Path]) -> list[int]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_checksum, files))


def _stored_checksum(file: Path) -> int:
    return _checksum(file, store=True)


def _checksum(file: Path, store: bool = False) -> int:
    """The CRC-32 of a file. With ``store`` the disk holds the file afterwards."""
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
        if store:
            os.fsync(stream.fileno())
    return checksum
