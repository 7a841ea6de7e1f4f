"""The messages: they arrive as they were sent, and malformed ones are refused with the place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from qwenvl.vllm_server.wire.body import KINDS, Refusal, pack, unpack
from qwenvl.vllm_server.wire.health import PROTOCOL, Health
from qwenvl.vllm_server.wire.sampling import Draw, Medium, Prompt, SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsAnswer, WeightsRequest, layer_of


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
    got = SampleRequest.unpack(sent.pack())
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
    sent = SampleAnswer(3, "ab", ids, logprobs, ("stop", "length"), seconds=0.1, prompt_tokens=7, cached_tokens=2)
    got = SampleAnswer.unpack(sent.pack())
    assert all(map(torch.equal, got.ids + got.logprobs, ids + logprobs))
    assert replace(got, ids=(), logprobs=()) == replace(sent, ids=(), logprobs=())


def test_weights_arrive_as_they_were_sent():
    whole = torch.randn(4, 6)
    sent = WeightsRequest(2, base=1, part=1, parts=3, tensors={"a": whole[:2], "b": whole[1:].T})  # views that overlap
    got = WeightsRequest.unpack(sent.pack())
    assert replace(got, tensors={}) == replace(sent, tensors={})
    assert got.tensors["a"].equal(whole[:2]) and got.tensors["b"].equal(whole[1:].T)
    by_path = WeightsRequest(2, None, path="/dev/shm/w")
    assert WeightsRequest.unpack(by_path.pack()) == by_path
    answer = WeightsAnswer(None, 0.5, "ab")
    assert WeightsAnswer.unpack(answer.pack()) == answer


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
        ({"prompts": [{"length": 4, "seed": 1, "media": []}]}, "split_with_sizes"),
        ({"prompts": 3}, "not a request to sample"),
        ({"draw": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1"),
        ({"draw": {"max_new_tokens": 1, "temperature": -1}}, "temperature must be at least 0"),
        ({"draw": {"beams": 4}}, "beams"),
        ({"unknown": 1}, "unknown"),
        ({"version": "3"}, "version: expected an integer, got '3'"),
    ],
)
def test_a_head_that_is_wrong_is_refused(change, words):
    head, tensors = unpack(request(prompt(3)).pack())
    with pytest.raises(Refusal, match=words):
        SampleRequest.unpack(pack(head | change, tensors))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not safetensors",
        save({"ids": torch.zeros(2)}),
        save({"head": torch.frombuffer(bytearray(b"{half"), dtype=torch.uint8)}),
        pack({}, {})[:-1],
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
        WeightsRequest.unpack(message.pack())


def test_a_refusal_arrives_as_it_was_raised():
    for kind, status in KINDS.items():
        refusal = Refusal(kind, "the server has version 2")
        got = Refusal.of_answer(status, refusal.body())
        assert (got.kind, str(got), got.status) == (kind, "the server has version 2", status)
    assert str(Refusal.of_answer(502, b"<html>Bad gateway")) == "HTTP 502: <html>Bad gateway"


def test_health_tells_another_program_from_a_server():
    health = Health(
        PROTOCOL,
        "ab",
        1,
        0,
        "m",
        "qwen2_vl",
        {"hidden_size": 8},
        "float32",
        True,
        "0.32.0",
        99,
        1.5,
        False,
        False,
        1,
        0,
        None,
    )
    assert Health.unpack(health.pack()) == health
    other = json.loads(health.pack()) | {"protocol": PROTOCOL + 1}
    with pytest.raises(ValueError, match="run both from one version"):
        Health.unpack(json.dumps(other).encode())
    with pytest.raises(ValueError, match="not a sampling server: it answered b'hello'"):
        Health.unpack(b"hello")


@pytest.mark.parametrize(
    "one, other, together",
    [
        ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.v_proj.bias", True),
        ("layers.0.self_attn.q_proj.weight", "layers.1.self_attn.q_proj.weight", False),
        ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.o_proj.weight", False),
        ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight", True),
        ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight", False),
        ("layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj", True),
        ("layers.0.linear_attn.in_proj_qkv.weight", "layers.0.linear_attn.in_proj_z.weight", True),
        ("layers.0.linear_attn.in_proj_b.weight", "layers.0.linear_attn.in_proj_z.weight", False),
        ("norm.weight", "embed_tokens.weight", False),
    ],
)
def test_weights_that_vllm_holds_in_one_layer(one, other, together):
    assert (layer_of(one) == layer_of(other)) is together
