"""What the server asks of an engine. vLLM's is in ``engine``; a test may have another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from qwenvl.vllm_server.family import Shape
from qwenvl.vllm_server.wire.link import LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsRequest


@dataclass(frozen=True)
class Completions:
    """N completions. See ``SampleAnswer``, whose names these are."""

    ids: tuple[Tensor, ...]
    logprobs: tuple[Tensor, ...]
    finish_reasons: tuple[str, ...]
    cached_tokens: int = 0


class Backend(Protocol):
    """An engine with weights of its own. All calls come from one thread.

    Attributes:
        shape: what a request must fit.
        dtype: of its weights.
        workers: processes that the model is split over.
        nccl: the version of NCCL. 0: it computes on a CPU.
    """

    shape: Shape
    dtype: str
    workers: int
    nccl: int

    def check(self, request: SampleRequest) -> None:
        """Raises `Refusal` for what the model cannot take, before anything is sampled."""
        ...

    def sample(self, request: SampleRequest, salt: str) -> Completions:
        """The completions of a request that was checked. Nothing computed under another ``salt`` is used again."""
        ...

    def load(self, path: str) -> set[str]:
        """Takes the weights of a file, forgets what was computed with others, and says which parameters it wrote."""
        ...

    def join(self, request: LinkRequest) -> None:
        """Takes part in a link, in the place of the one that it had."""
        ...

    def receive(self, request: WeightsRequest) -> set[str]:
        """Takes weights that come along the link, and does as ``load``."""
        ...

    def language_parameters(self) -> set[str]:
        """The parameters that a sync of all weights must write."""
        ...

    def sleep(self) -> None:
        """Gives the memory of weights and caches back."""
        ...

    def wake(self) -> None:
        """Takes it again, with the weights that it had."""
        ...
