"""The messages: they arrive as they were sent, and other bytes are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from qwenvl.types import SamplingParams
from qwenvl.vllm_server import wire
from qwenvl.vllm_server.wire import (
    Health,
    Medium,
    Prompt,
    Refusal,
    SampleAnswer,
    SampleRequest,
    WeightsRequest,
    pack,
    secret,
    unpack,
)

HEALTH = Health("ab", None, "m", {"model type": "qwen2_vl", "hidden_size": 8}, "float32")


def test_a_request_arrives_as_it_was_sent():
    embedded = torch.tensor([True, False, True])
    media = [
        Medium("video", 1, embedded, torch.randn(2, 3), [1, 2, 4]),
        Medium("image", 4, torch.ones(3).bool(), torch.randn(3, 4, dtype=torch.bfloat16), [1, 6, 2]),
    ]
    ids, positions = torch.arange(9), torch.arange(27).view(3, 9)
    prompts = [Prompt(ids, positions, 2**61, media), Prompt(ids[:1], positions[:, ::9], 5)]
    params = SamplingParams(7, temperature=0.7, top_p=0.9, stop_strings=("</answer>",))
    sent = SampleRequest(3, 2, params, [9, 8], [1], prompts)
    got = unpack(SampleRequest, pack(sent))
    assert replace(got, prompts=[]) == replace(sent, prompts=[])
    for one, other in zip(got.prompts, prompts, strict=True):
        assert one.seed == other.seed and one.ids.equal(other.ids) and one.positions.equal(other.positions)
        for x, y in zip(one.media, other.media, strict=True):
            assert (x.kind, x.offset, x.grid) == (y.kind, y.offset, y.grid)
            assert x.features.dtype == y.features.dtype and x.features.equal(y.features)
            assert x.embedded.equal(y.embedded)


def test_an_answer_arrives_to_the_bit():
    logprobs = [torch.tensor([-1 / 3, -2e-7]).tolist(), [0.0]]  # float32, as a model computes them
    sent = SampleAnswer(3, "ab", [[4, 5], [6]], logprobs, ["stop", "length"], cached_tokens=2)
    assert unpack(SampleAnswer, pack(sent)) == sent
    assert unpack(Health, pack(HEALTH)) == HEALTH


def test_weights_arrive_as_they_were_sent():
    whole = torch.randn(4, 6)
    sent = WeightsRequest(2, part=1, last=False, tensors={"a": whole[:2], "b": whole[1:].T})  # views that overlap
    got = unpack(WeightsRequest, pack(sent))
    assert replace(got, tensors={}) == replace(sent, tensors={})
    assert got.tensors["a"].equal(whole[:2]) and got.tensors["b"].equal(whole[1:].T)
    by_path = WeightsRequest(2, 0, True, path="/dev/shm/w")
    assert unpack(WeightsRequest, pack(by_path)) == by_path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad gateway",
        save({"ids": torch.zeros(2)}),
        save({"head": torch.frombuffer(bytearray(b"{half"), dtype=torch.uint8)}),
        save({"head": torch.frombuffer(bytearray(b"[1]"), dtype=torch.uint8)}),
        pack(HEALTH)[:-1],
        pack(HEALTH),  # which is none of these
    ],
)
def test_other_bytes_are_refused(body):
    for kind in (SampleRequest, SampleAnswer, WeightsRequest):
        with pytest.raises(Refusal, match=f"not a {kind.__name__} of this program"):
            unpack(kind, body)


def test_another_version_of_the_program_is_named(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(wire, "PROTOCOL", 3)
        body = pack(HEALTH)
    with pytest.raises(Refusal, match=r"is of protocol 3, this program has \d+: run both from one version"):
        unpack(Health, body)


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
