"""A server that dies, and one that must."""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.servers import ServerLostError
from qwenvl.vllm_server.server import RESTART
from qwenvl.vllm_server.wire import WeightsRequest
from tests.vllm_server.policy import WIDE, Policy, local_and_server

pytestmark = pytest.mark.vllm

ENDLESS = SamplingParams(1900, temperature=1.0)  # minutes, on any machine, if it were left to end


@pytest.fixture(scope="module")
def policy(tiny_checkpoint):
    """A tiny Qwen2-VL policy that makes prompts and requests for the server."""
    return Policy.load(tiny_checkpoint("qwen2_vl", **WIDE))


def endless(policy):
    return replace(policy.request(policy.prompt(4), ENDLESS, group_size=64), end_ids=[])


def under_way(client, pool, request, deadline: float = 300.0) -> Future:
    """A request whose sampling has begun."""
    asked, other = pool.submit(replace(client, deadline=deadline).sample, request), replace(client, deadline=0.5)
    while True:
        try:
            other.sample(replace(request, version=99))  # which the engine has no part in
        except ServerLostError as refusal:
            if "other requests ran" in str(refusal):
                return asked


def test_a_server_that_is_killed_is_gone_at_once_and_comes_back_with_its_first_weights(
    policy, tiny_checkpoint, start_server
):
    folder = tiny_checkpoint("qwen2_vl", **WIDE)
    server = start_server(folder)
    boot = server.health().boot
    server.client.put(WeightsRequest(1, 0, True, tensors=policy.change()))
    with ThreadPoolExecutor(1) as pool:
        asked = under_way(server.client, pool, replace(endless(policy), version=1))
        server.kill()
        with pytest.raises(ServerLostError, match="no answer to"):
            asked.result(timeout=60)
    with pytest.raises(ServerLostError, match="no answer to"):
        server.health()

    again = start_server(folder)
    assert again.health().version == 0 and again.health().boot != boot
    prompt, greedy = policy.prompt(5, (3, 6, 8, 0.37), 4), SamplingParams(24, temperature=0.0)
    with pytest.raises(ServerLostError, match="for weights of version 1, the server has version 0"):
        again.client.sample(policy.request(prompt, greedy, version=1))
    again.client.put(WeightsRequest(2, 0, True, tensors=policy.change()))
    local_and_server(policy, again.client, prompt, greedy, version=2)

    with ThreadPoolExecutor(1) as pool:  # and in a sync, of which it reads no more
        again.process.send_signal(signal.SIGSTOP)
        asked = pool.submit(again.client.put, WeightsRequest(3, 0, True, tensors=policy.change()))
        again.kill()
        with pytest.raises(ServerLostError, match="no answer to"):
            asked.result(timeout=60)


def test_an_engine_that_failed_ends_the_server(policy, tiny_checkpoint, start_server):
    """At a deadline, and where vLLM raises: a name that it does not know is found when others are written."""
    server = start_server(tiny_checkpoint("qwen2_vl", **WIDE))
    unknown = policy.change() | {"model.language_model.layers.7.mlp.up_proj.bias": torch.zeros(3)}
    with pytest.raises(ServerLostError, match=r"the engine raised .*layers\.7.*: the server ends"):
        server.client.put(WeightsRequest(1, 0, True, tensors=unknown))
    with pytest.raises(ServerLostError):
        server.client.sample(policy.request(policy.prompt(4), ENDLESS))
    assert server.process.wait(60) == RESTART
    assert "the server ends: " in server.output()


def test_a_deadline_ends_the_server(policy, tiny_checkpoint, start_server):
    server = start_server(tiny_checkpoint("qwen2_vl", **WIDE))
    with ThreadPoolExecutor(1) as pool:
        asked = under_way(server.client, pool, endless(policy), 5.0)
        with pytest.raises(ServerLostError, match="not done after 5 s: the server ends"):
            asked.result(timeout=60)
    assert server.process.wait(60) == RESTART
