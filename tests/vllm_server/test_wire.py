"""The messages: they arrive as they were sent, and malformed ones are refused with the place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from qwenvl.vllm_server.wire import (
    KINDS,
    PROTOCOL,
    Draw,
    Health,
    Medium,
    Prompt,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    pack,
    secret,
)


def medium(offset: int = 1, rows: int = 2, **changes) -> Medium:
    embedded = torch.tensor([True] * rows)
    return replace(Medium("video", offset, embedded, torch.randn(rows, 3), (1, 2, 2)), **changes)


def prompt(length: int, *media: Medium, seed: int = 5) -> Prompt:
    return Prompt(torch.arange(length), torch.arange(3 * length).view(3, length), seed, media)


def request(*prompts: Prompt, **changes) -> SampleRequest:
    draw = Draw(7, temperature=0.7, top_p=0.9, stop_strings=("</answer>",))
    return replace(SampleRequest(3, 2, draw, (9, 8), (1,), 60.0, prompts), **changes)


def test_a_request_arrives_as_it_was_sent():
    half = medium(4, 3, kind="image", features=torch.randn(3, 4, dtype=torch.bfloat16), grid=(1, 6, 2))
    spread = medium(1, embedded=torch.tensor([True, False, True]))
    sent = request(prompt(9, spread, half, seed=2**61), prompt(1), prompt(4, medium()))
    got = SampleRequest.unpack(pack(sent))
    assert replace(got, prompts=()) == replace(sent, prompts=())
    for one, other in zip(got.prompts, sent.prompts, strict=True):
        assert one.seed == other.seed and one.ids.equal(other.ids) and one.positions.equal(other.positions)
        for x, y in zip(one.media, other.media, strict=True):
            assert (x.kind, x.offset, x.grid) == (y.kind, y.offset, y.grid)
            assert x.features.dtype == y.features.dtype and x.features.equal(y.features)
            assert x.embedded.equal(y.embedded)


def test_an_answer_arrives_as_it_was_sent():
    ids = (torch.tensor([4, 5]), torch.tensor([6]))
    logprobs = (torch.tensor([-1 / 3, -2e-7]), torch.tensor([0.0]))
    sent = SampleAnswer(3, "ab", ids, logprobs, ("stop", "length"), cached_tokens=2)
    got = SampleAnswer.unpack(pack(sent))
    assert all(map(torch.equal, got.ids + got.logprobs, ids + logprobs))
    assert replace(got, ids=(), logprobs=()) == replace(sent, ids=(), logprobs=())


def test_weights_arrive_as_they_were_sent():
    whole = torch.randn(4, 6)
    sent = WeightsRequest(2, base=1, part=1, parts=3, tensors={"a": whole[:2], "b": whole[1:].T})  # views that overlap
    got = WeightsRequest.unpack(pack(sent))
    assert replace(got, tensors={}) == replace(sent, tensors={})
    assert got.tensors["a"].equal(whole[:2]) and got.tensors["b"].equal(whole[1:].T)
    by_path = WeightsRequest(2, None, path="/dev/shm/w")
    assert WeightsRequest.unpack(pack(by_path)) == by_path


@pytest.mark.parametrize(
    "prompts, words",
    [
        ([], "no prompts"),
        ([prompt(3), prompt(0)], r"prompts\[1\]: no tokens"),
        ([replace(prompt(3), positions=torch.zeros(3, 4).long())], r"positions: expected \(3, 3\), got \(3, 4\)"),
        ([replace(prompt(3), ids=torch.zeros(3))], "ids: expected 1 dimensions of torch.int64"),
        ([prompt(3, seed=-1)], "seed: expected 0"),
        ([prompt(2, medium())], r"prompts\[0\].media\[0\]: tokens 1 to 3 of a prompt of 2"),
        ([prompt(9, medium(), medium(2))], r"media\[1\]: begins within the one before"),
        ([prompt(9, medium(features=torch.zeros(3, 4)))], "3 rows of features for 2 placeholders"),
        ([prompt(9, medium(features=torch.zeros(2, 4).long()))], "expected floats, got torch.int64"),
        ([prompt(9, medium(kind="audio"))], 'expected "image" or "video", got \'audio\''),
        ([prompt(9, medium(grid=(0, 2, 2)))], "grid: expected t, h, w"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_their_place(prompts, words):
    with pytest.raises(Refusal, match=words) as caught:
        request(*prompts).check()
    assert caught.value.kind == "request" and caught.value.status == 400


@pytest.mark.parametrize(
    "change, words",
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"deadline_s": 0}, "deadline_s must be above 0"),
        ({"prompts": 3}, "not a request to sample"),
        ({"prompts": [{"seed": 1, "media": []}]}, "not a request to sample.*ids"),
        ({"prompts": [{"ids": [1], "positions": [1], "seed": 1, "media": []}]}, "not a request to sample"),
        ({"draw": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1"),
        ({"draw": {"max_new_tokens": 1, "temperature": -1}}, "temperature must be at least 0"),
        ({"draw": {"beams": 4}}, "beams"),
        ({"unknown": 1}, "unknown"),
        ({"version": "3"}, "version: expected an integer, got '3'"),
    ],
)
def test_a_head_that_is_wrong_is_refused(change, words):
    body = pack(vars(request(prompt(3))) | change)
    with pytest.raises(Refusal, match=words):
        SampleRequest.unpack(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not safetensors",
        save({"ids": torch.zeros(2)}),
        save({"head": torch.frombuffer(bytearray(b"{half"), dtype=torch.uint8)}),
        pack({})[:-1],
    ],
)
def test_other_bytes_are_refused(body):
    for message in (SampleRequest, SampleAnswer, WeightsRequest):
        with pytest.raises(Refusal):
            message.unpack(body)


@pytest.mark.parametrize(
    "message",
    [
        WeightsRequest(0, None),
        WeightsRequest(1, None, part=2, parts=2),
        WeightsRequest(1, 0, "x", tensors={"a": torch.zeros(1)}),
    ],
)
def test_weights_that_contradict_themselves_are_refused(message):
    with pytest.raises(Refusal):
        WeightsRequest.unpack(pack(message))


def test_a_refusal_arrives_as_it_was_raised():
    for kind, status in KINDS.items():
        refusal = Refusal(kind, "the server has version 2")
        got = Refusal.of_answer(status, refusal.body())
        assert (got.kind, str(got), got.status) == (kind, "the server has version 2", status)
    assert str(Refusal.of_answer(502, b"<html>Bad gateway")) == "HTTP 502: <html>Bad gateway"


def test_health_tells_another_program_from_a_server():
    sizes = {"hidden_size": 8}
    health = Health(PROTOCOL, "ab", 0, "m", "qwen2_vl", sizes, "float32", True, False, False, None)
    assert Health.unpack(health.pack()) == health
    other = json.loads(health.pack()) | {"protocol": PROTOCOL + 1}
    with pytest.raises(ValueError, match="run both from one version"):
        Health.unpack(json.dumps(other).encode())
    with pytest.raises(ValueError, match="not a sampling server: it answered b'hello'"):
        Health.unpack(b"hello")


def test_the_token_is_random_and_readable_by_its_owner_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("QWENVL_VLLM_TOKEN", raising=False)
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "one"))
    token = secret()
    assert len(token) >= 32 and secret() == token  # in all processes of a user the same
    [file] = (tmp_path / "one").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text() == token
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "two"))
    assert secret() != token
    monkeypatch.setenv("QWENVL_VLLM_TOKEN", "own")
    assert secret() == "own"
