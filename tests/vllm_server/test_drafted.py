"""Real vLLM that drafts (``--speculative``): the law of sampling token by token, and the trainer's log-probs."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import SamplingParams
from qwenvl.vllm_server.wire import WeightsRequest
from tests.rollout.law import assert_law, probabilities
from tests.vllm_server.policy import WIDE, Policy, local_and_server

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(40, temperature=0.0)
CLIP = (3, 6, 8, 0.37)
DRAFTS = ("--speculative", "ngram:4", "--max_num_seqs", "64")
GROUP = 1500


@pytest.fixture(scope="module")
def served(tiny_checkpoint, start_server, tmp_path_factory):
    """The policy, and a server that was started with it and drafts. Tests of weights come last in this file.

    Random weights hardly repeat anything. With large embeddings a token makes itself likely, so that drafts are right
    now and then.
    """
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    shutil.copytree(tiny_checkpoint("qwen2_5_vl", **WIDE), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"] *= 4
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return Policy.load(folder), start_server(folder, *DRAFTS).client


def repeating(token: int) -> PromptInputs:
    """A prompt that ends with a token twice. It has the token in a row before, so that vLLM drafts it four times."""
    return PromptInputs.of_text(torch.tensor([[*[token] * 6, 100, 101, token, token]]))


def law_of_repetition(policy: Policy, params: SamplingParams) -> tuple[PromptInputs, int, list[torch.Tensor]]:
    """A prompt that repeats a token, the token, and the distributions behind none, one and two more of them.

    In each the token is neither rare nor sure, and another one is frequent too.
    """
    for token in range(20, 370):
        prompt = repeating(token)
        laws = []
        for times in range(3):
            laws.append(probabilities(policy.model, prompt, [token] * times, params, policy.local.vision_ids))
            if not 0.3 < laws[-1][token] < 0.7 or laws[-1].topk(2).values[1] < 0.1:
                break
        else:
            return prompt, token, laws
    raise AssertionError("no token repeats itself now and then")


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 2.0},
        {"temperature": 2.0, "top_p": 0.9},
        {"temperature": 2.0, "top_k": 8},
        {"temperature": 2.0, "min_p": 0.02},
        {"temperature": 1.0, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_the_first_three_tokens_have_the_law_of_plain_forwards(served, settings):
    policy, client = served
    params = SamplingParams(4, **settings)
    prompt, token, (first, second, third) = law_of_repetition(policy, params)
    answer = client.sample(replace(policy.request(prompt, params, group_size=GROUP), end_ids=[]))
    assert 0 < answer.accepted_tokens < answer.drafted_tokens
    assert_law(Counter(row[0] for row in answer.ids), first)
    assert_law(Counter(row[1] for row in answer.ids if row[0] == token), second)
    assert_law(Counter(row[2] for row in answer.ids if row[:2] == [token, token]), third)


def test_a_banned_token_is_not_taken_from_a_draft(served):
    policy, client = served
    params = SamplingParams(2, temperature=2.0)
    prompt, token, _ = law_of_repetition(policy, params)
    banned = [*policy.local.vision_ids, token]
    # The first token is what stands before the repeated one in the prompt: that pair is what a draft follows.
    prompt.input_ids[0, -1] = 58
    first = probabilities(policy.model, prompt, [], params, banned)
    request = replace(policy.request(prompt, params, group_size=GROUP), banned_ids=banned, end_ids=[])
    answer = client.sample(request)
    assert_law(Counter(row[0] for row in answer.ids), first)
    assert not any(token in row for row in answer.ids)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_is_that_of_the_local_engine(served, penalty):
    """Videos, an image and texts, alone and in one request."""
    policy, client = served
    params = replace(GREEDY, repetition_penalty=penalty)
    parts = [5, CLIP, 4], [3, CLIP, 2, (2, 4, 6, 1.1), 4], [2, (4, 6), 3], [9]
    prompts = [policy.prompt(*each) for each in parts]
    accepted = 0
    for prompt in [*prompts, PromptInputs.join(prompts)]:
        _, answer = local_and_server(policy, client, prompt, params)
        accepted += answer.accepted_tokens
    assert accepted > 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(40, temperature=1.5),
        SamplingParams(40, temperature=0.7, top_p=0.9),
        SamplingParams(40, temperature=1.2, top_k=20, min_p=0.02, repetition_penalty=1.05),
    ],
    ids=str,
)
def test_logprobs_are_those_of_the_trainer(served, params):
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(5, CLIP, 4), repeating(200)])
    answer = client.sample(policy.request(prompts, params, group_size=8))
    assert answer.accepted_tokens > 0
    policy.assert_logprobs(prompts, answer, params.temperature)


def test_a_seed_gives_the_same_completions_in_any_company(served):
    policy, client = served
    params = SamplingParams(40, temperature=1.0)
    prompts = PromptInputs.join([policy.prompt(5, CLIP, 4), repeating(200), policy.prompt((4, 4), 3)])
    request = policy.request(prompts, params, group_size=3)
    first = client.sample(request)
    assert first.accepted_tokens > 0
    assert client.sample(request).ids == first.ids
    assert client.sample(replace(request, prompts=request.prompts[1:])).ids == first.ids[3:]


def test_completions_end_within_a_draft(served):
    """By an end token, by their length and by a stop string. What was drafted behind the end is not in them."""
    policy, client = served
    prompt, token, _ = law_of_repetition(policy, SamplingParams(4, temperature=2.0))
    request = policy.request(prompt, GREEDY)
    whole = client.sample(request)
    (ids,) = whole.ids
    assert whole.accepted_tokens > 0 and ids[:8] == [token] * 8
    for length in range(1, 9):
        answer = client.sample(replace(request, params=replace(GREEDY, max_new_tokens=length)))
        assert answer.ids == [ids[:length]] and answer.finish_reasons == ["length"]
        assert len(answer.logprobs[0]) == length
        stop = policy.local.tokenizer.decode(ids[:length])
        assert stop.isascii() and stop.strip()
        _, answer = local_and_server(policy, client, prompt, replace(GREEDY, stop_strings=(stop,)))
        assert answer.ids == [ids[:length]] and answer.finish_reasons == ["stop"]
        assert len(answer.logprobs[0]) == length
    prompt = policy.prompt(5, CLIP, 4)
    request = policy.request(prompt, GREEDY)
    (ids,) = client.sample(request).ids
    for end in set(ids):
        answer = client.sample(replace(request, end_ids=[end]))
        assert answer.ids == [ids[: ids.index(end) + 1]] and answer.finish_reasons == ["stop"]


def test_weights_that_were_sent_verify_drafts(served):
    policy, client = served
    prompts = PromptInputs.join([policy.prompt(5, CLIP, 4), policy.prompt(9)])
    local_and_server(policy, client, prompts, GREEDY)
    client.put(WeightsRequest(1, 0, True, tensors=policy.change()))
    local_and_server(policy, client, prompts, GREEDY, version=1)
