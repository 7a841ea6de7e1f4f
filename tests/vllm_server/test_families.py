"""Each family's own: heads that are not tied, deepstack features, frames that stand apart. And what is refused."""

from __future__ import annotations

from string import ascii_letters

import pytest
import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.servers import Server, Servers
from qwenvl.rollout.vllm import VllmEngine
from qwenvl.vllm_server.wire import WeightsRequest
from tests.rollout.served import Scripted
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
    (rollout,) = engine.sample(policy.model, [prompts], 1, params, 0, script.select(range(3)))
    local = policy.local.draw(policy.model, prompts, 1, params, 0, script)
    assert rollout.completion_ids.equal(local.completion_ids) and rollout.finish_reasons == local.finish_reasons
    assert rollout.whole.position_ids.equal(local.whole.position_ids) and rollout.boots
    mask = local.completion_mask
    assert (mask[:, 1:] & ~mask[:, :-1]).sum() == 4, "each look is followed by a turn"
    assert mask.equal(rollout.completion_mask) and (local.logprobs - rollout.logprobs)[mask].abs().max() < 1e-4


def test_another_model_is_refused_at_the_start(tiny_checkpoint, start_server):
    with pytest.raises(
        RuntimeError, match=r"error: this server does not sample model type 'qwen3_5_moe', .*: it takes"
    ):
        start_server(tiny_checkpoint("qwen3_5_moe"))
