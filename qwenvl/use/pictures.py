"""Images that clients send, decoded in child processes: a file of a megabyte can keep Pillow busy for hours."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from qwenvl.child import Child, ChildDied, ChildFailed, ChildTimeout
from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.data.media.images import upright_image


class PictureReader:
    """Rewrites images as plain ones with the same pixels. Threads may share it: each call has a child of its own.

    Args:
        memory_gb: how much memory a child may take for one image, in GB.
    """

    def __init__(self, memory_gb: float) -> None:
        self._memory_gb = memory_gb
        self._idle: list[Child] = []

    def rewrite(
        self, path: str, target: str, most_pixels: int, seconds: float, is_over: Callable[[], bool] | None = None
    ) -> int:
        """Writes the image of a path, upright and in RGB, as a BMP, and returns how many pixels it has.

        Raises:
            BadMediaError: it is no image, is damaged, or takes too much time, memory or pixels.
        """
        child = None
        with suppress(IndexError):  # none is idle, or another thread has taken the last one
            child = self._idle.pop()
        if child is None or not child.alive:
            child = Child(f"{__name__}:rewriter", memory_bytes=int(self._memory_gb * 1e9))
        try:
            answer = child.ask((path, target, most_pixels), max(0.01, seconds), is_over=is_over)
        except ChildTimeout:
            raise MediaTimeout(path, f"not decoded within {seconds:.0f} s (--decode_timeout)") from None
        except ChildDied as error:
            killed = error.exit_code == -signal.SIGKILL
            reason = "the system killed its decoder, as where memory is full" if killed else "its decoder crashed"
            raise BadMediaError(path, reason) from None
        except ChildFailed as error:
            self._idle.append(child)
            if "MemoryError" not in str(error):
                raise
            reason = f"takes more than {self._memory_gb:g} GB to decode (--decode_memory_gb)"
            raise BadMediaError(path, reason) from None
        self._idle.append(child)
        if isinstance(answer, BadMediaError):
            raise BadMediaError(path, answer.reason, answer.kind)
        return answer

    def close(self) -> None:
        """Ends the children that do nothing."""
        while self._idle:
            self._idle.pop().kill()


def rewriter() -> Callable[[tuple[str, str, int]], Any]:
    """The child's side: a function from the arguments of ``rewrite`` to its result, or to an error of the image."""

    def rewrite(request: tuple[str, str, int]) -> int | BadMediaError:
        path, target, most_pixels = request
        try:
            picture = upright_image(path, most_pixels)
        except BadMediaError as error:
            return error
        picture.save(target, "BMP")
        return picture.width * picture.height

    return rewrite
