"""Turns media as rows write them into paths that can be opened, and checks files before a decoder opens them.

Bytes are kept in the cache folder under the hash of their content. So a picture that many rows share is stored once,
and several processes may write it at the same time.

Decoders trust too much. A text file named .mp4 may be a playlist that opens other files, a PNG becomes a video of one
frame, and a named pipe blocks for ever. So the first bytes decide what a file is, and only regular files are opened.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from qwenvl.data.errors import BadMediaError, RecordError, kind_of
from qwenvl.files import cache_root, written_whole
from qwenvl.types import Record

FRAME_LIST_SUFFIX = ".frames.json"
# fmt: off
VIDEO_SUFFIXES = (
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".flv", ".wmv", ".asf",
    ".3gp", ".ogv", ".vob",
)
# fmt: on
"""The endings of video files. A GIF is a clip or a picture."""
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif")
"""The endings of pictures, and so of the files that are the frames of a folder."""
_DATA_URL = re.compile(r"data:[\w/+.-]*;base64,")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
_THREADS = 16  # that look for files: a network disk takes long to answer
_MISSING_SHOWN = 5
# Of the beginning and of the end of a file. A clip may have gigabytes, and containers list the sizes of their frames at
# one of the two.
_VERSION_BYTES = 2**16
_RAW_STREAMS = (b"\0\0\1", b"\0\0\0\1", b"\x12\0\x0a")  # MPEG and H.264 units, and those of AV1
_STILL_BRANDS = (b"avif", b"heic", b"heix", b"mif1", b"msf1")
_MEDIA_HEADS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"\x1a\x45\xdf\xa3")  # the last: Matroska
_MOV_ATOMS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp")


def media_cache() -> Path:
    """The folder of stored media."""
    return cache_root() / "media"


def media_path(medium: Any, place: str, media_root: Path, *, allow_outside: bool = False) -> str:
    """The absolute path of a medium.

    Args:
        medium: a path of a file or of a folder of frames, a list of frame paths, bytes,
            ``{"bytes": ..., "path": ...}``, a data URL, or base64 text. ``{"path": ...}`` alone is always a path.
        place: where it is written, for errors.
        media_root: a folder, with its links resolved. Paths start there and may not leave it unless ``allow_outside``.

    Raises:
        RecordError: the medium is none of these, or its path leaves the root.
    """
    is_named_path = False
    if isinstance(medium, dict) and {"bytes", "path"} & set(medium):
        is_named_path = medium.get("bytes") is None
        medium = medium.get("path") if is_named_path else medium["bytes"]
    if isinstance(medium, bytes):
        return store_bytes(medium)
    if isinstance(medium, list) and medium and all(isinstance(frame, str) for frame in medium):
        # A clip of frames is a file too: one that lists their paths.
        frames = [_inside(frame, f"{place}[{i}]", media_root, allow_outside) for i, frame in enumerate(medium)]
        return store_bytes(json.dumps(frames).encode(), FRAME_LIST_SUFFIX)
    if not isinstance(medium, str) or not medium.strip() or "\0" in medium:
        raise RecordError(f"{place}: expected a path, got {kind_of(medium)}", "media path")
    if is_named_path:  # whatever its letters spell
        return _inside(medium, place, media_root, allow_outside)
    data_url = _DATA_URL.match(medium[:200])
    if data_url:
        return store_bytes(_from_base64(medium[data_url.end() :], place))
    if _is_base64(medium):
        return store_bytes(_from_base64(medium, place))
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


def is_frame(name: str) -> bool:
    """Whether a file of a folder is one of its frames.

    Hidden files are none: macOS writes its notes on ``1.jpg`` into ``._1.jpg``.
    """
    return name.lower().endswith(FRAME_SUFFIXES) and not name.startswith(".")


def frame_files(path: str) -> list[str] | None:
    """The frame paths of a list, in its order, or of a folder, by their names. None for any other medium."""
    frames = frame_list(path)
    if frames is None and os.path.isdir(path):
        names = sorted(os.listdir(path))
        frames = [os.path.join(path, name) for name in names if is_frame(name)]
    return frames


def version_of(path: str) -> list[Any]:
    """What changes where a medium is replaced: of each of its files the size, and a hash of its beginning and end.

    A copy has the same version, whenever it was made. The files of frames have their names beside it. Empty where there
    is no medium.
    """
    frames = frame_files(path)
    if frames is not None:
        return [[os.path.basename(frame), *version_of(frame)] for frame in frames]
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever
            return [status.st_size]
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read(_VERSION_BYTES))
            file.seek(max(_VERSION_BYTES, status.st_size - _VERSION_BYTES))
            digest.update(file.read(_VERSION_BYTES))
    except OSError:
        return []
    return [status.st_size, digest.hexdigest()]


def _without_file_scheme(path: str) -> str:
    """The path of a ``file://`` address. Escapes such as %20 are decoded unless a file has them in its name."""
    if not path.lower().startswith("file://"):
        return path
    as_written = path[len("file://") :]
    return as_written if os.path.exists(as_written) else unquote(as_written)


def _inside(path: str, place: str, media_root: Path, allow_outside: bool) -> str:
    """The absolute path of a medium, with its links resolved.

    Raises:
        RecordError: it is the address of a server, or leaves the root.
    """
    path = _without_file_scheme(path)
    scheme = _SCHEME.match(path)
    if scheme:
        advice = "download it, and write the path of the copy"
        raise RecordError(f"{place}: {path[:200]!r}: media can't be read from {scheme[1]}://; {advice}", "media path")
    full = os.path.realpath(os.path.join(media_root, path))
    if allow_outside:
        return full
    target = outside_of(media_root, full)
    if target is not None:
        named = os.path.normpath(os.path.join(media_root, path))
        link = "" if target == named else f" by a link, to {target}"
        raise RecordError(
            f"{place}: {path!r} leads out of the media root {media_root}{link}; move the file or the root, or pass "
            "--allow_outside_media, in Python GRPOConfig(allow_outside_media=True)",
            "media path",
        )
    return full


def outside_of(root: str | Path, full: str) -> str | None:
    """The path outside of a root that would be read for ``full``, or None where nothing outside is read.

    It is ``full`` itself, or the target of a frame of a folder that is a link.

    Args:
        root, full: with their links resolved.
    """
    if not _is_below(full, root):
        return full
    if not os.path.isdir(full):
        return None
    with os.scandir(full) as entries:
        links = [entry.path for entry in entries if entry.is_symlink() and is_frame(entry.name)]
    for link in sorted(links):
        target = os.path.realpath(link)
        if not _is_below(target, root):
            return target
    return None


def _is_below(full: str, root: str | Path) -> bool:
    return full == str(root) or full.startswith(str(root).rstrip("/") + "/")


def _is_base64(text: str) -> bool:
    """Whether a text is base64 of a picture or a clip. A long path may have the same letters, but begins otherwise."""
    if not _BASE64.fullmatch(text):
        return False
    head = base64.b64decode("".join(text[:200].split())[:64])
    is_mp4 = head[4:8] in (b"ftyp", b"moov", b"mdat")
    return is_mp4 or head.startswith(_MEDIA_HEADS)


def _from_base64(text: str, place: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise RecordError(f"{place}: not valid base64: {error}", "media path") from None


def check_media_exist(records: Iterable[Record]) -> None:
    """Check that the media files of records are there.

    Raises:
        RecordError: files are missing. The message names the first records that miss them.
    """
    named: list[tuple[str, str]] = []
    for record in records:
        named += [(record.where, path) for path in (*record.videos, *record.images)]
    paths = list({path for _, path in named})
    shares = [paths[start::_THREADS] for start in range(_THREADS)]  # one for each thread
    with ThreadPoolExecutor(_THREADS) as pool:
        gone = set(chain.from_iterable(pool.map(_missing, shares)))
    lines = [f"{where}: no such file: {path}" for where, path in named if path in gone]
    if lines:
        shown = lines[:_MISSING_SHOWN] + ["..."] * (len(lines) > _MISSING_SHOWN)
        files = "1 media file is" if len(lines) == 1 else f"{len(lines):,} media files are"
        raise RecordError(
            f"{files} missing; put them under the media root, or pass --on_bad_sample skip:"
            + "".join(f"\n  {line}" for line in shown)
        )


def _missing(paths: Iterable[str]) -> list[str]:
    """The paths at which nothing is."""
    return [path for path in paths if not os.path.exists(path)]


def check_regular_file(path: str) -> int:
    """The size in bytes of a readable regular file.

    Raises:
        BadMediaError: the file is missing, empty or unreadable, or is a folder, pipe, socket or device.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadMediaError(path, error.strerror or "can't be opened", "missing media") from None
    if not stat.S_ISREG(status.st_mode):
        raise BadMediaError(path, "expected a regular file, this is a folder, pipe, socket or device")
    if status.st_size == 0:
        raise BadMediaError(path, "the file is empty", "empty media")
    if not os.access(path, os.R_OK):
        raise BadMediaError(path, "no permission to read the file")
    return status.st_size


def video_format(path: str) -> str:
    """FFmpeg's name of the container of a video file, from the file's first bytes.

    Raises:
        BadMediaError: the file is not a regular one, or is no video container that is known here.
    """
    check_regular_file(path)
    with open(path, "rb") as file:
        head = file.read(400)
    found = _container(head)
    if found is None:
        reason = f"not a video: it begins with {head[:24]!r}; expected a clip, no Git LFS pointer or page of an error"
        if head.startswith(_RAW_STREAMS):
            reason = "not a video but a raw stream, which has no times: ffmpeg -r RATE -i IN OUT.mp4 makes them"
        raise BadMediaError(path, reason, "not a video")
    return found


def _container(head: bytes) -> str | None:
    """FFmpeg's name of the container that begins with these bytes, None for all other files."""
    if head[4:8] in _MOV_ATOMS:
        is_still = head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS  # AVIF and HEIC images
        return None if is_still else "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "avi"
    signatures = {
        b"OggS": "ogg",
        b"FLV\x01": "flv",
        b"\x00\x00\x01\xba": "mpeg",
        b"GIF8": "gif",
        b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "asf",
        b"DKIF": "ivf",
        b"YUV4MPEG2 ": "yuv4mpegpipe",
    }
    for magic, name in signatures.items():
        if head.startswith(magic):
            return name
    # Transport streams begin each packet with a sync byte, "G". Packets of Blu-ray have four bytes of time before it.
    for sync, packet_size in ((0, 188), (4, 192)):
        next_sync = sync + packet_size
        if head[sync : sync + 1] == b"G" and head[next_sync : next_sync + 1] == b"G":
            return "mpegts"
    return None
