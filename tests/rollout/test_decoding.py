"""The compiled step draws the tokens of the stock one. It is compiled once for one prompt and once for several."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from torch import _inductor as inductor
from torch._inductor.utils import fresh_cache

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.rollout import shared_sampling
from qwenvl.rollout.engine import SamplingParams, completion_mask
from qwenvl.rollout.shared_sampling import require_compiler, sample_shared

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")


def on_cuda(prompts):
    return replace(prompts, **{k: v.cuda() for k, v in vars(prompts).items() if isinstance(v, torch.Tensor)})


def draw(model, prompts, group_size, end_ids, compiled):
    return sample_shared(
        model,
        prompts,
        group_size,
        SamplingParams(8, temperature=0.0),
        suppress=[],
        end_ids=end_ids,
        pad_id=0,
        compiled=compiled,
    )


@needs_compiler
@pytest.mark.parametrize(
    ("family", "layers"), [("qwen2_5_vl", 1), ("qwen3_5", 3), pytest.param("qwen3_5_moe", 3, marks=pytest.mark.slow)]
)
def test_tokens_and_logprobs_of_the_stock_step(family, layers, random_prompts):
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


@pytest.mark.parametrize("compiled", [False, True])
def test_ended_completions_give_up_their_slots(compiled, monkeypatch, random_prompts):
    model = make_model("qwen2_5_vl", make_processor("qwen2_5_vl"), initializer_range=0.25).requires_grad_(False)
    monkeypatch.setattr(shared_sampling, "_compiled_forward", lambda: shared_sampling._forward)
    prompts = random_prompts(model, ["tv", "t", "vt"])
    sizes = []
    model.lm_head.register_forward_hook(lambda module, args, out: sizes.append(len(out)))
    free, _ = draw(model, prompts, 4, [], compiled=False)
    # Greedy completions of a prompt are all alike: the first prompt's end after three tokens, the second's after four.
    ends = [int(free[0, 2]), *free[4:8, 3].tolist()]
    mask = completion_mask(torch.isin(free, torch.tensor(ends)))
    sizes.clear()
    actual, _ = draw(model, prompts, 4, ends, compiled=compiled)
    assert torch.equal(actual, free.masked_fill(~mask, 0)[:, : actual.shape[1]])
    assert actual.shape[1] == mask.sum(1).max()
    assert sizes[1] == 12 and sizes[-1] <= 8 and sizes[1:] == sorted(sizes[1:], reverse=True)


def test_without_a_compiler_the_flag_is_named():
    with (
        inductor.config.patch({"cpp.cxx": ("/no/compiler",)}),
        fresh_cache(),
        pytest.raises(RuntimeError, match=r"No working C\+\+ compiler.*leave out --compile_decoding"),
    ):
        require_compiler(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_cuda_graph_draws_the_tokens_of_the_eager_step(family, autocast, random_prompts):
    model = make_model(family, make_processor(family), initializer_range=0.25).cuda()
    prompts = on_cuda(random_prompts(make_model(family, make_processor(family)), ["tvi", "t", "vit", "v"]))

    def drawn(cuda_graph, end_ids):
        torch.manual_seed(0)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return sample_shared(
                model, prompts, 4, SamplingParams(12), suppress=[], end_ids=end_ids, pad_id=0, cuda_graph=cuda_graph
            )

    free = drawn(False, [])[0]
    for end_ids in ([], free[::2, 4].unique().tolist()):  # these make completions leave: smaller graphs
        eager, graph = (drawn(each, end_ids) for each in (False, True))
        # Fixed sizes sum in another order, so a draw may differ by rounding, and the rest of its completion with it.
        assert torch.equal(eager[0][:, 0], graph[0][:, 0])
        torch.testing.assert_close(eager[1].logprobs[:, 0], graph[1].logprobs[:, 0], rtol=0, atol=1e-2)
        if not autocast:
            assert torch.equal(eager[0], graph[0])
