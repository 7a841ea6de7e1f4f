"""Turns a medium, as a row writes it, into a path that can be opened. Every later step knows paths alone.

Bytes are kept in the cache folder under the hash of their content. So a picture that many rows share is stored once,
and several processes may write it at the same time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import urllib.request
from functools import lru_cache
from pathlib import Path
from typing import Any

from qwenvl.data.errors import BadMediaError, RecordError, kind_of
from qwenvl.files import cache_root, written_whole

FRAME_LIST_SUFFIX = ".frames.json"
MAX_DOWNLOAD_BYTES = 4 * 2**30
_DATA_URL = re.compile(r"data:[\w/+.-]*;base64,")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")


def media_cache() -> Path:
    """The folder of stored media."""
    return cache_root() / "media"


def media_path(
    medium: Any, place: str, media_root: Path, *, allow_outside: bool = False, allow_remote: bool = False
) -> str:
    """The absolute path of a medium, or its URL.

    Args:
        medium: a path of a file or of a folder of frames, a list of frame paths, bytes,
            ``{"bytes": ..., "path": ...}``, a data URL, base64 text, or an http(s) URL.
        place: where it is written, for errors.
        media_root: a folder, with its links resolved. Paths start there and may not leave it unless ``allow_outside``.

    Raises:
        RecordError: the medium is none of these, its path leaves the root, or it is a URL without ``allow_remote``.
    """
    if isinstance(medium, dict) and {"bytes", "path"} & set(medium):
        medium = medium["bytes"] if medium.get("bytes") is not None else medium.get("path")
    if isinstance(medium, bytes):
        return store_bytes(medium)
    if isinstance(medium, list) and medium and all(isinstance(frame, str) for frame in medium):
        frames = [_inside(frame, f"{place}[{i}]", media_root, allow_outside) for i, frame in enumerate(medium)]
        return store_bytes(json.dumps(frames).encode(), FRAME_LIST_SUFFIX)
    if not isinstance(medium, str) or not medium.strip() or "\0" in medium:
        raise RecordError(f"{place}: expected a path, got {kind_of(medium)}", "media path")
    if medium.startswith(("http://", "https://")):
        if not allow_remote:
            raise RecordError(f"{place}: {medium!r} is remote; download it, or pass --allow_remote_media", "media path")
        return medium
    encoded = _DATA_URL.match(medium[:200])
    if encoded or _is_base64(medium):
        return store_bytes(_from_base64(medium[encoded.end() if encoded else 0 :], place))
    return _inside(medium, place, media_root, allow_outside)


def store_bytes(data: bytes, suffix: str = "") -> str:
    """Write bytes to the cache under their SHA-256, unless they are there, and return the path."""
    digest = hashlib.sha256(data).hexdigest()
    path = media_cache() / digest[:2] / f"{digest}{suffix}"
    if not path.exists():
        with written_whole(path) as partial:
            partial.write_bytes(data)
    return str(path)


def frame_list(path: str) -> list[str] | None:
    """The frame paths of a list that ``media_path`` stored, or None for any other path."""
    if not path.endswith(FRAME_LIST_SUFFIX) or not Path(path).is_relative_to(media_cache()):
        return None
    return json.loads(Path(path).read_text())


def fetch(url: str, timeout: float = 60.0) -> str:
    """Download an http(s) URL to the cache, unless it is there, and return the path.

    Raises:
        BadMediaError: the server does not answer, answers with an error, or sends more than 4 GiB.
    """
    pointer = media_cache() / "urls" / hashlib.sha256(url.encode()).hexdigest()
    if pointer.exists() and os.path.exists(path := pointer.read_text()):
        return path
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            data = answer.read(MAX_DOWNLOAD_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadMediaError(url, f"can't be fetched: {error}", "remote media") from None
    if len(data) > MAX_DOWNLOAD_BYTES:
        raise BadMediaError(url, f"larger than {MAX_DOWNLOAD_BYTES // 2**30} GiB", "remote media")
    path = store_bytes(data)
    with written_whole(pointer) as partial:
        partial.write_text(path)
    return path


def _inside(path: str, place: str, media_root: Path, allow_outside: bool) -> str:
    if scheme := _SCHEME.match(path):
        advice = (
            "write the path itself" if scheme[1].lower() == "file" else "download it, and write the path of the copy"
        )
        raise RecordError(f"{place}: {path[:200]!r}: media can't be read from {scheme[1]}://; {advice}", "media path")
    root = str(media_root)
    full = _resolved(os.path.join(root, path))
    if not allow_outside and not full.startswith(root.rstrip("/") + "/") and full != root:
        link = "" if os.path.normpath(os.path.join(root, path)) == full else f" by a link, to {full}"
        raise RecordError(
            f"{place}: {path!r} leads out of the media root {media_root}{link}; move the file or the root, or pass "
            "--allow_outside_media",
            "media path",
        )
    return full


def _resolved(path: str) -> str:
    """``os.path.realpath`` of a path, which looks at each folder once: records share their folders."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    full = os.path.join(_resolved_folder(folder), name)
    return os.path.realpath(full) if os.path.islink(full) else full


@lru_cache(maxsize=10_000)
def _resolved_folder(folder: str) -> str:
    return os.path.realpath(folder)


def forget_folders() -> None:
    """Look at folders anew: they may have been moved or linked since."""
    _resolved_folder.cache_clear()


def _is_base64(text: str) -> bool:
    """Whether a text is base64 of a picture or a clip. A long path may have the same letters, but begins otherwise."""
    if not _BASE64.fullmatch(text):
        return False
    head = base64.b64decode("".join(text[:200].split())[:64])
    return head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"\x1a\x45\xdf\xa3")) or (
        head[4:8] in (b"ftyp", b"moov", b"mdat")
    )


def _from_base64(text: str, place: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise RecordError(f"{place}: not valid base64: {error}", "media path") from None
