"""The model behind ``qwenvl serve``: requests of OpenAI's chat API take a place, get a prompt, and are sampled."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from qwenvl.evaluate.respondent import build_respondent, collator_of
from qwenvl.rewards import build_rubric
from qwenvl.use.awaiting import IsGone
from qwenvl.use.options import UseRequest
from qwenvl.use.places import Places
from qwenvl.use.prompts import PromptMaker, ReceiveBody
from qwenvl.use.request_folder import RequestFolder
from qwenvl.use.sampling import Sampling


class ChatServer:
    """A model, and the requests that wait for it.

    Attributes:
        places: of the requests.
        prompts: makes their prompts.
        sampling: the model, and the requests with a prompt.
    """

    def __init__(self, request: UseRequest) -> None:
        self.limits = request.options
        self.name = request.model.name
        self.collator = collator_of(request.config)
        respondent = build_respondent(request.config, self.collator, build_rubric())
        self.sampling = Sampling(respondent, self.collator, request.config)
        self.places = Places(self.limits, self.sampling.sampled_now)
        self.prompts = PromptMaker(
            request,
            self.sampling.respondent,
            self.collator,
            self.places,
            self.sampling.waiting_bytes,
        )
        self._folder = Path(tempfile.mkdtemp(prefix="qwenvl-serve-"))  # of the media of requests

    @property
    def active(self) -> int:
        """How many requests are received, read, wait or are sampled."""
        return self.places.count

    async def answered(self, receive: ReceiveBody, is_gone: IsGone, client: str = "") -> AsyncGenerator[Any, None]:
        """First the ``Pending`` of a request, then its events. Its place is free when the iterator ends.

        Args:
            receive: its body.
            is_gone: says whether the client has left. It is asked once the body is there.
            client: the address that it comes from. Clients take turns.

        Raises:
            ApiError: the request cannot be answered.
        """
        with self.places.place(client) as patience:
            folder = RequestFolder(self._folder)
            try:
                pending = await self.prompts.pending(receive, folder, patience, is_gone)
                yield pending
                async with aclosing(self.sampling.answered(pending, self.places.clients, is_gone)) as events:
                    async for event in events:
                        yield event
            finally:
                folder.end()

    def end_requests(self) -> None:
        """Ends all work for requests as soon as it can be interrupted."""
        self.places.end_all("the server ends")

    def close(self) -> None:
        """Ends all work, and deletes the media of requests."""
        self.end_requests()
        self.prompts.close()
        self.sampling.close()
        shutil.rmtree(self._folder, ignore_errors=True)
