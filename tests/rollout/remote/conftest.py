"""An engine in front of servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.remote.engine import VllmEngine
from qwenvl.rollout.remote.link import Links
from qwenvl.rollout.remote.server import Server
from qwenvl.rollout.remote.servers import Servers


@pytest.fixture
def engine_of() -> Callable[..., VllmEngine]:
    """``engine_of(model, processor, fakes)``"""

    def make(
        model, processor, fakes, *, deadline: float = 30.0, patience: float = 0.3, direct: bool = False
    ) -> VllmEngine:
        servers = Servers([Server(each.address) for each in fakes], patience=patience)
        links = Links(torch.device("cpu"), deadline) if direct else None
        return VllmEngine(LocalEngine(processor.tokenizer, model), servers, deadline=deadline, links=links)

    return make
