"""What becomes of prompts when servers die, raise, are slow, answer wrongly, or are somebody else's."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from qwenvl.rollout import engine as engine_module
from qwenvl.rollout import servers as servers_module
from qwenvl.rollout.engine import EngineLostError, SamplingParams, WeightsLostError, lost_together
from qwenvl.rollout.servers import Server, ServerLostError, ServerRefusedError
from qwenvl.vllm_server.wire import SampleRequest
from tests.rollout.served import WAYS, assert_same, engine_of, local_completions


@pytest.fixture
def scene(tiny_pair, fake, random_prompts):
    """``scene(servers)`` -> the fakes, and a function that samples and holds the completions to the local ones."""
    model, processor = tiny_pair(initializer_range=0.1)
    inputs, params = random_prompts(model, ["tvt", "t", "tit", "tt"]), WAYS["sampled"]
    expected = local_completions(model, processor, inputs, 2, params, 3)

    def make(servers: int, **settings):
        fakes = [fake(initializer_range=0.1) for _ in range(servers)]
        engine = engine_of(model, processor, fakes, **settings)
        engine.sync(model, 0)

        def sample():
            (rollout,) = engine.sample(model, [inputs], 2, params, 3)
            assert_same(rollout, expected, 2)
            return rollout

        return fakes, engine, sample

    return make


@pytest.mark.parametrize("fault", ["drop", "die", "engine", "busy"])
def test_what_a_lost_server_had_is_asked_of_the_other(scene, fault):
    (one, two), _, sample = scene(2)
    one.faults = [fault]
    assert sample().boots == ({one.boot, two.boot} if fault in ("drop", "busy") else {two.boot})
    assert sum(len(request.prompts) for request in [*one.asked, *two.asked]) == 4


def test_no_answer_in_time(monkeypatch):
    monkeypatch.setattr(servers_module, "MARGIN_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"127.0.0.1:{silent.getsockname()[1]}", deadline=0.2)
        with pytest.raises(ServerLostError, match=rf"^{server.address}: no answer to /sample after \d of at most 0.2 s"):
            server.sample(SampleRequest(1, 1, SamplingParams(1), [], [], []))


def test_a_new_server_is_given_everything_and_goes_on(scene, fake):
    (one,), _, sample = scene(1, patience=20.0)
    sample()
    one.faults = ["die"]
    port = one.port
    started = []

    def start_again():
        while True:
            try:
                started.append(fake(port=port, initializer_range=0.1))
                return
            except OSError:  # the port is not free yet
                time.sleep(0.02)

    threading.Timer(0.3, start_again).start()
    assert sample().boots == {started[0].boot} != {one.boot}
    assert [names for _, names in started[0].given] == [names for _, names in one.given]


def test_a_server_that_dies_while_it_is_given_weights(tiny_pair, scene):
    (one, two), engine, sample = scene(2)
    one.faults = ["die weights"]
    model, _ = tiny_pair(initializer_range=0.1)
    engine.sync(model, 1)
    assert sample().boots == {two.boot}


def test_all_servers_lost(scene):
    fakes, _, sample = scene(2)
    for each in fakes:
        each.die()
    with pytest.raises(EngineLostError, match=r"no server samples any more.*0\.3 s.*refused.*refused"):
        sample()


def test_prompts_that_no_server_survives(scene):
    (one,), _, sample = scene(1)
    one.faults = ["busy"] * 9
    with pytest.raises(EngineLostError, match=r"4 prompts were sent 4 times and not answered.*brought about"):
        sample()


def test_what_was_asked_ahead_is_lost_with_its_server(tiny_pair, scene, random_prompts, fake):
    """A thread has no weights to give: the error comes at once, and who has some may ask again."""
    (one,), engine, _ = scene(1, patience=3600.0)
    model, _ = tiny_pair(initializer_range=0.1)
    ahead = engine.request(model, [random_prompts(model, ["t"])], 2, WAYS["sampled"], 3)
    one.version, one.boot = 0, "another"
    with pytest.raises(WeightsLostError, match="started again, and without the weights of this request"):
        ahead()


def test_processes_lose_weights_together_unless_one_lost_more(scene, monkeypatch):
    _, engine, _ = scene(1)
    for errors, kind in (
        ([None, WeightsLostError("a")], WeightsLostError),
        ([WeightsLostError("a"), EngineLostError("b")], EngineLostError),
    ):
        monkeypatch.setattr(engine_module, "gather_object", lambda own, errors=errors: errors)
        with pytest.raises(EngineLostError) as raised, lost_together(engine):
            pass
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"family": "qwen3_vl"}, "its model type is qwen3_vl, the policy's qwen2_5_vl"),
        ({"num_layers": 3}, "its num_hidden_layers is 3, the policy's 2"),
        ({"tie_word_embeddings": False}, "its head tied to the embeddings is False, the policy's True"),
    ],
)
def test_another_model(tiny_pair, fake, other, told):
    model, processor = tiny_pair()
    server = fake(**other)
    with pytest.raises(ServerRefusedError, match=told):
        engine_of(model, processor, [server]).sync(model, 0)
    assert not server.given


def test_the_token(tiny_pair, fake, monkeypatch):
    model, processor = tiny_pair()
    engine = engine_of(model, processor, [fake()])
    engine.sync(model, 0)
    monkeypatch.setenv("QWENVL_VLLM_TOKEN", "another")
    with pytest.raises(ServerRefusedError, match="token is missing"):
        engine.sync(model, 1)


def test_where_a_server_is():
    assert Server("localhost:1").shares_memory and not Server("gpu-7:1").shares_memory
