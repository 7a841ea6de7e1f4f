"""The messages: they arrive as they were sent, and other bytes are refused."""

from __future__ import annotations

from dataclasses import is_dataclass

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


IDS, POSITIONS, WHOLE = torch.arange(9), torch.arange(27).view(3, 9), torch.randn(4, 6)
MEDIA = [
    Medium("video", 1, torch.tensor([True, False, True]), torch.randn(2, 3), [1, 2, 4]),
    Medium("image", 4, torch.ones(3).bool(), torch.randn(3, 4, dtype=torch.bfloat16), [1, 6, 2]),
]
PROMPTS = [Prompt(IDS, POSITIONS, 2**61, MEDIA), Prompt(IDS[:1], POSITIONS[:, ::9], 5, [])]
PARAMS = SamplingParams(7, temperature=0.7, top_p=0.9, stop_strings=("</answer>",))
LOGPROBS = [torch.tensor([-1 / 3, -2e-7]).tolist(), [0.0]]  # float32, as a model computes them


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.equal(other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) or is_dataclass(one):
        one, other = (each if isinstance(each, dict) else vars(each) for each in (one, other))
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other


@pytest.mark.parametrize(
    "message",
    [
        HEALTH,
        SampleRequest(3, 2, PARAMS, [9, 8], [1], PROMPTS),
        SampleAnswer(3, "ab", [[4, 5], [6]], LOGPROBS, ["stop", "length"], cached_tokens=2),
        WeightsRequest(2, part=1, last=False, tensors={"a": WHOLE[:2], "b": WHOLE[1:].T}),  # views that overlap
        WeightsRequest(2, 0, True, path="/dev/shm/w"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_to_the_bit(message):
    assert same(unpack(type(message), pack(message)), message)


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
    ids=["empty", "a page", "no head", "a torn head", "a list as head", "cut short", "another message"],
)
def test_bytes_that_are_no_message_are_refused(body):
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
