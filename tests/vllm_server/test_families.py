"""Each family's own: heads that are not tied, deepstack features, frames that stand apart. And what is refused."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import SamplingParams
from qwenvl.vllm_server.wire import WeightsRequest
from tests.vllm_server.policy import WIDE, Policy, local_and_server

pytestmark = pytest.mark.vllm

GREEDY = SamplingParams(24, temperature=0.0)


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
    client.weights(WeightsRequest(1, 0, True, tensors=weights))
    local_and_server(policy, client, together, GREEDY, version=1)
    likely = policy.change()
    with torch.no_grad():  # a banned token far above all others, where it is above them
        policy.model.lm_head.weight[policy.local.vision_ids[0]] *= 1000
    likely["lm_head.weight"] = policy.model.lm_head.weight.detach()
    client.weights(WeightsRequest(2, 0, True, tensors=likely))
    local = policy.local.draw(policy.model, together, 1, GREEDY, seed=0)
    answer = client.sample(policy.request(together, GREEDY, version=2))
    assert answer.ids == [
        row[kept].tolist() for row, kept in zip(local.completion_ids, local.completion_mask, strict=True)
    ]
    assert float(local.logprobs.min()) < -200  # so sure it was of the banned one


def test_another_model_is_refused_at_the_start(tiny_checkpoint, start_server):
    with pytest.raises(
        RuntimeError, match=r"error: this server does not sample model type 'qwen3_5_moe', .*: it takes"
    ):
        start_server(tiny_checkpoint("qwen3_5_moe"))
