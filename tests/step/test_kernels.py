"""Once means once: what the vision tower and the language model compute in a whole step, counted by hooks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from qwenvl.run_log.log import read_metrics, read_rollouts

GROUP = 3
VOWELS = ["a", "e", "i", "o", "u"]  # as stop strings they make completions of different lengths
IMAGE_PATCHES = 8 * 10  # 64 x 48 pixels, enlarged to the least area that --min_pixels allows
FRAME_PATCHES = 4 * 4  # of a pair of frames


@dataclass
class Counts:
    """Tokens by layer of policy and reference together, and of the first layer and the head call by call."""

    blocks: dict[int, int] = field(default_factory=dict)
    layers: dict[int, int] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)


def bare(model):
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def count(trainer) -> Counts:
    """Hooks on every block of the tower and every layer of the language model."""
    trainer.logprobs.parity.probe = lambda *_: None  # its forwards are beside those of the step
    counts = Counts()
    with trainer.reference.model() as reference:
        models = {id(bare(model)): bare(model) for model in (trainer.model, reference)}.values()

    def add(to: dict[int, int], index: int):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            to[index] = to.get(index, 0) + output.shape[:-1].numel()
            if to is counts.layers and index == 0:
                counts.calls.append(output.shape[:-1].numel())

        return hook

    for model in models:
        for index, block in enumerate(model.model.visual.blocks):
            block.register_forward_hook(add(counts.blocks, index))
        for index, layer in enumerate(model.model.language_model.layers):
            layer.register_forward_hook(add(counts.layers, index))
        model.lm_head.register_forward_pre_hook(lambda module, args: counts.head.append(args[0].shape[:-1].numel()))
    return counts


def patches(rollouts) -> int:
    """Of the unique prompts, from the frames that they showed."""
    seen = {row.record_id: row for row in rollouts}.values()
    frames = [len(clip.indices) for row in seen for clip in row.clips]
    assert all(n % 2 == 0 for n in frames)
    return sum(frames) // 2 * FRAME_PATCHES + sum(len(row.images) for row in seen) * IMAGE_PATCHES


def decoding(lengths: list[int]) -> list[int]:
    """Tokens of each step of decoding: as many for each prompt that goes on as the one with the most going on needs."""
    groups = [lengths[n : n + GROUP] for n in range(0, len(lengths), GROUP)]
    going = [[sum(length > t for length in group) for group in groups] for t in range(1, max(lengths))]
    return [sum(count > 0 for count in counts) * max(counts) for counts in going]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3_vl", {}),
        ("qwen3_5", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
        ("qwen3_vl_moe", {}),
        ("qwen3_5_moe", {"lora_enable": True, "lora_r": 4}),
        ("qwen2_5_vl", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 3}),
    ],
    ids=str,
)
def test_a_step_computes_prompts_once_per_pass_and_frames_once(make_trainer, tiny_checkpoint, family, settings):
    """All eight records in a step: P tokens of prompts, and C of completions without the last of each.

    Of several steps on them each has a policy pass of its own, and nothing else.
    """
    model = str(tiny_checkpoint(family, initializer_range=0.1))
    settings = {"per_device_train_batch_size": 8, "stop_strings": VOWELS, **settings}
    iterations = settings.get("num_iterations", 1)
    trainer = make_trainer(model=model, max_steps=iterations, grpo_sample_size=GROUP, **settings)
    counts = count(trainer)
    trainer.train()
    rollouts = list(read_rollouts(trainer.args.output_dir))
    lengths = [row.tokens for row in rollouts]
    assert len(lengths) == 8 * GROUP and len(set(lengths)) > 2
    p = round(8 * read_metrics(trainer.args.output_dir)[0]["prompt/tokens"])
    c = sum(lengths) - len(lengths)
    assert set(counts.blocks.values()) == {patches(rollouts)}
    # Prefill, then token by token, then reference and policy, micro-batch by micro-batch.
    steps = decoding(lengths)
    passes = 1 + iterations
    assert counts.calls[: 1 + len(steps)] == [p, *steps]
    assert len(counts.calls) == 1 + len(steps) + passes * settings.get("gradient_accumulation_steps", 1)
    assert sum(counts.calls[1 + len(steps) :]) == passes * (p + c)
    assert set(counts.layers.values()) == {p + sum(steps) + passes * (p + c)}
    # The head sees the last token of each prompt once, and what predicts a token of a completion.
    assert counts.head[: 1 + len(steps)] == [8, *steps]
    assert sum(counts.head[1 + len(steps) :]) == passes * sum(lengths)


def test_an_evaluation_computes_every_prompt_and_frame_once(make_trainer, sop_data):
    trainer = make_trainer(eval_dataset_use=str(sop_data), per_device_eval_batch_size=8, eval_sample_size=GROUP)
    counts = count(trainer)
    trainer.evaluate()
    rollouts = list(read_rollouts(trainer.args.output_dir, split="eval"))
    assert set(counts.blocks.values()) == {patches(rollouts)}
    assert counts.calls[1:] == decoding([row.tokens for row in rollouts])


def test_the_plain_path_computes_every_frame_for_each_completion(make_trainer):
    """The hooks see what is repeated where it is repeated: in sampling, reference and policy, G times each."""
    trainer = make_trainer(per_device_train_batch_size=8, max_steps=1, grpo_sample_size=GROUP, shared_prefix="off")
    counts = count(trainer)
    trainer.train()
    assert set(counts.blocks.values()) == {3 * GROUP * patches(read_rollouts(trainer.args.output_dir))}
