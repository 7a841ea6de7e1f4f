"""The folder of a request, for the media that it holds or names by an address."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qwenvl.use.chat_request import ApiError


class RequestFolder:
    """A folder that is deleted once its request has ended and no thread works in it any more.

    A thread cannot be interrupted. It may be about to write when the client of its request leaves, and what it writes
    into a folder that is just being deleted would stay there for good.

    Args:
        parent: made again where a cleaner of temporary files has deleted it.

    Attributes:
        path: of the folder, which is made.
    """

    def __init__(self, parent: Path) -> None:
        self.path = parent / uuid.uuid4().hex
        parent.mkdir(mode=0o700, exist_ok=True)  # as ``tempfile.mkdtemp`` makes it: for this user alone
        self.path.mkdir()
        self._lock = threading.Lock()
        self._workers = 0  # threads that work in it
        self._has_ended = False

    @contextmanager
    def in_use(self) -> Iterator[Path]:
        """Keeps the folder while a thread works in it.

        Raises:
            ApiError: the request has ended.
        """
        with self._lock:
            if self._has_ended:
                raise ApiError(499, "the request has ended")
            self._workers += 1
        try:
            yield self.path
        finally:
            with self._lock:
                self._workers -= 1
                is_over = self._has_ended and not self._workers
            if is_over:
                self._delete()

    def end(self) -> None:
        """The request has ended: whoever works in the folder last deletes it."""
        with self._lock:
            self._has_ended = True
            is_over = not self._workers
        if is_over:
            self._delete()

    def _delete(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
