"""What becomes of prompts when servers die, raise, are slow, answer wrongly, or are somebody else's."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch

from qwenvl.rollout import engine as engine_module
from qwenvl.rollout.engine import EngineLostError, WeightsLostError, lost_together
from qwenvl.rollout.servers import Server, ServerRefusedError
from qwenvl.vllm_server.wire import SampleAnswer
from tests.rollout.served import WAYS, as_prompts, assert_same, engine_of, local_completions


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
            (rollout,) = engine.sample(model, [as_prompts(inputs)], 2, params, 3)
            assert_same(rollout, expected, 2)
            return rollout

        return fakes, engine, sample

    return make


@pytest.mark.parametrize("fault", ["drop", "die", "engine", "busy"])
def test_what_a_lost_server_had_is_asked_of_the_other(scene, fault):
    (one, two), _, sample = scene(2)
    one.faults = [fault]
    assert sample().boots == ({two.boot} if fault == "die" else {one.boot, two.boot})
    assert sum(len(request.prompts) for request in [*one.asked, *two.asked]) == 4


def test_a_slow_answer_is_no_answer(scene):
    (one, two), _, sample = scene(2, deadline=2.0)
    one.faults = ["slow"]
    sample()
    assert sum(len(request.prompts) for request in two.asked) >= 2


def test_a_new_server_is_given_everything_and_goes_on(scene, fake):
    (one,), _, sample = scene(1, patience=20.0)
    sample()
    one.faults = ["die"]
    port, known = one.port, set(one.given[0][1])
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
    ((request, names),) = started[0].given
    assert request.base is None and names == known


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
    one.faults = ["engine"] * 9
    with pytest.raises(EngineLostError, match=r"4 prompts were sent 4 times and not answered.*brought about"):
        sample()


def with_row(number: int, answer: SampleAnswer, **columns) -> SampleAnswer:
    """The answer with other values in one row."""
    rows = {name: list(getattr(answer, name)) for name in columns}
    for name, change in columns.items():
        rows[name][number] = change(rows[name][number])
    return replace(answer, **{name: tuple(each) for name, each in rows.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer, banned: replace(answer, version=1), "sampled by weights of version 1"),
        (lambda answer, banned: replace(answer, ids=(), logprobs=(), finish_reasons=()), "0 completions, 8 were"),
        (
            lambda answer, banned: with_row(1, answer, ids=lambda row: row[:0], logprobs=lambda row: row[:0]),
            "0 tokens and 0 log-probs, expected 1 to 8",
        ),
        (lambda answer, banned: with_row(1, answer, logprobs=lambda row: row * torch.nan), "log-probs of at most 0"),
        (
            lambda answer, banned: with_row(
                1, answer, ids=lambda row: torch.full((9,), 7), logprobs=lambda row: torch.full((9,), -1.0)
            ),
            "9 tokens and 9 log-probs",
        ),
        (
            lambda answer, banned: with_row(1, answer, ids=lambda row: torch.full_like(row, banned)),
            "which must not be sampled",
        ),
    ],
)
def test_a_wrong_answer_is_an_error(scene, change, message):
    (one,), engine, sample = scene(1)
    one.faults = [lambda answer: change(answer, engine._local.vision_ids[0])]
    with pytest.raises(ServerRefusedError, match=message):
        sample()


def test_a_server_of_another_run_is_not_fought_over(scene, tiny_pair):
    (one,), _, sample = scene(1)
    model, processor = tiny_pair(initializer_range=0.1)
    engine_of(model, processor, [one]).sync(model, 0)  # it takes a server over that it knows nothing of
    with pytest.raises(ServerRefusedError, match="somebody else has given it weights"):
        sample()


def test_what_was_asked_ahead_is_lost_with_its_server(tiny_pair, scene, random_prompts, fake):
    """A thread has no weights to give: the error comes at once, and who has some may ask again."""
    (one,), engine, _ = scene(1, patience=3600.0)
    model, _ = tiny_pair(initializer_range=0.1)
    ahead = engine.request(model, [as_prompts(random_prompts(model, ["t"]))], 2, WAYS["sampled"], 3)
    one.version, one.boot = 0, "another"
    with pytest.raises(WeightsLostError, match="it was started again, and has not the weights of this request"):
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
        ({"hidden_size": 128}, "its hidden_size is 128, the policy's 64"),
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
