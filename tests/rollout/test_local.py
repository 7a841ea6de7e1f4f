"""Sampling: the policy's own distribution, its own settings, and nothing left behind."""

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.positions import completion_positions, position_rule, prompt_positions
from qwenvl.rollout.engine import SamplingParams, completion_mask
from qwenvl.rollout.local import LocalEngine

SAMPLED = SamplingParams(max_new_tokens=12, temperature=0.7, top_p=0.9)


def make_prompts(model) -> PromptInputs:
    """A video prompt and a shorter text prompt, left-padded."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    grid = torch.tensor([[2, 4, 6]])
    apart = family_of(config).time == "timestamp"
    runs = [[config.video_token_id] * 6] * 2 if apart else [[config.video_token_id] * 12]
    video = [5, 6]
    for run in runs:
        video += [config.vision_start_token_id, *run, config.vision_end_token_id, 9]
    text = [7, 8, 9]
    ids = torch.tensor([video, [0] * (len(video) - 3) + text])
    mask = torch.ones_like(ids)
    mask[1, :-3] = 0
    vision = config.vision_config
    channels = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
    return PromptInputs(
        input_ids=ids,
        attention_mask=mask,
        position_ids=prompt_positions(position_rule(config), ids, mask, None, grid, torch.tensor([0.75])),
        pixel_values=None,
        image_grid_thw=None,
        pixel_values_videos=torch.randn(48, channels, generator=generator),
        video_grid_thw=grid,
        images_per_prompt=[0, 0],
        videos_per_prompt=[1, 0],
    )


def load(tiny_pair, family="qwen2_5_vl"):
    model, processor = tiny_pair(family, initializer_range=0.1)
    return model, LocalEngine(processor.tokenizer, model), make_prompts(model)


def greedy_by_hand(model, prompts, tokens, banned):
    """Row by row, token by token, a whole forward without cache for each."""
    rows = []
    for p in range(len(prompts)):
        prompt = prompts.select([p])
        own = prompt.input_ids.new_zeros(1, 0)
        for length in range(tokens):
            positions = completion_positions(prompt.position_ids, 1, length)
            logits = model(
                input_ids=torch.cat([prompt.input_ids, own], 1),
                position_ids=torch.cat([prompt.position_ids, positions], 2),
                use_cache=False,
                **prompt.vision(),
            ).logits[:, -1]
            logits[:, banned] = -torch.inf
            own = torch.cat([own, logits.argmax(-1, keepdim=True)], 1)
        rows.append(own[0])
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_the_argmax_of_plain_forwards(tiny_pair, family):
    model, engine, prompts = load(tiny_pair, family)
    rollout = engine.draw(model, prompts, 1, SamplingParams(8, temperature=0.0), seed=0)
    with torch.no_grad():
        expected = greedy_by_hand(model.eval(), prompts, 8, engine.vision_ids)
    keep = rollout.completion_mask
    assert torch.equal(rollout.completion_ids[keep], expected[:, : keep.shape[1]][keep])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engines_logprobs_are_the_trainers(tiny_pair, family):
    model, engine, prompts = load(tiny_pair, family)
    rollout = engine.draw(model, prompts, 3, SAMPLED, seed=1)
    trainer = completion_logprobs(
        model, prompts, rollout.completion_ids, rollout.completion_mask, temperature=0.7, logit_chunk_tokens=16
    )
    torch.testing.assert_close(rollout.logprobs, trainer, rtol=0, atol=2e-5)


def test_draws_follow_the_distribution(tiny_pair):
    """First tokens of 4,000 completions of one prompt against its softmax, by a chi-square test over likely tokens."""
    model, engine, prompts = load(tiny_pair)
    prompt = prompts.select([1])
    rollout = engine.draw(model, prompt, 4000, SamplingParams(1, temperature=0.7, top_p=1.0), seed=3)
    with torch.no_grad():
        logits = model(input_ids=prompt.input_ids, position_ids=prompt.position_ids, use_cache=False).logits[0, -1]
    logits = logits / 0.7
    logits[engine.vision_ids] = -torch.inf
    expected = logits.softmax(-1) * 4000
    observed = torch.bincount(rollout.completion_ids[:, 0], minlength=len(expected)).float()
    likely = expected > 5
    statistic = ((observed - expected) ** 2 / expected)[likely].sum().item()
    degrees = int(likely.sum())
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_seeds_repeat_and_differ_and_leave_the_generator_alone(tiny_pair):
    model, engine, prompts = load(tiny_pair)
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (engine.draw(model, prompts, 2, SAMPLED, seed=s).completion_ids for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), first)
    assert torch.equal(one, again)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_vision_tokens_are_never_sampled(tiny_pair):
    model, engine, prompts = load(tiny_pair)
    loved = engine.vision_ids
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, torch.tensor(loved), 50.0))
    rollout = engine.draw(model, prompts, 4, SAMPLED, seed=0)
    assert len(loved) == 4 and not torch.isin(rollout.completion_ids, torch.tensor(loved)).any()


def test_modes_and_settings_come_back(tiny_pair):
    model, engine, prompts = load(tiny_pair)
    expected = engine.draw(model.eval(), prompts, 2, SAMPLED, seed=1).completion_ids
    model.train()
    model.model.visual.eval()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.text_config.use_cache = False
    model.generation_config.repetition_penalty = 5.0
    settings = model.generation_config
    result = engine.draw(model, prompts, 2, SAMPLED, seed=1).completion_ids
    assert torch.equal(result, expected)  # neither checkpointing nor the model's own settings changed the draw
    assert model.training and model.lm_head.training and not model.model.visual.training
    assert model.generation_config is settings and model.config.text_config.use_cache is False


def test_ends(tiny_pair):
    model, engine, prompts = load(tiny_pair)
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    steps = {"n": 0}

    def hook(module, args, logits):
        steps["n"] += 1
        if steps["n"] == 3:
            logits[0, :, end] = 100.0  # the first row ends with its third token
        return logits

    model.lm_head.register_forward_hook(hook)
    rollout = engine.draw(model, prompts, 1, SamplingParams(6, temperature=0.0), seed=0)
    assert rollout.completion_mask.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    assert rollout.finish_reasons == ["stop", "length"]
    assert rollout.completion_ids[0, 2:].tolist() == [end] + [engine.tokenizer.pad_token_id] * 3
    assert "<|im_end|>" not in rollout.texts[0] and (rollout.logprobs[0, 3:] == 0).all()


def test_completion_mask_counts_the_end_token():
    is_end = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 1]]).bool()
    assert completion_mask(is_end).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]
