"""``--activation_offload``: what it asks of the Trainer, where it is refused, and that numbers stay the same."""

import pytest
import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.sharing import shared_prefix

offers = pytest.mark.skipif(
    not hasattr(GRPOConfig, "activation_checkpointing_kwargs"), reason="this version of transformers has none"
)


def test_activation_offload_without_effect_is_refused(tmp_path, make_trainer):
    with pytest.raises(ValueError, match="--activation_offload has no effect without --gradient_checkpointing"):
        GRPOConfig(str(tmp_path), use_cpu=True, activation_offload=True)
    if hasattr(GRPOConfig, "activation_checkpointing_kwargs"):
        with pytest.raises(ValueError, match="--activation_offload has no effect on a CPU"):
            make_trainer(activation_offload=True, gradient_checkpointing=True)


@offers
def test_offloading_changes_no_gradient_and_moves_the_input_of_each_layer(monkeypatch):
    model = make_model("qwen2_5_vl", make_processor(), num_layers=3).train()
    prompts, ids = PromptInputs.of_text(torch.randint(0, 250, (1, 30))), torch.randint(0, 250, (2, 7))
    moved = []

    class Counted(torch.autograd.graph.saved_tensors_hooks):
        """Stands for ``save_on_cpu``, which has nothing to move on a CPU."""

        def __init__(self, **how):
            super().__init__(lambda tensor: moved.append(tuple(tensor.shape)) or tensor.clone(), lambda kept: kept)

    monkeypatch.setattr("transformers.modeling_utils.save_on_cpu", Counted)

    def gradients(offload: bool) -> list[torch.Tensor]:
        model.zero_grad()
        model.activation_checkpointing_enable(offload=offload)
        everywhere = torch.ones_like(ids, dtype=torch.bool)
        logprobs = shared_prefix.completion_logprobs(
            model, prompts, ids, everywhere, temperature=1.0, logit_chunk_tokens=64
        )
        logprobs.square().sum().backward()
        return [each.grad.clone() for each in model.parameters() if each.grad is not None]

    plain, offloaded = gradients(False), gradients(True)
    assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True))
    assert moved.count((1, 30 + 2 * 6, 64)) >= 3
