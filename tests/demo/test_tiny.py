"""The tiny checkpoints load as real ones do, and their parts agree with each other."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor, save_tiny


@pytest.mark.parametrize(("family", "tied"), [*((family, True) for family in FAMILIES), ("qwen2_5_vl", False)])
def test_a_tiny_checkpoint_loads_with_the_weights_it_was_saved_with(tmp_path, family, tied):
    folder = save_tiny(tmp_path / "checkpoint", family, seed=3, tie_word_embeddings=tied)
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    made = make_model(family, make_processor(family), seed=3, tie_word_embeddings=tied)
    assert type(model) is type(made)
    assert type(processor) is type(make_processor(family))
    for (name, weight), (other_name, other) in zip(made.state_dict().items(), model.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(weight, other), name
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
