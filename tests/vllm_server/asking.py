"""A client of a few lines, for tests of the server."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass, field

from qwenvl.vllm_server.wire.body import Refusal, secret
from qwenvl.vllm_server.wire.health import Health
from qwenvl.vllm_server.wire.link import LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest


@dataclass(frozen=True)
class Client:
    """Asks the server at ``url``, and raises its refusals."""

    url: str
    token: str = field(default_factory=secret)

    def health(self) -> Health:
        return Health.unpack(self.ask("/health"))

    def sample(self, request: SampleRequest) -> SampleAnswer:
        return SampleAnswer.unpack(self.ask("/sample", request.pack()))

    def weights(self, request: WeightsRequest) -> WeightsAnswer:
        return WeightsAnswer.unpack(self.ask("/weights", request.pack()))

    def link(self, request: LinkRequest) -> Health:
        return Health.unpack(self.ask("/link", request.pack()))

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise Refusal.of_answer(error.code, error.read()) from None
