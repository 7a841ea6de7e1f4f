"""Awaits the work for a request, as long as its time lasts and its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qwenvl.use.chat_request import ApiError, Patience

SECONDS_BETWEEN_LOOKS = 0.5  # at whether a client is still there
Some = TypeVar("Some")
IsGone = Callable[[], Awaitable[bool]]
"""Says whether the client of a request has left."""


async def _never_gone() -> bool:
    return False


async def patiently(work: Awaitable[Some], patience: Patience, is_gone: IsGone = _never_gone) -> Some:
    """The result of ``work``, which is cancelled where the time of a request is up or its client has left.

    Args:
        is_gone: by default it is not asked.

    Raises:
        ApiError: the time is up, or the client has left.
    """
    task = asyncio.ensure_future(work)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=min(SECONDS_BETWEEN_LOOKS, patience.left()))
            if done:
                result = task.result()
                patience.check()  # what was made for a request that has ended is no answer
                return result
            if await is_gone():
                patience.end(ApiError(499, "the client is gone"))
            patience.check()
    finally:
        task.cancel()
