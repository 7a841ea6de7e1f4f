"""The few functions of NCCL's library that a link needs, which torch does not offer: torch can't end what hangs.

Not run so far: what needs a GPU, which is all but the version and the name of a group.
"""

from __future__ import annotations

import base64
import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = "libnccl.so.2"  # the one that torch has loaded
_NAME_BYTES, _UINT8, _FLOAT32, _SUM = 128, 1, 7, 0  # of nccl.h
_PAUSE_SECONDS = 0.002


class _Name(ctypes.Structure):
    """``ncclUniqueId``, which is handed over by value."""

    _fields_ = [("bytes", ctypes.c_byte * _NAME_BYTES)]


class NcclError(RuntimeError):
    """The library refuses."""


class Nccl:
    """NCCL's library.

    Raises:
        NcclError: it is not there.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NcclError(f"{LIBRARY} can't be loaded: {error}") from None
        for name in ("ncclBroadcast", "ncclAllReduce", "ncclCommInitRank", "ncclCommAbort"):
            getattr(self._library, name).argtypes = _ARGUMENTS[name]
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name.

        Raises:
            NcclError: it does not return success.
        """
        if status := getattr(self._library, name)(*arguments):
            raise NcclError(f"{name}: {self._library.ncclGetErrorString(status).decode()}")

    def version(self) -> int:
        """Such as 23007 for 2.30.7. Both ends of a group must have the same."""
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return number.value

    def name(self) -> bytes:
        """The name of a new group, by which its processes find each other."""
        name = _Name()
        self.call("ncclGetUniqueId", ctypes.byref(name))
        return bytes(name)


_Pointer, _Count = ctypes.c_void_p, ctypes.c_size_t
_ARGUMENTS = {
    "ncclBroadcast": [_Pointer, _Pointer, _Count, ctypes.c_int, ctypes.c_int, _Pointer, _Pointer],
    "ncclAllReduce": [_Pointer, _Pointer, _Count, ctypes.c_int, ctypes.c_int, _Pointer, _Pointer],
    "ncclCommInitRank": [ctypes.POINTER(_Pointer), ctypes.c_int, _Name, ctypes.c_int],
    "ncclCommAbort": [_Pointer],
}


class NcclLine:
    """From a GPU of this process to those of the workers of a server, see ``Line``.

    Args:
        device: the GPU.
        workers: of the server.
        seconds: that the workers wait for.
    """

    kind = "nccl"

    def __init__(self, device: torch.device, workers: int, seconds: float):
        self._nccl, self._device, self._seconds = Nccl(), device, seconds
        self._size = 1 + workers
        self._name = self._nccl.name()
        self._communicator: ctypes.c_void_p | None = None
        self._lock = threading.Lock()
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)

    def settings(self) -> dict[str, Any]:
        """Of vLLM's engine. The weights of an update are one tensor, whatever its size."""
        return {
            "nccl_unique_id_b64": base64.b64encode(self._name).decode(),
            "rank_offset": 1,
            "world_size": self._size,
            "packed": True,
            "packed_buffer_size_bytes": 2**62,
        }

    def join(self) -> None:
        communicator = ctypes.c_void_p()
        name = _Name.from_buffer_copy(self._name)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._nccl.call("ncclCommInitRank", ctypes.byref(communicator), self._size, name, 0)
            self._communicator = communicator
            one = torch.zeros(1, device=self._device)  # vLLM's workers begin with a sum
            place = one.data_ptr()
            self._nccl.call("ncclAllReduce", place, place, 1, _FLOAT32, _SUM, communicator, self._stream.cuda_stream)
            self._wait(one)

    def handle(self, flat: Tensor) -> None: ...

    def send(self, flat: Tensor) -> None:
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())  # which made the bytes
            place, count, stream = flat.data_ptr(), flat.numel(), self._stream.cuda_stream
            # It may wait for the workers itself, where they were never connected in this way.
            self._nccl.call("ncclBroadcast", place, place, count, _UINT8, 0, self._communicator, stream)
            self._wait(flat)

    def close(self) -> None:
        with self._lock:
            if self._communicator is not None:
                self._nccl.call("ncclCommAbort", self._communicator)  # it also ends a broadcast that hangs
                self._communicator = None

    def _wait(self, kept: Tensor) -> None:
        """Until the GPU is done with ``kept``.

        Raises:
            NcclError: it is not, after so many seconds.
        """
        done, until = self._stream.record_event(), time.monotonic() + self._seconds
        while not done.query():
            if time.monotonic() > until:
                raise NcclError(f"the workers did not take {kept.numel()} bytes in {self._seconds:g} s")
            time.sleep(_PAUSE_SECONDS)


def own_library() -> str:
    """The file that this process has loaded, for words to a user."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    return next((line.split()[-1] for line in lines if "libnccl.so" in os.path.basename(line)), LIBRARY)
