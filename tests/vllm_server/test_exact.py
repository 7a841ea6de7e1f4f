"""Real vLLM against the local engine: the same tokens, and log-probs that differ by less than 1e-4."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import chain
from string import ascii_letters

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils.rnn import pad_sequence

from qwenvl.demo import tiny
from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import SamplingParams, SamplingRequest
from qwenvl.rollout.servers import Server, ServerLostError, ServerRefusedError, Servers
from qwenvl.rollout.vllm import VllmEngine, policy_weights
from qwenvl.step.parity import NOISE
from qwenvl.vllm_server.wire import WeightsRequest
from tests.rollout.served import Scripted
from tests.vllm_server.policy import WIDE, Policy, local_and_server

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(24, temperature=0.0)
CLIP = (3, 6, 8, 0.37)
LONG = (4, 12, 12, 0.5)  # 144 rows: more than one block of vLLM's cache


@pytest.fixture(scope="module")
def served(tiny_checkpoint, start_server, tmp_path_factory):
    """The policy, and a server that was started with it. Tests of weights come last in this file."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    shutil.copytree(tiny_checkpoint("qwen2_5_vl", **WIDE), folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"do_sample": True, "top_k": 1, "repetition_penalty": 1.5}  # which are not those of any request
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return Policy.load(folder), start_server(folder).client


def test_greedy_completions_are_those_of_the_local_engine(served):
    """Alone and in one request: videos of different rates, seconds that are no binary fraction, images, text alone."""
    policy, client = served
    parts = [5, CLIP, 4], [3, CLIP, 2, (2, 4, 6, 1.1), 4], [(3, 6, 8, 10 / 3), 4], [2, (4, 6), 3, CLIP, 1], [9]
    prompts = [policy.prompt(*each) for each in parts]
    for prompt in prompts:
        local_and_server(policy, client, prompt, GREEDY)
    local_and_server(policy, client, PromptInputs.join(prompts), GREEDY)


def test_the_server_uses_the_positions_that_were_sent(served):
    """Not those of any rule of vLLM's, which differs from the trainer's in some roundings."""
    policy, client = served
    prompt = policy.prompt(5, CLIP, 4)
    straight, _ = local_and_server(policy, client, prompt, GREEDY)
    elsewhere = replace(prompt, position_ids=prompt.position_ids * 3)
    moved, _ = local_and_server(policy, client, elsewhere, GREEDY)
    assert (straight.logprobs[0, 0] - moved.logprobs[0, 0]).abs() > 1e-3  # they matter


def test_the_same_frames_at_another_rate_are_not_taken_from_the_cache(served):
    policy, client = served
    slow, fast = policy.prompt(LONG, 4), policy.prompt((*LONG[:3], 2.0), 4)
    assert slow.pixel_values_videos.equal(fast.pixel_values_videos) and slow.input_ids.equal(fast.input_ids)
    local_and_server(policy, client, slow, GREEDY)
    _, answer = local_and_server(policy, client, fast, GREEDY)
    assert answer.cached_tokens == 0
    _, answer = local_and_server(policy, client, slow, GREEDY)
    assert answer.cached_tokens > 0


def test_another_question_about_the_same_video_has_its_own_positions(served):
    policy, client = served
    questions = [policy.prompt(LONG, length, words=length) for length in (4, 9, 2)]
    for question in questions:  # one after the other, the video from the cache
        _, answer = local_and_server(policy, client, question, GREEDY)
    assert answer.cached_tokens > 0
    local_and_server(policy, client, PromptInputs.join(questions), GREEDY)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(24, temperature=0.7, top_p=0.9),
        SamplingParams(24, temperature=1.3, top_k=20, min_p=0.02, repetition_penalty=1.2),
        SamplingParams(24, temperature=3.0),
    ],
    ids=["top_p", "top_k, min_p and a penalty", "no truncation"],
)
def test_logprobs_are_of_all_tokens_at_the_temperature(served, params):
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(5, CLIP, 4), policy.prompt(4)])
    answer = client.sample(policy.request(prompts, params, group_size=4))
    policy.assert_logprobs(prompts, answer, params.temperature)
    assert len({*map(tuple, answer.ids[:4])}) == 4  # a group of different ones


@pytest.mark.parametrize("name, value", [("top_k", 2), ("top_p", 0.3), ("min_p", 0.5)])
def test_drawn_tokens_are_within_top_k_top_p_and_min_p(served, name, value):
    """Each drawn token is among those that the trainer's distribution leaves."""
    policy, client = served
    prompt = policy.prompt(5, CLIP, 4)
    params = replace(SamplingParams(24, temperature=1.5), **{name: value})
    answer = client.sample(policy.request(prompt, params, group_size=4))
    drawn = 0
    for ids in map(torch.tensor, answer.ids):
        full = distributions(policy, prompt, ids, params.temperature)
        own = full.gather(1, ids[:, None])[:, 0]
        likelier = full > own[:, None] + 1e-6
        if name == "top_k":
            assert int(likelier.sum(1).max()) < value
        elif name == "top_p":
            assert float((full * likelier).sum(1).max()) < value + 1e-4
        else:
            assert float((own / full.amax(1)).min()) > value - 1e-4
        drawn += int(likelier.any(1).sum())
    assert drawn > 0  # not the likeliest alone


def distributions(policy: Policy, prompt: PromptInputs, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """T x V probabilities of the trainer's, without vision tokens."""
    from qwenvl.model.positions import completion_positions

    rows = torch.cat([prompt.input_ids, ids[None]], dim=1)
    where = torch.cat([prompt.position_ids, completion_positions(prompt.position_ids, 1, len(ids))], dim=2)
    with torch.no_grad():
        logits = policy.model(input_ids=rows, position_ids=where, **prompt.vision()).logits[0, -len(ids) - 1 : -1]
    logits[:, policy.local.vision_ids] = -torch.inf
    return (logits / temperature).softmax(-1)


def test_a_seed_gives_the_same_completions_in_any_company(served):
    policy, client = served
    params = SamplingParams(24, temperature=1.0)
    prompts = PromptInputs.join([policy.prompt(5, CLIP, 4), policy.prompt(4), policy.prompt((4, 4), 3)])
    both = policy.request(prompts, params, group_size=3)

    first = client.sample(both).ids
    assert client.sample(both).ids == first
    assert client.sample(replace(both, prompts=both.prompts[2:])).ids == first[6:]
    other = replace(both.prompts[2], seed=both.prompts[2].seed + 3)
    others = client.sample(replace(both, prompts=[other])).ids
    assert not {*map(tuple, others)} & {*map(tuple, first[6:])}


def test_more_prompts_than_a_step_takes_are_answered_as_alone(served):
    """More tokens than a step of vLLM takes, so that it would cut a prompt in two."""
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(500, words=words) for words in range(20)])
    request = policy.request(prompts, SamplingParams(3, temperature=1.0))
    answer = client.sample(request)
    for number in (0, 8, 19):
        alone = client.sample(replace(request, prompts=request.prompts[number : number + 1]))
        assert alone.ids[0] == answer.ids[number]
        assert alone.logprobs[0] == pytest.approx(answer.logprobs[number], rel=0, abs=1e-4)


def test_banned_tokens_are_never_drawn(served):
    policy, client = served
    params = SamplingParams(256, temperature=1000.0)
    request = replace(policy.request(policy.prompt(4), params, group_size=10), end_ids=[])
    free, held = ([*chain(*client.sample(each).ids)] for each in (replace(request, banned_ids=[]), request))
    assert len(free) == len(held) == 2560
    assert sum(token in policy.local.vision_ids for token in free) > 5  # about 27, were nothing banned
    assert not set(held).intersection(policy.local.vision_ids)


def test_end_tokens_end_and_stay(served):
    policy, client = served
    prompt = policy.prompt(5, CLIP, 4)
    request = policy.request(prompt, GREEDY)
    whole = client.sample(request).ids[0]
    end = whole[5]
    answer = client.sample(replace(request, end_ids=[end]))
    assert answer.ids[0] == whole[: whole.index(end) + 1] and answer.finish_reasons == ["stop"]
    cut = client.sample(replace(request, end_ids=[], params=replace(GREEDY, max_new_tokens=3)))
    assert cut.ids[0] == whole[:3] and cut.finish_reasons == ["length"]


def test_stop_strings_end_where_they_do_at_the_local_engine(served):
    policy, client = served
    prompt = policy.prompt(5, CLIP, 4)
    whole, _ = local_and_server(policy, client, prompt, GREEDY)
    text = next(
        each
        for start in range(4, 20)
        if (each := policy.local.tokenizer.decode(whole.completion_ids[0, start : start + 2])).isascii()
        and each.strip()
    )
    stopped, answer = local_and_server(policy, client, prompt, replace(GREEDY, stop_strings=(text,)))
    assert answer.finish_reasons == ["stop"] and text in stopped.texts[0]
    assert len(answer.ids[0]) < len(whole.completion_ids[0])


def test_a_penalty_counts_the_tokens_of_the_prompt(served):
    policy, client = served
    prompt, params = policy.prompt(60, CLIP, 4), replace(GREEDY, repetition_penalty=1.8)
    with_penalty, _ = local_and_server(policy, client, prompt, params)
    without, _ = local_and_server(policy, client, prompt, GREEDY)
    assert with_penalty.completion_ids.tolist() != without.completion_ids.tolist()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_family_samples_as_the_local_engine_does_before_and_after_a_sync(family, tiny_checkpoint, start_server):
    folder = tiny_checkpoint(family, tie_word_embeddings=False, **WIDE)
    policy, client = Policy.load(folder), start_server(folder).client
    assert not client.health().architecture["head tied to the embeddings"]
    prompts = [
        policy.prompt(5, (3, 6, 8, 0.37), 2, (2, 4, 6, 1.1), 4),
        policy.prompt((4, 6), 3, (2, 4, 4, 0.5)),
        policy.prompt(6),
    ]
    together = PromptInputs.join(prompts)
    local_and_server(policy, client, together, GREEDY)
    weights = policy.change()
    assert "lm_head.weight" in weights
    client.put(WeightsRequest(1, 0, True, tensors=weights))
    local_and_server(policy, client, together, GREEDY, version=1)
    assert_looks(policy, client, together)
    likely = policy.change()
    with torch.no_grad():  # a banned token far above all others, where it is above them
        policy.model.lm_head.weight[policy.local.vision_ids[0]] *= 1000
    likely["lm_head.weight"] = policy.model.lm_head.weight.detach()
    client.put(WeightsRequest(2, 0, True, tensors=likely))
    local = policy.local.draw(policy.model, together, 1, GREEDY, seed=0)
    answer = client.sample(policy.request(together, GREEDY, version=2))
    assert answer.ids == [
        row[kept].tolist() for row, kept in zip(local.completion_ids, local.completion_mask, strict=True)
    ]
    assert float(local.logprobs.min()) < -200  # so sure it was of the banned one


def assert_looks(policy: Policy, client: Server, prompts: PromptInputs) -> None:
    """Greedy completions with looks are those of the local engine. A letter ends a turn."""
    params = SamplingParams(40, temperature=0.0, stop_strings=tuple(ascii_letters))
    looks = [policy.prompt(3, (1, 4, 4, 0.5)), policy.prompt((4, 6)), policy.prompt(4), policy.prompt((2, 4, 6, 0.3))]
    script = Scripted([looks[:3], [], looks[3:]], least=1)
    engine = VllmEngine(policy.local, Servers([client], patience=10.0))
    engine.sync(policy.model, 0)
    (rollout,) = engine.sample(policy.model, SamplingRequest([prompts], 1, params, 0, script.select(range(3))))
    local = policy.local.draw(policy.model, prompts, 1, params, 0, script)
    assert rollout.completion_ids.equal(local.completion_ids) and rollout.finish_reasons == local.finish_reasons
    assert rollout.whole.position_ids.equal(local.whole.position_ids) and rollout.boots
    mask = local.completion_mask
    assert (mask[:, 1:] & ~mask[:, :-1]).sum() == 4, "each look is followed by a turn"
    assert mask.equal(rollout.completion_mask) and (local.logprobs - rollout.logprobs)[mask].abs().max() < 1e-4


def test_half_precision_differs_as_rounding_does_and_mistakes_by_more(tmp_path, start_server, monkeypatch):
    """In means of the trainer's own rounding: float32 less bfloat16."""
    plain = tiny._linear_attention
    monkeypatch.setattr(tiny, "_linear_attention", lambda hidden, layers, width: plain(hidden, layers, 128))
    folder = tiny.save_tiny(tmp_path / "tiny", "qwen3_5", hidden_size=256, initializer_range=0.1)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
            weights[name] += 1.5  # which are 0: sharper attention, to which positions matter
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    policy, client = Policy.load(folder), start_server(folder, "--dtype", "bfloat16").client
    parts = [5, (3, 6, 8, 0.37), 4], [(4, 6), 3], [3, (4, 8, 8, 0.5), 6], [2, (2, 4, 6, 0.5), 9]
    prompts = PromptInputs.join([policy.prompt(*each) for each in parts])
    version = 0

    def differs(seen: PromptInputs) -> float:
        answer = client.sample(policy.request(seen, SamplingParams(32), group_size=4, version=version))
        theirs = pad_sequence([*map(torch.tensor, answer.logprobs)], True)
        exact, mask = policy.likelihood(prompts, answer, 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, _ = policy.likelihood(prompts, answer, 1.0)
        gap = lambda a, b: (a - b)[mask].abs().mean()
        return float(gap(theirs, rounded) / gap(exact, rounded))

    assert differs(prompts) < NOISE
    config, ids = policy.model.config, prompts.input_ids
    pads = (ids == config.video_token_id) | (ids == config.image_token_id)
    behind = (pads.long().flip(1).cumsum(1).flip(1) == 0).long()
    pixels, images = prompts.pixel_values_videos, prompts.pixel_values
    wrong = {
        "positions off by one": replace(prompts, position_ids=prompts.position_ids + behind),
        "frames in another order": replace(prompts, pixel_values_videos=pixels.flip(0)),
        "no video": replace(prompts, pixel_values_videos=torch.zeros_like(pixels), pixel_values=images * 0),
    }
    found = {name: differs(seen) for name, seen in wrong.items()}
    policy.change()
    found["old weights"] = differs(prompts)
    assert min(found.values()) > 3, found
    client.put(WeightsRequest(1, 0, True, tensors=dict(policy_weights(policy.model, torch.bfloat16))))
    version = 1
    assert differs(prompts) < NOISE


def test_another_model_is_refused_at_the_start(tiny_checkpoint, start_server):
    with pytest.raises(
        RuntimeError, match=r"error: .*model type 'qwen3_5_moe'"
    ):
        start_server(tiny_checkpoint("qwen3_5_moe"))


def test_weights_that_were_sent_sample_and_nothing_old_is_left(served, tmp_path):
    """By a file. A tied head: vLLM would keep the old one on a CPU. A prompt whose keys and values the cache has."""
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(LONG, 4), policy.prompt(3)])
    local_and_server(policy, client, prompts, GREEDY)
    for version in (1, 2):
        path = tmp_path / "weights.safetensors"
        save_file(policy.change(), path)
        assert client.put(WeightsRequest(version, 0, True, path=str(path))) == version
        with pytest.raises(ServerLostError, match=f"version {version - 1}, the server has version {version}"):
            client.sample(policy.request(prompts, GREEDY, version=version - 1))
        _, answer = local_and_server(policy, client, prompts, GREEDY, version=version)
        assert answer.cached_tokens == 0 and answer.version == version
    params = SamplingParams(24, temperature=0.7, top_p=0.9)
    answer = client.sample(policy.request(prompts, params, version=2, group_size=2))
    policy.assert_logprobs(prompts, answer, 0.7)


def test_weights_may_come_in_parts_and_an_unfinished_version_samples_nothing(served):
    """In messages. A part may end within a layer that vLLM holds as one, and all of them may be given up."""
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(LONG, 4), policy.prompt(3)])

    def give(version: int, weights: dict[str, torch.Tensor], *, last: bool = True):
        names = [*weights]
        for part, start in enumerate(range(0, len(names), 5)):
            tensors = {name: weights[name] for name in names[start : start + 5]}
            end = last and start + 5 >= len(names)
            given = client.put(WeightsRequest(version, part, end, tensors=tensors))
        return given

    given_up = {name: torch.ones_like(value) for name, value in policy.change().items() if "layers.1" not in name}
    assert give(3, given_up, last=False) is None
    with pytest.raises(ServerLostError, match="the server has a part of a version"):
        client.sample(policy.request(prompts, GREEDY, version=3))
    weights = policy.change()
    assert give(4, weights) == 4
    local_and_server(policy, client, prompts, GREEDY, version=4)
    del weights["model.language_model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(ServerRefusedError, match=r"1 parameters were not among .*layers\.1\.self_attn\.qkv_proj, "):
        give(5, weights)
    assert client.health().version is None
    assert give(6, policy.change()) == 6
    local_and_server(policy, client, prompts, GREEDY, version=6)
