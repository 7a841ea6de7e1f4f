"""The HTTP client of rewards that ask a server: a time limit for a request as a whole, a largest reply.

The client of the package ``openai`` limits each wait for bytes, and not the waits of a request together: it waits
without end for a server that sends a byte now and then. It reads replies of any size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import openai

# httpx2, or httpx under earlier versions of openai: errors are retried only if they are of the library that it uses.
http: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])

MOST_BYTES = 10_000_000
MOST_DIGITS = 20  # of a Content-Length that is read as a number


class RefusedReplyError(openai.OpenAIError):
    """A reply that is not read. Openai 3 does not repeat the request, openai 2 does."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Sends a request and reads its reply, redirects included, within one time limit.

    Args:
        seconds: a request that takes longer raises the library's ReadTimeout, which the package ``openai`` retries.
    """

    def __init__(self, seconds: float) -> None:
        # Without compression: a few kilobytes may stand for gigabytes, and are decoded at once.
        headers = {"Accept-Encoding": "identity"}
        super().__init__(timeout=seconds, headers=headers, event_hooks={"response": [_bound]})
        self._seconds = seconds

    async def send(self, request: Any, **options: Any) -> Any:
        """The reply to a request."""
        try:
            async with asyncio.timeout(self._seconds):
                return await super().send(request, **options)
        except TimeoutError as error:
            said = f"no whole reply within {self._seconds:g} s (timeout)"
            raise http.ReadTimeout(said, request=request) from error


async def _bound(response: Any) -> None:
    """Refuse a reply that is too long or compressed by its headers, else count the bytes that are read of it."""
    if (encoding := response.headers.get("Content-Encoding", "identity").strip().lower()) != "identity":
        raise RefusedReplyError(f"the reply is compressed ({encoding!r}), which the request did not allow")
    declared = response.headers.get("Content-Length", "")
    if declared.isdecimal() and (len(declared) > MOST_DIGITS or int(declared) > MOST_BYTES):
        raise RefusedReplyError(_too_long())
    response.stream = _BoundedStream(response.stream)


class _BoundedStream(http.AsyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > MOST_BYTES:
                raise RefusedReplyError(_too_long())
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _too_long() -> str:
    return f"the reply is longer than {MOST_BYTES:,} bytes"
