"""Weights along a link to real vLLM, by its own steps for the transfer of weights."""

from __future__ import annotations

import threading

import pytest
import torch

from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.remote import weights as weights_module
from qwenvl.rollout.remote.link import Links
from qwenvl.rollout.remote.server import Server, ServerLostError
from qwenvl.rollout.remote.weights import Handover
from tests.vllm_server.policy import WIDE, Policy, local_and_server

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(24, temperature=0.0)


def test_they_are_those_of_a_file(tiny_checkpoint, start_server, monkeypatch):
    """All of them in parts, then what learns. The server is killed in the next sync, and the trainer notices."""
    monkeypatch.setattr(weights_module, "PART_BYTES", 200_000)
    folder = tiny_checkpoint("qwen2_5_vl", **WIDE)
    policy, process = Policy.load(folder), start_server(folder)
    prompt = policy.prompt(5, (3, 6, 8, 0.37), 2, (2, 4, 6, 1.1), 4)
    server, links = Server(process.url.removeprefix("http://")), Links(torch.device("cpu"), 60.0)
    local_and_server(policy, process.client, prompt, GREEDY)
    policy.model.requires_grad_(True)
    for version, base, layers in ((1, None, ()), (2, 1, ("layers.1",)), (3, 2, ())):
        policy.change(*layers)
        with Handover(policy.model, version, "test", 60.0, links) as give:
            give(server, process.health(), base)
        local_and_server(policy, process.client, prompt, GREEDY, version=version)
    health = process.health()
    policy.change()
    threading.Timer(0.05, process.kill).start()
    with pytest.raises(ServerLostError), Handover(policy.model, 4, "test", 60.0, links) as give:
        for version in range(4, 1000):
            give._version = version
            give(server, health, version - 1)
