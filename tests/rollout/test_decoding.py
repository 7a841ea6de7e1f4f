"""The compiled step draws the tokens of the stock one. It is compiled once for one prompt and once for several."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import _inductor as inductor
from torch._inductor.utils import fresh_cache

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.rollout import shared_sampling
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.rollout.shared_sampling import SharedSampler

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")


def draw(model, prompts, group_size, end_ids, compiled):
    return SharedSampler(
        model,
        prompts,
        group_size,
        SamplingParams(8, temperature=0.0),
        suppress=[],
        end_ids=end_ids,
        pad_id=0,
        compiled=compiled,
    ).first()


@needs_compiler
@pytest.mark.parametrize(
    ("family", "layers", "backend"),
    [
        ("qwen2_5_vl", 1, "inductor"),
        ("qwen3_5", 3, "eager"),  # the graphs and their guards, without C++, which takes a minute
        *(pytest.param(family, 3, "inductor", marks=pytest.mark.slow) for family in ("qwen3_5", "qwen3_5_moe")),
    ],
)
def test_tokens_and_logprobs_of_the_stock_step(family, layers, backend, random_prompts, monkeypatch):
    forward = torch.compile(shared_sampling._forward, dynamic=True, backend=backend)
    monkeypatch.setattr(shared_sampling, "_compiled_forward", lambda: forward)
    model = make_model(family, make_processor(family), num_layers=layers, initializer_range=0.25).requires_grad_(False)
    # Two compilations for each kind of layer, for several prompts and for one: a size of 1 is always compiled by
    # itself. A batch of several comes down to one where the completions of all others have ended. Any other
    # compilation, for numbers of prompts and completions, for lengths or for strides, is an error.
    torch._dynamo.reset()
    most = 2 * len(set(model.config.text_config.layer_types))
    with torch._dynamo.config.patch(recompile_limit=most, fail_on_recompile_limit_hit=True):
        for words, group_size in ((["tvi", "t", "vit", "v"], 3), (["tvt", "t"], 5), (["tv"], 4)):
            prompts = random_prompts(model, words)
            free, _ = draw(model, prompts, group_size, [], compiled=False)
            for end_ids in ([], free[::2, 2].unique().tolist()):
                expected = draw(model, prompts, group_size, end_ids, compiled=False)
                actual = draw(model, prompts, group_size, end_ids, compiled=True)
                assert torch.equal(actual[0], expected[0])
                torch.testing.assert_close(actual[1].logprobs, expected[1].logprobs, rtol=0, atol=1e-4)
    assert not torch._dynamo.utils.counters["graph_break"]


def test_without_a_compiler_the_flag_is_named(tiny_pair):
    model, processor = tiny_pair()
    with (
        inductor.config.patch({"cpp.cxx": ("/no/compiler",)}),
        fresh_cache(),
        pytest.raises(RuntimeError, match=r"No working C\+\+ compiler.*leave out --compile_decoding"),
    ):
        SharedPrefixEngine(processor.tokenizer, model).compile(torch.device("cpu"))
