"""Weights in 4 bits: where they are refused, and, where bitsandbytes is installed, what becomes of a model."""

import pytest
import torch

from qwenvl.model.loading import BYTES, SKIPPED, four_bit_settings, load_model, lora_config, require_four_bit
from qwenvl.model.options import LoraOptions, TuneOptions


def test_a_cpu_is_refused_and_the_package_is_named(monkeypatch):
    with pytest.raises(ValueError, match="--load_in_4bit needs a CUDA device"):
        require_four_bit("cpu")
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(ImportError, match=r"qwenvl\[qlora\]"):
        require_four_bit("cuda:0")


def test_layers_of_the_language_model_are_packed_and_adapters_learn(tiny_checkpoint):
    pytest.importorskip("bitsandbytes", reason="not among the packages of the tests: it is for GPUs")
    from peft import get_peft_model

    settings = four_bit_settings(torch.float32)
    assert settings.llm_int8_skip_modules == SKIPPED
    model = load_model(tiny_checkpoint(hidden_size=128), dtype=torch.float32, quantization=settings)
    packed = {name for name, each in model.named_parameters() if each.dtype == torch.uint8}
    assert packed and all("language_model.layers." in name for name in packed)
    first = model.model.language_model.layers[0].mlp.up_proj.weight
    assert first.numel() == 128 * 256 / 2 and 0.5 < BYTES < 0.52
    adapted = get_peft_model(model, lora_config(model, TuneOptions(tune_mm_mlp=False), LoraOptions(True, 4, 8)))
    ids = torch.arange(20, 40)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    learned = [name for name, each in adapted.named_parameters() if each.grad is not None and each.grad.abs().max() > 0]
    assert learned and all(".lora_B" in name for name in learned)  # the other half has gradients of 0 at first
