"""Versions, turns, deadlines, ends and HTTP, with an engine that is no model."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qwenvl.rollout.servers import ServerLostError, ServerRefusedError
from qwenvl.types import SamplingParams
from qwenvl.vllm_server.server import SamplingServer
from qwenvl.vllm_server.wire import Health, Prompt, Refusal, SampleRequest, WeightsRequest, secret
from tests.vllm_server.serving import FakeEngine, serving

ROOT = str(Path(__file__).resolve().parents[2])
WEIGHTS = {"a.q_proj.weight": torch.ones(1), "a.k_proj.weight": torch.ones(1), "a.v_proj.weight": torch.ones(1)}


def request(version: int = 0, first: int = 7) -> SampleRequest:
    prompt = Prompt(torch.tensor([first, 1, 2]), torch.arange(3).expand(3, -1), 1)
    return SampleRequest(version, 2, SamplingParams(3), [], [], [prompt])


def all_of(version: int, **more) -> WeightsRequest:
    return WeightsRequest(version, 0, True, tensors=WEIGHTS | more)


def refused(call, *args, again: bool = False) -> str:
    """The message of a refusal: ``again`` where another try may have an answer."""
    with pytest.raises(ServerLostError if again else ServerRefusedError) as caught:
        call(*args)
    return str(caught.value).split(": ", 2 if again else 3)[-1]


def test_only_the_weights_that_were_asked_for_sample():
    with serving(FakeEngine(set(WEIGHTS))) as (server, client):
        answer = client.sample(request())
        assert answer.ids == [[7], [7]] and (answer.version, answer.boot, answer.cached_tokens) == (0, server.boot, 4)
        said = refused(client.sample, request(version=5), again=True)
        assert said == "the request is for weights of version 5, the server has version 0"
        assert client.put(all_of(5)) == 5 == client.health().version
        assert client.sample(request(version=5)).logprobs == [[-3.0]] * 2
        refused(client.sample, request(version=4), again=True)


def test_parts_of_a_version_sample_nothing_until_all_are_there():
    first, last = WeightsRequest(1, 0, False, tensors=WEIGHTS), {"b.weight": torch.zeros(2)}
    with serving(FakeEngine(WEIGHTS.keys() | last.keys())) as (_, client):
        assert client.put(first) is None and client.health().version is None
        assert refused(client.sample, request(version=1), again=True).endswith("the server has a part of a version")
        for version, part in ((2, 1), (1, 2)):
            said = refused(client.put, WeightsRequest(version, part, True, tensors=last), again=True)
            assert said == f"part {part} of version {version} does not follow what came before"
        assert client.put(first) is None  # of another process of the run: it is there already
        assert client.put(WeightsRequest(1, 1, True, tensors=last)) == 1
        assert client.put(first) == 1
        client.sample(request(version=1))
        assert client.put(WeightsRequest(2, 0, False, tensors=WEIGHTS)) is None
        assert client.put(all_of(3, **last)) == 3  # of another run: version 2 is given up


def test_missing_weights_are_refused_and_a_file_may_carry_them(tmp_path):
    engine = FakeEngine(WEIGHTS.keys() | {"b.weight"})
    with serving(engine) as (_, client):
        path = tmp_path / "weights.safetensors"
        assert refused(client.put, all_of(1)) == "1 parameters were not among all weights: b.weight, ..."
        assert client.health().version is None
        refused(client.sample, request(version=0), again=True)
        by_path = WeightsRequest(1, 0, True, path=str(path))
        assert "no file of weights" in refused(client.put, by_path)
        save_file(WEIGHTS | {"b.weight": torch.ones(1)}, path)
        assert client.put(by_path) == 1 and set(engine.weights) == engine.parameters
    with pytest.raises(Refusal, match="the model is being loaded"):
        SamplingServer("tiny").health()


def test_requests_take_turns_and_health_does_not_wait():
    engine = FakeEngine()
    engine.gate.clear()
    with serving(engine) as (_, client), ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.sample, request(first=3))
        assert engine.entered.wait(60)
        second = pool.submit(client.sample, request(first=4))
        assert client.health().version == 0
        said = refused(replace(client, deadline=0.05).sample, request(), again=True)
        assert said == "other requests ran for the 0.05 s of this one"
        engine.gate.set()
        assert first.result().ids[0] == [3] and second.result().ids[0] == [4]


@pytest.mark.parametrize(
    ("deadline", "message", "reason"),
    [
        (60.0, "the engine raised AssertionError: Encoder cache miss: the server ends", "AssertionError: Encoder"),
        (0.2, "not done after 0.2 s: the server ends", "a request was not done after 0.2 s"),
    ],
)
def test_an_engine_that_raised_or_is_late_ends_the_server(deadline, message, reason):
    engine, ended = FakeEngine(), threading.Event()
    engine.error = AssertionError("Encoder cache miss")
    if deadline < 1:
        engine.gate.clear()
    with serving(engine) as (server, client):
        server.exit = ended.set
        assert refused(replace(client, deadline=deadline).sample, request(), again=True) == message
        assert ended.wait(60)
        for call, *args in ((client.health,), (client.sample, request())):
            assert f"the server is ending: {reason}" in refused(call, *args, again=True)


@pytest.mark.parametrize("length", [0, 62])
def test_a_prompt_that_does_not_fit_is_refused_with_its_place(length):
    prompts = [*request().prompts, Prompt(torch.zeros(length).long(), torch.zeros(3, length), 1)]
    with serving(FakeEngine()) as (_, client):
        said = refused(client.sample, replace(request(), prompts=prompts))
    assert f"{length} tokens and 3 new ones exceed the server's --max_model_len 64" in said


def test_connections_without_the_token_keep_nobody_out(monkeypatch):
    monkeypatch.setattr("qwenvl.vllm_server.server.MOST_STRANGERS", 3)
    with serving(FakeEngine(set(WEIGHTS))) as (server, client), ExitStack() as open_ones:
        client.health()  # its connection stays
        host, _, port = client.address.rpartition(":")
        strangers = []
        for _ in range(5):
            stranger = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=60))
            stranger.sendall(b"GET /health HTTP/1.1\r\nX")
            strangers.append(stranger)
        assert strangers[0].recv(1) == b"" == strangers[1].recv(1), "the oldest were closed for the newest"
        assert client.health().boot == server.boot
        strangers[4].sendall(b": y\r\n\r\n")
        assert strangers[4].recv(12) == b"HTTP/1.1 401"


def test_the_token_the_path_and_the_body_are_checked(monkeypatch):
    with serving(FakeEngine()) as (_, client):
        for path, body, said in (("/metrics", b"", "there are /health"), ("/sample", b"{}", "not a SampleRequest")):
            assert said in refused(client._request, "POST", path, Health, 5.0, body)
        for wrong in (secret()[:-1], f"{secret()}x"):
            monkeypatch.setenv("QWENVL_VLLM_TOKEN", wrong)
            assert refused(client.health).startswith("the token is missing or wrong")


@pytest.mark.parametrize(("header", "value"), [("Deadline", "soon"), ("Content-Length", "1_0"), ("Deadline", "-1")])
def test_a_header_that_is_no_number_is_refused(header, value):
    with serving(FakeEngine()) as (_, client):
        connection = HTTPConnection(client.address, timeout=60)
        headers = {"Authorization": f"Bearer {secret()}", "Content-Length": "0", header: value}
        connection.request("POST", "/sleep", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 400 and f"{header}: expected a number" in answer.read().decode()
        connection.close()
        client.health()


def test_a_request_wakes_a_server_that_sleeps():
    engine = FakeEngine(set(WEIGHTS))
    with serving(engine, sleeps=True) as (_, client):
        for wake, message in ((client.sample, request()), (client.put, all_of(1))):
            for _ in range(2):  # the second changes nothing
                client.sleep()
                assert engine.asleep and client.health()
            wake(message)
            assert not engine.asleep
    with serving(FakeEngine()) as (_, client):
        assert "--sleeps" in refused(client.sleep)


@pytest.mark.vllm
def test_every_internal_of_vllm_that_is_used_exists(vllm_python):
    code = "from qwenvl.versions import missing_internals; print('missing', missing_internals('vllm'))"
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run([vllm_python, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines()[-1:] == ["missing []"], done.stdout + done.stderr
