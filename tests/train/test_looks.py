"""Training with tools: sampled tokens are trained, in several groupings and by both paths; looks are written down."""

import json

import pytest
import torch

from qwenvl.demo.tiny import make_processor
from qwenvl.runlog import read_rollouts
from tests.train.conftest import caught_gradients, logged

CALL = '<tool_call>{"name": "look", "arguments": {"start": 0.5, "end": 1.5}}</tool_call><|im_end|>'


@pytest.fixture
def calls_first(monkeypatch, tiny_checkpoint):
    """Every other completion calls ``look`` in its first turn: what is sampled is forced, its log-probs are not."""
    import qwenvl.rollout.local
    import qwenvl.rollout.shared_sampling

    tokens = make_processor("qwen2_5_vl").tokenizer(CALL)["input_ids"]

    class Forced:
        """Sees the tokens of a turn, rows x t."""

        def __init__(self):
            self.turns = 0
            self.start = None

        def __call__(self, ids, scores):
            if self.start is None or ids.shape[1] == self.start:
                self.start, self.turns = ids.shape[1], self.turns + 1
            t = ids.shape[1] - self.start
            if self.turns > 1 or t >= len(tokens):
                return scores
            follows = torch.arange(len(ids)) % 2 == 0 if t == 0 else (ids[:, self.start] == tokens[0])
            only = torch.full_like(scores, -torch.inf)
            only[:, tokens[t]] = 0.0
            return torch.where(follows[:, None], only, scores.index_fill(1, torch.tensor(tokens[:1]), -torch.inf))

    for module in (qwenvl.rollout.shared_sampling, qwenvl.rollout.local):
        made = module.logits_processors

        def processors(*args, made=made):
            chosen = made(*args)
            chosen.insert(0, forced[0])
            return chosen

        monkeypatch.setattr(module, "logits_processors", processors)
    forced = [Forced()]

    def again():
        forced[0] = Forced()

    return again


LOOKS = {"tools": ["look"], "look_frames": 4, "generation_max_length": 120, "max_turns": 2, "check_parity": "every"}
LOOKS |= {"generation_temperature": 1.0, "generation_top_p": 1.0, "max_steps": 1, "per_device_train_batch_size": 2}


@pytest.mark.parametrize("sharing", ["auto", "off"])
def test_a_run_with_looks(make_trainer, calls_first, sharing):
    trainer = make_trainer(**LOOKS, shared_prefix=sharing)
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir))
    asked = [row for row in rows if any(turn["calls"] for turn in row.turns)]
    assert len(asked) == 3 and len(rows) == 6
    for row in asked:
        first, second = row.turns
        [call] = first["calls"]
        assert first["text"] in CALL and second["calls"] == []
        assert row.completion == first["text"] + second["text"] and row.tokens <= 120
        if row.clips:
            [clip] = call["clips"]
            assert call["error"] is None and clip["path"] == row.clips[0].path
            assert all(0.5 <= time <= 1.5 for time in clip["times"]) and len(clip["indices"]) == 4
        else:
            assert call["error"] == "there is no video"
    [logs] = logged(trainer)
    assert logs["look/calls"] == 0.5 and logs["look/looked_frac"] <= 0.5 and logs["look/tokens"] > 0
    assert logs["parity/max"] < 1e-4


def test_the_update_does_not_depend_on_how_prompts_are_grouped(make_trainer, calls_first, tmp_path):
    """Of rollouts that are given, since draws depend on what is sampled together."""
    steps = []
    for batch, accumulation in ((4, 1), (2, 2), (1, 4)):
        calls_first()
        grouping = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(**LOOKS | grouping, output_dir=str(tmp_path / f"{batch}"), grpo_beta=0.1)
        steps.append(caught_gradients(trainer))
        trainer.train()
    whole, *others = ([*each] for each in steps)
    for other in others:
        torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-7)


def test_rewards_read_the_turns(make_trainer, calls_first):
    seen = []

    def looks(completions, turns, **columns):
        seen.extend(turns)
        return [float(sum(len(turn.calls) for turn in each)) for each in turns]

    trainer = make_trainer(**LOOKS, functions=(looks,))
    trainer.train()
    assert len(seen) == 6 and logged(trainer)[0]["reward/looks"] == 0.5
    assert json.loads(json.dumps(seen[0][0].calls[0].arguments)) == {"start": 0.5, "end": 1.5}
