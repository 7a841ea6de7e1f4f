"""A run whose steps are sampled ahead by real vLLM: completions of older weights, with the log-probs of these."""

from __future__ import annotations

import pytest
import torch

from tests.train.collect.test_ahead import Snapshots, likelihoods, logged
from tests.train.conftest import make_trainer, sop_data  # noqa: F401
from tests.vllm_server.policy import WIDE

pytestmark = pytest.mark.vllm


def test_the_weights_of_a_step_answer_for_the_next_ones(tiny_checkpoint, start_server, make_trainer):  # noqa: F811
    folder = tiny_checkpoint("qwen2_5_vl", **WIDE)
    server = start_server(folder)
    trainer = make_trainer(
        model=str(folder),
        rollout_engine="vllm_server",
        vllm_server=[server.url.removeprefix("http://")],
        async_rollouts=2,
        max_steps=4,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
    )
    seen = Snapshots().follow(trainer)
    trainer.train()
    late = [0, 1, 2, 1]
    assert [row["async/staleness"] for row in logged(trainer)] == late
    assert logged(trainer)[0]["parity/max"] < 1e-4
    for step, [each] in enumerate(seen.steps):
        mask, sampled = each.rollout.completion_mask, each.rollout.logprobs
        own = likelihoods(trainer, seen.policies[step - late[step]], each)
        assert (own - sampled)[mask].abs().max() < 1e-4
        if late[step]:
            now = likelihoods(trainer, seen.policies[step], each)
            assert (now - sampled)[mask].abs().max() > 1e-2, "the weights have moved"
            assert torch.allclose(each.old_logprobs[mask], now[mask], atol=1e-4)
