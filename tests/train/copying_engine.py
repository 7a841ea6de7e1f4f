"""An engine with weights of its own in the process of the tests: it samples from a copy of the policy."""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager

import torch

from qwenvl.rollout import local
from qwenvl.rollout.options import EngineOptions
from qwenvl.step import kernels

_plain_exponential, _of_this_thread = torch.Tensor.exponential_, threading.local()


@contextmanager
def seeded(seed, device):
    """As the engine's own, without the state of the process, which the training thread saves and restores."""
    _of_this_thread.generator = torch.Generator(device).manual_seed(seed)
    yield
    del _of_this_thread.generator


def exponential(rates):
    return _plain_exponential(rates, generator=getattr(_of_this_thread, "generator", None))


class CopyingEngine:
    """Samples from a copy of the policy, which is as old as the last sync.

    Attributes:
        versions: of the weights that it was given, without those that it had.
        requests: for each request that was made the name of its thread and the version that sampled it.
        fails: raised by the request with this number, if it is not None.
    """

    fails: tuple[int, BaseException] | None = None

    def __init__(self, engine):
        self.engine, self.copy, self.versions, self.requests = engine, None, [], []
        self.known = None

    def sync(self, model, version):
        if version is None or version != self.known:
            self.copy, self.known = copy.deepcopy(model), version
            self.versions.append(version)

    def forget(self):
        self.known = None

    def rest(self):
        pass

    def sample(self, model, request):
        return self.request(model, request)()

    def request(self, model, request):
        sampled_by, version = self.copy, self.versions[-1]

        def made():
            self.requests.append((threading.current_thread().name, version))
            if self.fails is not None and self.fails[0] == len(self.requests):
                raise self.fails[1]
            return self.engine.sample(sampled_by, request)

        return made


def draw_by_thread(patch) -> None:
    """From now on each thread that samples has random numbers of its own.

    Those of a process are not safe from its training thread: its checkpointed layers save and restore their state.
    """
    patch.setattr(local, "seeded", seeded)
    patch.setattr(torch.Tensor, "exponential_", exponential)


def with_copying_engine(patch) -> None:
    """From now on trainers have such an engine.

    Args:
        patch: pytest's ``monkeypatch``.
    """
    patch.setattr(kernels, "server_engine", lambda args, policy, local: CopyingEngine(local))
    draw_by_thread(patch)
    patch.setattr(EngineOptions, "engine_has_own_weights", True)
