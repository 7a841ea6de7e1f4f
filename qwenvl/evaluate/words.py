"""Words of a command line that name a clip, an image or a question."""

from __future__ import annotations

from pathlib import Path


def require_medium(path: str) -> None:
    """Raise FileNotFoundError for a clip or an image that is not there."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file; expected a clip or an image (the question comes last, quoted)")


def kind_of_medium(path: str) -> str:
    """``video`` or ``image``, by the bytes of a file."""
    from qwenvl.data.errors import BadMediaError
    from qwenvl.data.media.open import HEADER_SECONDS, read_image_size

    require_medium(path)
    try:
        if not Path(path).is_dir():
            read_image_size(path, timeout=HEADER_SECONDS)
            return "image"
    except BadMediaError:
        pass  # reading it as a clip reports what it is instead
    return "video"


def is_text(word: str) -> bool:
    """Whether a word is a text or a file of text, and not one more clip."""
    try:
        path = Path(word)
        if path.is_dir():
            return False
        if not path.is_file():
            return True
        with path.open("rb") as file:
            return b"\0" not in file.read(4096)
    except OSError:  # too long for a name
        return True
