"""Servers that sample ahead: which weights answer, and what a run leaves that loses them meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from unittest.mock import ANY

import pytest
import torch
from transformers import TrainerCallback

from qwenvl.rollout.engine import EngineLostError
from qwenvl.tools import toolbox
from tests.step.test_ahead import Snapshots, likelihoods, logged
from tests.train.copying_engine import draw_by_thread
from tests.train.remote.test_training import settings

AHEAD = {"async_rollouts": 2, "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2}


@pytest.fixture(autouse=True)
def _own_random_numbers(monkeypatch):
    """Random numbers of each thread of its own, so that sampling ahead changes no draw of training."""
    draw_by_thread(monkeypatch)


LOOKS = {"tools": ["look"], "look_frames": 2, "generation_max_length": 40, "stop_strings": ["a"], "max_turns": 2}


@pytest.fixture
def make_looking(make_trainer, monkeypatch):
    """``make_trainer`` whose completions look whenever they end, where there are tools."""
    monkeypatch.setattr(toolbox, "TURN_END", "any")
    monkeypatch.setattr(toolbox, "calls_in", lambda text: [("look", {"start": 0.0, "end": 1.0})])

    def make(**settings):
        trainer = make_trainer(**settings)
        tokenizer = trainer.data_collator.processor.tokenizer
        ids = tokenizer.convert_tokens_to_ids
        monkeypatch.setattr(tokenizer, "convert_tokens_to_ids", lambda token: ANY if token == "any" else ids(token))
        return trainer

    return make


@pytest.mark.parametrize("more", [{}, LOOKS], ids=["no tools", "looks"])
def test_the_weights_of_a_step_sample_the_next_steps_too(make_looking, fake, more):
    fakes = [fake(initializer_range=0.1) for _ in range(2)]
    trainer = make_looking(**settings(fakes, **AHEAD | more))
    seen = Snapshots().follow(trainer)
    trainer.train()
    one, two = [request.version for request, _ in fakes[0].given]  # before steps 1 and 3
    for each in fakes:
        asked = Counter(request.version for request in each.asked)
        assert asked == ({one: 6, two: 2} if more else {one: 3, two: 1})
    assert [row["async/staleness"] for row in logged(trainer)] == [0, 1, 2, 1]
    assert logged(trainer)[0]["parity/max"] < 1e-4
    for step, (late, ended) in enumerate(zip([0, 1, 2, 1], seen.steps, strict=True)):
        [each] = ended.experiences
        own = likelihoods(trainer, seen.policies[step - late], each)
        mask = each.rollout.completion_mask
        assert torch.allclose(own[mask], each.rollout.logprobs[mask], atol=1e-4)
        looked = [call.clips for turns in each.rollout.turns or [] for turn in turns for call in turn.calls]
        assert any(looked) == bool(more)


@pytest.mark.parametrize(
    "more, answered, staleness, compared", [({}, 3, [0, 0, 1, 1], [1, 2]), (LOOKS, 8, [0, 1, 2, 1], [1])]
)
def test_a_server_that_was_started_again_is_given_the_weights_of_now(
    make_looking, fake, more, answered, staleness, compared
):
    """It dies when it is asked for step 2, and step 3 was asked for with it. Both are asked for again in step 2.

    Or for the second turns of step 1, which is begun again with it.
    """
    first, started = fake(initializer_range=0.1), []
    first.faults = [lambda answer: answer, "die"]
    trainer = make_looking(**{**settings([first], **AHEAD | more), "vllm_patience": 20.0})

    def start_again():
        while not started:
            try:
                started.append(fake(port=first.port, initializer_range=0.1))
            except OSError:
                time.sleep(0.02)

    threading.Thread(target=start_again, daemon=True).start()
    seen = Snapshots().follow(trainer)
    trainer.train()
    assert len(first.asked) == 1 and len(started[0].asked) == answered
    rows = logged(trainer)
    late = [int(row["async/staleness"]) for row in rows]
    assert late == staleness and [row["step"] for row in rows if "parity/max" in row] == compared
    for step, ended in enumerate(seen.steps):
        [each] = ended.experiences
        own, mask = likelihoods(trainer, seen.policies[step - late[step]], each), each.rollout.completion_mask
        assert torch.allclose(own[mask], each.rollout.logprobs[mask], atol=1e-4)


def test_a_run_that_loses_its_server_while_it_samples_ahead_can_be_resumed(make_trainer, fake, tmp_path, caplog):
    """It ends in step 2, when what was asked for step 3 does not come. What came for step 2 is in the checkpoint."""
    server, begun = fake(initializer_range=0.1), threading.Event()

    def die(answer):
        begun.wait(60)
        server.fail("die")

    class InStepTwo(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                begun.set()
                assert trainer.answer.sample.engine._pending[-1].answer.exception(60)

    server.faults = [lambda answer: answer] * 2 + [die]
    run = {**settings([server], **AHEAD), "resume": "auto"}
    trainer = make_trainer(**run, callbacks=[InStepTwo()])
    with pytest.raises(EngineLostError, match="no server samples any more"):
        trainer.train()
    assert [each.name for each in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    assert "completions that were requested ahead (1 step) did not come" in caplog.text
    server = fake(initializer_range=0.1)
    resumed = make_trainer(**{**run, "vllm_server": [server.address]})
    resumed.train()
    assert [row["async/staleness"] for row in logged(resumed)] == [0, 1, 1, 2]
