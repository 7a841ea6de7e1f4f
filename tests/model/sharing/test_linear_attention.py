"""A layer of linear attention on a packed row and token by token, against the stock layer on each sequence alone."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from qwenvl.model import logprobs
from qwenvl.model.sharing import linear_attention, shared_prefix
from qwenvl.model.sharing.linear_attention import Padding, State, state_tokens
from qwenvl.model.sharing.prefix_attention import PrefixLayout
from qwenvl.model.sharing.prefix_cache import PrefixCache
from qwenvl.model.sharing.varlen import Spans
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import sample_shared

PROMPTS, COMPLETIONS = (70, 2, 9), (3, 0, 66, 1, 5, 2)
"""Tokens: longer than a chunk of 64 and shorter than the convolution among the first, none at all among the second."""


@pytest.fixture
def layer(exact_model):
    model = exact_model("qwen3_5")
    linear_attention.install(model)
    linear_attention.install(model)
    return model.model.language_model.layers[0].linear_attn


def alone(layer, prompts, completions):
    """The outputs of each prompt, and of each completion behind its prompt."""
    size = len(completions) // len(prompts)
    behind = [torch.cat([prompts[n // size], each]) for n, each in enumerate(completions)]
    outs = [layer(each[None])[0] for each in (*prompts, *behind)]
    tails = [out[len(out) - len(each) :] for out, each in zip(outs[len(prompts) :], completions, strict=True)]
    return torch.cat([*outs[: len(prompts)], *tails])


def rows(lengths):
    return [torch.randn(length, 64, dtype=torch.float64) for length in lengths]


def test_every_completion_goes_on_from_the_state_after_its_prompt(layer):
    prompts, completions = rows(PROMPTS), rows(COMPLETIONS)
    expected = alone(layer, prompts, completions)
    row = torch.cat([*prompts, *completions])[None]
    out = layer(row, shared_prefix=PrefixLayout(PROMPTS, COMPLETIONS))
    torch.testing.assert_close(out[0], expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_token_by_token_and_where_completions_have_left(layer):
    prompts, tokens = rows(PROMPTS), torch.randn(4, 6, 64, dtype=torch.float64)  # steps x slots
    cache = PrefixCache(PROMPTS, 2, capacity=4, device="cpu")
    first = layer(torch.cat(prompts)[None], shared_prefix=cache)
    torch.testing.assert_close(first[0], alone(layer, prompts, [])[: sum(PROMPTS)], rtol=1e-9, atol=1e-9)
    slots = torch.tensor([[0, 1], [2, 3], [4, 5]])
    for step in range(4):
        if step == 2:  # the second prompt's completions have ended, and one of the third's
            cache.select(torch.tensor([[1], [4]]))
            slots = torch.tensor([[1], [4]])
        cache.advance()
        out = layer(tokens[step, slots.flatten()][:, None], shared_prefix=cache)
        for i, slot in enumerate(slots.flatten().tolist()):
            past = torch.cat([prompts[slot // 2], tokens[: step + 1, slot]])
            torch.testing.assert_close(out[i, 0], layer(past[None])[0, -1], rtol=1e-9, atol=1e-9)


def test_places_in_a_batch():
    spans = Spans.of([2, 0, 3])
    left, right = Padding.on_the_left(spans), Padding.on_the_right(spans)
    assert (left.rows, left.length, left.places.tolist()) == (3, 3, [1, 2, 6, 7, 8])
    assert (right.rows, right.length, right.places.tolist()) == (3, 3, [0, 1, 6, 7, 8])
    assert Padding.on_the_right(Spans.of([1, 1])).length == 2  # never the kernel that has no gradient


def test_there_is_no_state_before_the_first_token():
    with pytest.raises(ValueError, match="no state before the first token"):
        State().expand(2)


def test_a_library_that_keeps_the_state_otherwise_is_the_reason(tiny_pair, monkeypatch):
    model, _ = tiny_pair("qwen3_5")
    assert shared_prefix.supports_shared_prefix(model) is None
    monkeypatch.delattr(Cache, "update_conv_state")
    assert "keeps its state another way" in shared_prefix.supports_shared_prefix(model)


def test_states_are_counted_as_the_tokens_that_take_their_memory(tiny_pair):
    model, _ = tiny_pair("qwen3_5")
    # A layer of each kind. Four value heads of 16 x 16 and four inputs of 128 channels, against a head of 2 x 64.
    assert state_tokens(model) == (4 * 16 * 16 + 4 * 128) / (2 * 64) == 12
    # Inputs, keys and values have half the bytes then, and matrices as many as before: 11,776 / 256 is more than 19.
    assert state_tokens(model.to(torch.bfloat16)) == -(-(4 * 16 * 16 * 4 + 4 * 128 * 2) // (2 * 64 * 2)) == 20
    assert state_tokens(tiny_pair("qwen3_vl")[0]) == 0


@dataclass(frozen=True)
class Call:
    """What reached a kernel of the delta rule."""

    kernel: str
    batch: int
    length: int
    state: Tensor | None


class AsTheKernelsOfAGPU:
    """In the place of the stock kernels: they compute the same, and take only what those of a GPU take.

    Held against the sources of flash-linear-attention 0.6 (``fla``) and causal-conv1d 1.5.
    """

    def __init__(self, source, monkeypatch):
        self.calls: list[Call] = []
        for name, kernel in (("chunk", "torch_chunk"), ("recurrent", "torch_recurrent")):
            stock = inspect.unwrap(getattr(source, f"{kernel}_gated_delta_rule"))
            monkeypatch.setattr(source, f"{kernel}_gated_delta_rule", self._delta_rule(name, stock))
        convolve = inspect.unwrap(source.causal_conv1d_fn)
        monkeypatch.setattr(source, "causal_conv1d_fn", self._convolution(convolve))
        monkeypatch.setattr(source, "causal_conv1d_update", None)  # it writes into its state

    def _delta_rule(self, name: str, stock):
        def rule(q, k, v, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **more):
            assert not {key: value for key, value in more.items() if value is not None}  # no cu_seqlens: it is a batch
            assert use_qk_l2norm_in_kernel and output_final_state
            (batch, length, heads, width), (*_, value_width) = v.shape[:3] + k.shape[3:], v.shape
            assert q.shape == k.shape == (batch, length, k.shape[2], width) and heads % k.shape[2] == 0
            assert g.shape == beta.shape == (batch, length, heads) and g.dtype == torch.float32
            if initial_state is not None:  # in float32, as a GPU returns it, one for each row
                assert initial_state.shape == (batch, heads, width, value_width)
                assert initial_state.dtype == torch.float32
            if name == "recurrent":  # it has no backward pass
                assert length == 1 and not torch.is_grad_enabled()
            self.calls.append(Call(name, batch, length, initial_state))
            return stock(
                q, k, v, g=g, beta=beta, initial_state=initial_state,
                output_final_state=True, use_qk_l2norm_in_kernel=True,
            )  # fmt: skip

        return rule

    def _convolution(self, stock):
        def convolve(x, weight, bias=None, seq_idx=None, activation=None, **more):
            assert seq_idx is None and not more  # no sequences of a row are told apart
            assert x.stride(1) == 1 or x.stride(2) == 1
            return stock(x, weight, bias, activation=activation)

        return convolve


def test_kernels_of_a_gpu_are_asked_for_what_they_offer(tiny_pair, random_prompts, monkeypatch):
    model, _ = tiny_pair("qwen3_5", initializer_range=0.1)
    stock, _ = tiny_pair("qwen3_5", initializer_range=0.1)
    prompts = random_prompts(model, ["tv", "t"])
    ids = torch.randint(0, 250, (4, 3))
    mask = torch.arange(3) < torch.tensor([3, 1, 2, 3])[:, None]
    settings = {"temperature": 1.0, "logit_chunk_tokens": 64}
    expected = logprobs.completion_logprobs(stock, prompts, ids, mask, **settings)
    expected.sum().backward()
    source = sys.modules[type(model).__module__]
    kernels = AsTheKernelsOfAGPU(source, monkeypatch)
    actual = shared_prefix.completion_logprobs(model, prompts, ids, mask, **settings)
    actual.sum().backward()
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    longest = int(prompts.attention_mask.sum(1).max())
    of_prompts, of_completions = kernels.calls  # the model has one such layer
    assert of_prompts == Call("chunk", 2, longest, None)
    assert of_completions == Call("chunk", 4, 2, of_completions.state)
    assert of_completions.state.requires_grad and of_completions.state.is_contiguous()
    weights = dict(stock.named_parameters())
    name = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight"
    torch.testing.assert_close(dict(model.named_parameters())[name].grad, weights[name].grad, rtol=1e-4, atol=1e-5)
    kernels.calls.clear()
    sample_shared(model, prompts, 2, SamplingParams(3, temperature=0.0), suppress=[], end_ids=[], pad_id=0)
    assert [(call.kernel, call.batch, call.length) for call in kernels.calls] == [
        ("chunk", 2, longest), ("recurrent", 4, 1), ("recurrent", 4, 1)
    ]  # fmt: skip


@pytest.mark.gpu
def test_the_kernels_of_a_gpu_themselves(tiny_pair, random_prompts):
    """Shared against plain, both by ``fla``. It has been run in Triton's interpreter on a CPU, on a GPU never."""
    pytest.importorskip("fla")
    model = tiny_pair("qwen3_5", initializer_range=0.1)[0].cuda()
    prompts = random_prompts(tiny_pair("qwen3_5")[0], ["tv", "tit", "t"])
    moved = {name: value.cuda() for name, value in vars(prompts).items() if isinstance(value, Tensor)}
    prompts = replace(prompts, **moved)
    ids = torch.randint(0, 250, (6, 5), device="cuda")
    mask = torch.arange(5, device="cuda") < torch.tensor([5, 1, 3, 2, 4, 1], device="cuda")[:, None]
    found = []
    for path in (logprobs, shared_prefix):
        model.zero_grad()
        of_path = path.completion_logprobs(model, prompts, ids, mask, temperature=1.0, logit_chunk_tokens=64)
        of_path.sum().backward()
        found.append((of_path.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    (plain, of_plain), (shared, of_shared) = found
    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-3)
    for name, grad in of_plain.items():
        assert (of_shared[name] - grad).norm() <= 0.02 * grad.norm(), name


def test_layers_of_older_versions_find_what_they_ask_for():
    """Before 5.21 they asked the cache's layers, and whether there was a state."""
    state = State()
    assert not state.has_previous_state(3, state_idx=0)
    state.update_conv_state(torch.ones(1, 2, 3), 3, conv_kernel_size=4)
    state.update_recurrent_state(torch.ones(1, 1, 2, 2), 3)
    assert state.has_previous_state(3) and state.layers[3].record_past
    assert state.layers[3].recurrent_states[0] is state.get_recurrent_state(3)
