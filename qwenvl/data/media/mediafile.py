"""Checks of a media file before a decoder opens it.

Decoders trust too much. A text file named .mp4 may be a playlist that opens other files, a PNG becomes a video of one
frame, and a named pipe blocks for ever. So the first bytes decide what a file is, and only regular files are opened.
"""

from __future__ import annotations

import os
import stat

from qwenvl.data.errors import BadMediaError

_JPEG = b"\xff\xd8\xff"
# First bytes of files that are mistaken for clips, and what to call them.
_KNOWN_OTHERS = (
    (b"\x89PNG", "a PNG image"),
    (_JPEG, "a JPEG image"),
    (b"BM", "a BMP image"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
    (b"#EXTM3U", "a playlist"),
    (b"<", "HTML or XML: probably the error page of a failed download"),
    (b"{", "JSON"),
)
_STILL_BRANDS = (b"avif", b"heic", b"heix", b"mif1", b"msf1")
_NEXT_JPEG = b"\xff\xd9" + _JPEG  # the end of one, and the beginning of another
_BLOCK = 2**20
_MOV_ATOMS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"moof", b"styp")


def check_regular_file(path: str) -> int:
    """The size in bytes of a readable regular file.

    Raises:
        BadMediaError: the file is missing, empty or unreadable, or is a folder, pipe, socket or device.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadMediaError(path, error.strerror or "can't be opened", "missing media") from None
    if stat.S_ISDIR(status.st_mode):
        raise BadMediaError(path, "expected a file, this is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise BadMediaError(path, "expected a regular file, this is a pipe, socket or device")
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
    if found is None and head.startswith(_JPEG) and _holds_several_jpegs(path):
        found = "mjpeg"
    if found is None:
        other = next((name for magic, name in _KNOWN_OTHERS if head.lstrip().startswith(magic)), None)
        if other is None and _is_text(head):
            other = "text"
        reason = f"not a video: it {f'is {other}' if other else f'begins with {head[:8]!r}'}"
        raise BadMediaError(path, reason, "not a video")
    return found


def _container(head: bytes) -> str | None:
    if head[4:8] in _MOV_ATOMS:
        return None if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS else "mov"
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
        b"\x12\x00\x0a": "obu",  # AV1: a temporal delimiter, then a sequence header
        b"\x00\x00\x01\xb3": "mpegvideo",
        b"\x00\x00\x01\xb0": "m4v",
        b"\x00\x00\x01\x00": "m4v",
    }
    if found := next((name for magic, name in signatures.items() if head.startswith(magic)), None):
        return found
    # Transport streams begin each packet with a sync byte; Blu-ray ones put four bytes of time before it.
    if any(head[at : at + 1] == b"G" == head[at + size : at + size + 1] for at, size in ((0, 188), (4, 192))):
        return "mpegts"
    return _raw_stream(head)


def _raw_stream(head: bytes) -> str | None:
    """H.264 or HEVC without a container, told by the kind of its first unit, which follows a start code."""
    if not head.startswith((b"\0\0\1", b"\0\0\0\1")):
        return None
    first, second = head[head.index(1) + 1 :][:2]
    if first in (0x40, 0x42, 0x44, 0x46, 0x4E) and second == 1:  # parameter sets, delimiter, messages
        return "hevc"
    # Of the same in H.264 the upper bits say whether others refer to it, as they do to parameter sets alone.
    if first in (0x06, 0x09) or (first & 0x1F in (7, 8) and 0x20 <= first < 0x80):
        return "h264"
    return None


def _holds_several_jpegs(path: str) -> bool:
    """Whether a JPEG image is followed by another, as in Motion JPEG without a container.

    Photographs that hold a second picture for their own ends (MPO) are no clips. They say so at their beginning.
    """
    with open(path, "rb") as file:
        block = file.read(_BLOCK)
        if b"MPF\0" in block[: 2**16]:
            return False
        while block and _NEXT_JPEG not in block:
            rest = file.read(_BLOCK)
            block = block[-len(_NEXT_JPEG) :] + rest if rest else b""
    return bool(block)


def _is_text(head: bytes) -> bool:
    try:
        text = head[: len(head) - 4].decode()  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\r\n\t\ufeff" for char in text)
