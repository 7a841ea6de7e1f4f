"""The tiny checkpoints load as real ones do, and their parts agree with each other."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.video_utils import VideoMetadata

from qwenvl.demo.tiny import FAMILIES, make_model, make_processor, save_tiny


@pytest.mark.parametrize(("family", "tied"), [*((family, True) for family in FAMILIES), ("qwen2_5_vl", False)])
def test_what_is_saved_is_what_is_loaded(tmp_path, family, tied):
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


@pytest.mark.parametrize("family", FAMILIES)
def test_model_sees_the_video(tiny_pair, family):
    """Two clips give two distributions, and the gradient reaches the patch embedding."""
    model, processor = tiny_pair(family)
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Which step?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    metadata = VideoMetadata(total_num_frames=8, fps=2.0, frames_indices=[0, 2, 4, 6], duration=4.0)
    logits = []
    for _ in range(2):
        clip = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
        inputs = processor(
            text=[text], videos=[clip], video_metadata=[metadata], do_sample_frames=False, return_tensors="pt"
        )
        logits.append(model(**inputs).logits[0, -1])
    assert (logits[0] - logits[1]).abs().max() > 1e-4
    logits[1].logsumexp(0).backward()
    assert model.model.visual.patch_embed.proj.weight.grad.abs().max() > 0
