"""Each prompt computed once: the draws of ``generate``, the compiled step, and what long prompts and the host cost."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from torch import _inductor as inductor
from torch._inductor.utils import fresh_cache
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GenerationConfig

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import encode_vision
from qwenvl.rollout import shared_sampling
from qwenvl.rollout.engine import SamplingParams, SamplingRequest
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine, padded_with_own
from qwenvl.rollout.shared_sampling import SharedSampler

WORDS = ["tvi", "t", "vit", "v"]
GROUP, NEW = 3, 8


def tiny(family: str = "qwen2_5_vl"):
    # Strong weights: the distributions differ from token to token, so that a wrong position shows.
    return make_model(family, make_processor(family), initializer_range=0.25).requires_grad_(False)


def plain(model, prompts, **settings):
    """Completion ids of stock ``generate`` on repeated prompts."""
    rows = prompts.repeat(GROUP)
    positions = torch.cat([(rows.attention_mask.cumsum(1) - 1).clamp(min=0)[None], rows.position_ids])
    model.generation_config = GenerationConfig(**settings)
    arguments = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask, "position_ids": positions}
    return model.generate(**arguments, **rows.vision())[:, rows.input_ids.shape[1] :]


def shared(model, prompts, temperature=0.0, *, suppress=(), end_ids=(), how=None, **settings):
    params = SamplingParams(NEW, temperature, **settings)
    own = {"suppress": list(suppress), "end_ids": list(end_ids), "pad_id": 0}
    return SharedSampler(model, prompts, GROUP, params, **own, **how or {}).first()


@pytest.mark.parametrize("how", [{}, {"cuda_graph": True}, {"compiled": True}], ids=str)
def test_completions_that_end_leave_the_batch_and_change_nothing(random_prompts, monkeypatch, how):
    monkeypatch.setattr(shared_sampling, "GraphedForward", lambda forward: forward)  # which a GPU would capture
    monkeypatch.setattr(shared_sampling, "_compiled_forward", lambda: shared_sampling._forward)
    model = tiny()
    prompts = random_prompts(model, WORDS)
    free = shared(model, prompts)[0]
    ends = [int(free[0, 2]), int(free[GROUP, 4])]
    expected = plain(model, prompts, do_sample=False, max_new_tokens=NEW, eos_token_id=ends, pad_token_id=0)
    rows = []
    hook = model.lm_head.register_forward_hook(lambda module, args, out: rows.append(out.shape[:-1].numel()))
    ids, (logprobs, *_) = shared(model, prompts, end_ids=ends, how=how)
    hook.remove()
    assert torch.equal(ids, expected)
    assert rows[0] == len(WORDS) and rows[1:] == sorted(rows[1:], reverse=True) and rows[-1] < len(WORDS) * GROUP
    ended = torch.isin(ids, torch.tensor(ends)).cumsum(1) - torch.isin(ids, torch.tensor(ends)).long() > 0
    assert logprobs[ended].eq(0).all() and logprobs[~ended].lt(0).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 20},
        {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_the_same_seed_draws_the_tokens_of_generate(settings, random_prompts):
    model = tiny()
    prompts = padded_with_own(random_prompts(model, WORDS))
    torch.manual_seed(5)
    expected = plain(model, prompts, do_sample=True, max_new_tokens=NEW, **{"top_k": 0} | settings)
    torch.manual_seed(5)
    ids, _ = shared(model, prompts, **settings)
    assert torch.equal(ids, expected)
    engine = LocalEngine(make_processor("qwen2_5_vl").tokenizer, model)
    engine.vision_ids = engine.end_ids = []
    assert torch.equal(engine.draw(model, prompts, GROUP, SamplingParams(NEW, **settings), 5).completion_ids, expected)


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a GPU: numbers that are read, and sizes that depend on values."""

    reads = ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        indices = args[1] if function.name().startswith("aten::index") and isinstance(args[1], (list, tuple)) else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        self.count += by_mask or function.name() in self.reads
        return function(*args, **(kwargs or {}))


def test_the_host_waits_once_for_each_token(random_prompts):
    model = tiny()
    prompts = random_prompts(model, ["t", "t"])
    settings = {"suppress": [3], "end_ids": [], "pad_id": 0}
    counts = []
    for tokens in (3, 8):
        with Waits() as waits:
            SharedSampler(model, prompts, GROUP, SamplingParams(tokens), **settings).first()
        counts.append(waits.count)
    assert counts[1] - counts[0] == 8 - 3


def test_no_layer_waits_in_the_prefill_or_the_vision_tower(random_prompts):
    counts = []
    for layers in (2, 4):
        processor = make_processor("qwen2_5_vl")
        model = make_model("qwen2_5_vl", processor, num_layers=layers, vision_depth=layers).requires_grad_(False)
        prompts = random_prompts(model, ["tvi", "vit"])
        with Waits() as waits:
            encoded = encode_vision(model, prompts)
        with Waits() as of_draw:
            SharedSampler(model, encoded, GROUP, SamplingParams(2), suppress=[3], end_ids=[], pad_id=0).first()
        counts.append((waits.count, of_draw.count))
    assert counts[0] == counts[1]


class Casts(TorchDispatchMode):
    """Counts how often a weight is rounded."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.count = weight, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy):
            self.count += args[0] is self.weight
        return function(*args, **(kwargs or {}))


def test_autocast_rounds_weights_that_learn_once_for_all_tokens(random_prompts):
    model = tiny().requires_grad_(True)
    prompts = random_prompts(model, ["t", "t"])
    with torch.autocast("cpu", torch.bfloat16), Casts(model.lm_head.weight) as casts:
        ids, _ = shared(model, prompts, temperature=1.0)
    assert ids.shape[1] == NEW and casts.count == 1


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_cuda_graph_draws_the_tokens_of_the_eager_step(family, autocast, random_prompts):
    prompts = random_prompts(make_model(family, make_processor(family)), WORDS)
    prompts = replace(prompts, **{k: v.cuda() for k, v in vars(prompts).items() if isinstance(v, torch.Tensor)})
    model = tiny(family).cuda()

    def drawn(cuda_graph, end_ids):
        torch.manual_seed(0)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return SharedSampler(
                model, prompts, 4, SamplingParams(12), suppress=[], end_ids=end_ids, pad_id=0, cuda_graph=cuda_graph
            ).first()

    free = drawn(False, [])[0]
    for end_ids in ([], free[::2, 4].unique().tolist()):  # these make completions leave: smaller graphs
        eager, graph = (drawn(each, end_ids) for each in (False, True))
        # Fixed sizes sum in another order, so a draw may differ by rounding, and the rest of its completion with it.
        assert torch.equal(eager[0][:, 0], graph[0][:, 0])
        torch.testing.assert_close(eager[1].logprobs[:, 0], graph[1].logprobs[:, 0], rtol=0, atol=1e-2)
        if not autocast:
            assert torch.equal(eager[0], graph[0])


# ---- a compiled step

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


SEVERAL_PROMPTS = (["tvi", "t", "vit", "v"], 3), (["tvt", "t"], 5)
ONE_PROMPT = (["tv"], 4)


@needs_compiler
@pytest.mark.parametrize(
    ("family", "layers", "backend", "cases"),
    [
        # C++ is compiled once. It takes twenty seconds, and minutes on a busy machine.
        pytest.param("qwen2_5_vl", 1, "inductor", [ONE_PROMPT], marks=pytest.mark.timeout(400)),
        ("qwen2_5_vl", 1, "eager", [*SEVERAL_PROMPTS, ONE_PROMPT]),  # the graphs and their guards, without C++
        ("qwen3_5", 3, "eager", [*SEVERAL_PROMPTS, ONE_PROMPT]),
        ("qwen3_5_moe", 3, "eager", [*SEVERAL_PROMPTS, ONE_PROMPT]),  # here prompts leave the batch
        *(
            pytest.param(family, layers, "inductor", [*SEVERAL_PROMPTS, ONE_PROMPT], marks=pytest.mark.slow)
            for family, layers in (("qwen2_5_vl", 1), ("qwen3_5", 3), ("qwen3_5_moe", 3))
        ),
    ],
)
def test_a_compiled_step_has_the_tokens_and_logprobs_of_the_stock_step(
    family, layers, backend, cases, random_prompts, monkeypatch
):
    forward = torch.compile(shared_sampling._forward, dynamic=True, backend=backend)
    monkeypatch.setattr(shared_sampling, "_compiled_forward", lambda: forward)
    model = make_model(family, make_processor(family), num_layers=layers, initializer_range=0.25).requires_grad_(False)
    # Two compilations for each kind of layer, for several prompts and for one: a size of 1 is always compiled by
    # itself. A batch of several comes down to one where the completions of all others have ended. Any other
    # compilation, for numbers of prompts and completions, for lengths or for strides, is an error.
    torch._dynamo.reset()
    most = 2 * len(set(model.config.text_config.layer_types))
    with torch._dynamo.config.patch(recompile_limit=most, fail_on_recompile_limit_hit=True):
        for words, group_size in cases:
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


# ---- a long prompt

PAIRS = 300  # so that a prompt is longer than anything is wide


class Made(TorchDispatchMode):
    """The tensors that operations make, views among them: their shapes and types."""

    def __init__(self):
        super().__init__()
        self.tensors: set[tuple[tuple[int, ...], torch.dtype]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.tensors |= {(tuple(x.shape), x.dtype) for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        return out


def long_prompt(model) -> PromptInputs:
    """A video of many pairs of small frames, four tokens each, and some text."""
    config, grid = model.config, torch.tensor([[PAIRS, 4, 4]])
    ids = [config.vision_start_token_id, *[config.video_token_id] * (4 * PAIRS), config.vision_end_token_id, *range(9)]
    tokens = torch.tensor([ids])
    mask = torch.ones_like(tokens)
    positions = prompt_positions(position_rule(config), tokens, mask, None, grid, torch.tensor([0.5]))
    pixels = torch.randn(PAIRS * 16, 3 * 2 * 14 * 14)
    return PromptInputs(tokens, mask, positions, None, None, pixels, grid, [0], [1])


def test_no_tensor_grows_with_the_square_of_a_prompt_or_with_group_times_prompt():
    processor = make_processor("qwen2_5_vl")
    model = make_model("qwen2_5_vl", processor)
    model.model.visual.requires_grad_(False)
    prompt = long_prompt(model)
    long = prompt.input_ids.shape[1]
    engine = SharedPrefixEngine(processor.tokenizer, model)
    with Made() as made:
        encoded = encode_vision(model, prompt)
        (rollout,) = engine.sample(model, SamplingRequest([encoded], 8, SamplingParams(3), 0))
        model.train()
        shared_prefix.completion_logprobs(
            model, encoded, rollout.completion_ids, rollout.completion_mask, temperature=1.0, logit_chunk_tokens=64
        ).sum().backward()
    assert not [shape for shape, _ in made.tensors if sum(size >= long for size in shape) > 1]
    whole = [shape for shape, dtype in made.tensors if not dtype.is_floating_point and dtype != torch.bool]
    assert max(map(torch.Size.numel, map(torch.Size, whole))) < 8 * long
