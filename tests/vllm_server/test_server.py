"""Versions, turns, deadlines, ends and HTTP, with an engine that is no model."""

from __future__ import annotations

import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file

from qwenvl.vllm_server import server as server_module
from qwenvl.vllm_server.__main__ import parse
from qwenvl.vllm_server.server import SamplingServer
from qwenvl.vllm_server.wire import Draw, Prompt, Refusal, SampleRequest, WeightsRequest, secret
from tests.vllm_server.serving import Client, FakeEngine, serving

WEIGHTS = {"a.q_proj.weight": torch.ones(1), "a.k_proj.weight": torch.ones(1), "a.v_proj.weight": torch.ones(1)}


def request(version: int = 0, deadline_s: float = 60.0, first: int = 7) -> SampleRequest:
    ids = torch.tensor([first, 1, 2])
    return SampleRequest(version, 2, Draw(3), (), (), deadline_s, (Prompt(ids, torch.arange(3).expand(3, -1), 1),))


def refused(kind: str, call, *args) -> str:
    with pytest.raises(Refusal) as caught:
        call(*args)
    assert caught.value.kind == kind, str(caught.value)
    return str(caught.value)


def test_a_request_is_answered_with_its_version_and_process():
    with serving(FakeEngine()) as (server, url):
        answer = Client(url).sample(request())
        assert [each.tolist() for each in answer.ids] == [[7], [7]]
        assert (answer.version, answer.boot) == (0, server.boot)
        assert answer.cached_tokens == 4


def test_only_the_weights_that_were_asked_for_sample():
    with serving(FakeEngine(set(WEIGHTS))) as (_, url):
        client = Client(url)
        said = refused("version", client.sample, request(version=5))
        assert said == "the request is for weights of version 5, the server has version 0"
        assert client.weights(WeightsRequest(5, None, tensors=WEIGHTS)).version == 5
        assert client.health().version == 5
        assert client.sample(request(version=5)).logprobs[0].tolist() == [-3.0]
        refused("version", client.sample, request(version=4))


def test_parts_of_a_version_sample_nothing_until_all_are_there():
    weights = WEIGHTS | {"b.weight": torch.zeros(2)}
    with serving(FakeEngine(set(weights))) as (_, url):
        client = Client(url)
        answer = client.weights(WeightsRequest(1, None, part=0, parts=2, tensors=WEIGHTS))
        assert answer.version is None and client.health().version is None
        said = refused("version", client.sample, request(version=1))
        assert said.endswith("the server has a part of a version")
        other = WeightsRequest(2, None, part=1, parts=2, tensors={"b.weight": torch.zeros(2)})
        assert "does not follow" in refused("request", client.weights, other)
        last = WeightsRequest(1, None, part=1, parts=2, tensors={"b.weight": torch.zeros(2)})
        assert client.weights(last).version == 1
        client.sample(request(version=1))


def test_all_weights_must_be_all():
    with serving(FakeEngine(set(WEIGHTS) | {"b.weight"})) as (_, url):
        client = Client(url)
        said = refused("request", client.weights, WeightsRequest(1, None, tensors=WEIGHTS))
        assert said == "1 parameters of the model were not among all weights: b.weight, ..."
        assert client.health().version is None
        refused("version", client.sample, request(version=0))
        assert client.weights(WeightsRequest(2, None, tensors=WEIGHTS | {"b.weight": torch.ones(1)})).version == 2


def test_a_part_goes_over_the_version_that_it_was_made_for():
    with serving(FakeEngine(set(WEIGHTS))) as (_, url):
        client = Client(url)
        client.weights(WeightsRequest(1, None, tensors=WEIGHTS | {"c.weight": torch.ones(1)}))
        assert "over version 2, the server has 1" in refused("version", client.weights, WeightsRequest(3, base=2))
        assert client.health().version == 1  # refused before anything was changed
        assert client.weights(WeightsRequest(2, base=1, tensors=WEIGHTS)).version == 2


def test_weights_by_a_file(tmp_path):
    engine = FakeEngine()
    with serving(engine) as (_, url):
        client, path = Client(url), tmp_path / "weights.safetensors"
        gone = WeightsRequest(1, None, path=str(path))
        assert "no file of weights" in refused("request", client.weights, gone)
        save_file(WEIGHTS, path)
        assert client.weights(gone).version == 1
        assert set(engine.weights) == set(WEIGHTS)


def test_requests_take_turns_and_health_does_not_wait():
    engine = FakeEngine()
    engine.gate.clear()
    with serving(engine) as (_, url), ThreadPoolExecutor(2) as pool:
        client = Client(url)
        first = pool.submit(client.sample, request(first=3))
        assert engine.entered.wait(60)
        second = pool.submit(client.sample, request(first=4))
        assert client.health().busy
        said = refused("busy", client.sample, request(deadline_s=0.05))
        assert said == "other requests ran for the 0.05 s of this one"
        engine.gate.set()
        assert first.result().ids[0].tolist() == [3] and second.result().ids[0].tolist() == [4]


def test_an_engine_that_raised_refuses_and_ends():
    engine = FakeEngine()
    engine.error = AssertionError("Encoder cache miss")
    with serving(engine) as (server, url):
        ended = threading.Event()
        server.exit = ended.set
        client = Client(url)
        said = refused("engine", client.sample, request())
        assert said == "the engine raised AssertionError: Encoder cache miss: the server ends"
        assert ended.wait(60)
        assert client.health().raised == "AssertionError: Encoder cache miss"
        engine.error = None
        assert "the server is ending" in refused("engine", client.sample, request())


def test_a_request_that_is_not_done_in_time_ends_the_server():
    engine = FakeEngine()
    engine.gate.clear()
    with serving(engine) as (server, url):
        ended = threading.Event()
        server.exit = ended.set
        said = refused("deadline", Client(url).sample, request(deadline_s=0.2))
        assert said == "not done after 0.2 s: the server ends"
        assert ended.wait(60)
        refused("engine", Client(url).sample, request())


@pytest.mark.parametrize("content", [b"", b"root:x:0:0:root:/root:/bin/bash\n" * 9, b"\xff" * 64, bytes(64)])
def test_a_file_that_holds_no_weights_is_refused_and_the_server_stays(tmp_path, content):
    path = tmp_path / "passwd"
    path.write_bytes(content)
    with serving(FakeEngine()) as (_, url):
        said = refused("request", Client(url).weights, WeightsRequest(1, None, path=str(path)))
        assert said == f"{path}: not a file of safetensors"
        assert Client(url).health().raised is None and Client(url).health().version == 0


def test_a_token_is_asked_for():
    with serving(FakeEngine()) as (_, url):
        for wrong in ("", secret()[:-1], f"{secret()}x"):
            refused("token", Client(url, wrong).health)
        refused("token", Client(url, "").sample, request())
        assert Client(url).health().version == 0


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Host": "localhost:9000"}, True),  # of a tunnel
        ({"Host": "attacker.example:8200"}, False),  # a name that was bound to this machine's address
        ({"Host": ""}, False),
        ({"Origin": "http://attacker.example"}, False),
    ],
)
def test_what_a_web_page_sends_is_refused(headers, allowed):
    with serving(FakeEngine()) as (_, url):
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {secret()}", **headers})
        assert connection.getresponse().status == (200 if allowed else 403)


def test_a_connection_without_a_request_is_closed(monkeypatch):
    monkeypatch.setattr(server_module.Handler, "timeout", 0.2)
    with serving(FakeEngine()) as (_, url), socket.create_connection(url.removeprefix("http://").split(":")) as idle:
        idle.settimeout(60)
        assert idle.recv(1) == b""


def test_paths_and_sizes_are_checked(monkeypatch):
    with serving(FakeEngine()) as (_, url):
        client = Client(url)
        assert "there is only /health" in refused("request", client.send, "/metrics")
        assert "there are /sample" in refused("request", client.send, "/generate", b"")
        assert "not safetensors" in refused("request", client.send, "/sample", b"{}")
        monkeypatch.setattr(server_module, "MOST_BYTES", 10)
        assert "at most 10" in refused("size", client.send, "/sample", b"x" * 11)
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.putrequest("POST", "/sample")
        connection.putheader("Authorization", f"Bearer {secret()}")
        connection.endheaders()
        answer = connection.getresponse()
        assert "no Content-Length" in str(Refusal.of_answer(answer.status, answer.read()))


def test_a_refusal_reaches_one_who_sends_much():
    """More than the buffers of the connection hold: the sender is still at it when it is refused."""
    with serving(FakeEngine()) as (_, url):
        refused("token", Client(url, "").send, "/sample", bytes(2**25))


def test_sleep_and_wake():
    engine = FakeEngine()
    with serving(engine, sleeps=True) as (_, url):
        client = Client(url)
        for _ in range(2):  # the second changes nothing
            client.send("/sleep", b"")
            assert engine.asleep and client.health().asleep
        refused("asleep", client.sample, request())
        refused("asleep", client.weights, WeightsRequest(1, None, tensors=WEIGHTS))
        client.send("/wake", b"")
        client.sample(request())
    with serving(FakeEngine()) as (_, url):
        assert "--sleeps" in refused("request", Client(url).send, "/sleep", b"")


def test_a_server_says_that_it_is_starting():
    server = SamplingServer("tiny")
    assert refused("starting", server.health) == "the model is being loaded"
    assert refused("starting", server.sample, request()) == "the model is being loaded"


@pytest.mark.parametrize(
    "flags",
    [["--max_model_len", "0"], ["--gpu_memory_utilization", "1.5"], ["--cache_gb", "0"], ["--max_num_seqs", "x"]],
)
def test_wrong_values_of_flags_are_refused(flags, capsys):
    with pytest.raises(SystemExit):
        parse(["m", *flags])
    assert flags[0] in capsys.readouterr().err
