"""Completions of several turns: what is sampled behind appended frames equals full forwards of each row."""

from itertools import count

import pytest
import torch

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model import logprobs
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.engine import SamplingRequest
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine
from qwenvl.rollout.vllm import VllmEngine
from qwenvl.types import SamplingParams
from tests.rollout.drafted import DraftedEngine
from tests.rollout.served import Scripted, engine_of

FAMILIES = ["qwen2_5_vl", "qwen3_vl", "qwen3_5"]


class ShortTurns:
    """Ends each turn after two to four tokens, depending on its first, in the place of stop strings."""

    no_token = -1  # on the left of completions that are shorter, with drafts

    def __call__(self, ids):
        there = ids != self.no_token
        first = ids.gather(1, there.long().argmax(1, keepdim=True))[:, 0]
        return there.sum(1) >= 2 + first % 3

    def each_token(self, ids):
        return torch.arange(1, ids.shape[1] + 1) >= 2 + ids[:, :1] % 3


SCRIPT = [["tvt", "t"], [], ["tvtvt"], ["titvt", "t", "tvt"], ["t"], ["tvt"]]


@pytest.fixture
def sample(random_prompts, fake):
    """Samples with an engine in which turns are short."""

    def run(family, kind, *, temperature=0.0, budget=None, most=30):
        model, processor = make_model(family, make_processor(family), initializer_range=0.1), make_processor(family)
        prompts = random_prompts(model, ["tvt", "titv"])
        params = SamplingParams(max_new_tokens=most, temperature=temperature, stop_strings=("any",))
        seeds = count(100)
        script = Scripted([[random_prompts(model, [word], seed=next(seeds)) for word in words] for words in SCRIPT])
        if kind is not VllmEngine:
            engine = kind(processor.tokenizer, model, token_budget=budget)
            engine._stops = {("any",): ShortTurns()}
            return model, prompts, engine.draw(model, prompts, 3, params, seed=4, conversations=script)
        server = fake(family, initializer_range=0.1)
        run.server = server
        server._engine.local._stops = {("any",): ShortTurns()}
        engine = engine_of(model, processor, [server])
        engine.sync(model, 0)
        (rollout,) = engine.sample(model, SamplingRequest([prompts], 3, params, 4, script))
        return model, prompts, rollout

    return run


ENGINES = [LocalEngine, SharedPrefixEngine, DraftedEngine, VllmEngine]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_tokens_equal_those_of_full_forwards(sample, family, engine):
    if engine is DraftedEngine and family == "qwen3_5":
        pytest.skip("drafts need full attention in all layers")
    model, prompts, rollout = sample(family, engine)
    turns = (rollout.completion_mask[:, 1:] & ~rollout.completion_mask[:, :-1]).sum(1)
    assert turns.tolist() == [len(SCRIPT[row]) for row in range(6)]
    rows = prompts.repeat(3).followed_by(rollout.whole)
    for n in range(6):
        row = rows.select([n])
        logits = model(**vars_of(model, row)).logits[0]
        tokens = rollout.whole.attention_mask[n].sum()
        expected = logits[-tokens - 1 : -1]
        plain = expected.log_softmax(-1)
        expected[:, [model.config.to_dict()[f"{kind}_token_id"] for kind in VISION]] = -torch.inf
        own, ids = rollout.completion_mask[n, :tokens], rollout.completion_ids[n, :tokens, None]
        found = rollout.logprobs[n, :tokens]
        torch.testing.assert_close(found[own], plain.gather(1, ids)[own, 0], rtol=1e-4, atol=1e-4)
        assert torch.equal(expected.argmax(-1)[own], rollout.completion_ids[n, :tokens][own])
    assert_logprobs(model, prompts, rollout, 1.0)


def assert_logprobs(model, prompts, rollout, temperature):
    """The log-probs of sampling are those of training, by both paths."""
    settings = {"temperature": temperature, "logit_chunk_tokens": 50, "whole": rollout.whole}
    for path in (logprobs, shared_prefix):
        got = path.completion_logprobs(model, prompts, rollout.completion_ids, rollout.completion_mask, **settings)
        torch.testing.assert_close(got.float(), rollout.logprobs, rtol=1e-5, atol=1e-5)


VISION = ("image", "video", "vision_start", "vision_end")


def vars_of(model, row):
    """The arguments of a plain forward of one row, with positions that are computed for the row as a whole."""
    keep = row.attention_mask[0].bool()
    ids = row.input_ids[:, keep]
    seconds = None if row.video_grid_thw is None else torch.full((len(row.video_grid_thw),), 0.75)
    media = row.image_grid_thw, row.video_grid_thw, seconds
    positions = prompt_positions(position_rule(model.config), ids, torch.ones_like(ids), *media)
    return {"input_ids": ids, "position_ids": positions, **row.vision()}


def test_a_server_is_asked_for_as_many_tokens_as_each_completion_may_still_have(sample):
    """Its --max_model_len has room for one completion, and what is appended. It refuses more, which ends the run."""
    most = 9
    _, prompts, rollout = sample("qwen3_vl", VllmEngine, temperature=0.8, most=most)
    rows = []
    for row, (ids, mask) in enumerate(zip(rollout.whole.input_ids, rollout.whole.attention_mask.bool(), strict=True)):
        prompt = prompts.select([row // 3])
        rows.append((*prompt.input_ids[prompt.attention_mask.bool()].tolist(), *ids[mask].tolist()))
    rooms = []
    for request in sample.server.asked[1:]:
        for prompt in request.prompts:
            behind = tuple(prompt.ids.tolist())
            [row] = [row for row, ids in enumerate(rows) if ids[: len(behind)] == behind]
            sampled = rollout.completion_mask[row, : len(behind) - int(prompts.attention_mask[row // 3].sum())].sum()
            rooms.append(request.room_of(prompt))
            assert rooms[-1] == most - sampled
    assert len(set(rooms)) > 2


@pytest.mark.parametrize("engine", ENGINES)
def test_sampled_tokens_of_all_turns_count_for_the_length(sample, engine):
    model, prompts, rollout = sample("qwen3_vl", engine, temperature=0.8, budget=1, most=5)
    assert_logprobs(model, prompts, rollout, 0.8)
    lengths = rollout.completion_mask.sum(1).tolist()
    assert max(lengths) == 5, "some have come to their length"
    for row, (length, reason) in enumerate(zip(lengths, rollout.finish_reasons, strict=True)):
        turns = int((rollout.completion_mask[row, 1:] & ~rollout.completion_mask[row, :-1]).sum()) + 1
        assert reason == ("stop" if turns == len(SCRIPT[row]) + 1 and length < 5 else "length") or length == 5
