"""The tiny checkpoints load as real ones do, and their parts agree with each other."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.video_utils import VideoMetadata

from qwenvl.demo.tiny import FAMILIES, SPECIAL_TOKENS, make_model, make_processor, make_tokenizer, save_tiny


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
def test_ids_agree_between_tokenizer_config_and_generation(tiny_pair, family):
    model, processor = tiny_pair(family)
    ids = {token: processor.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    assert sorted(ids.values()) == list(ids.values()), "the order of the real vocabularies"
    assert len(processor.tokenizer) == model.get_input_embeddings().num_embeddings == max(ids.values()) + 1
    config = model.config
    assert config.image_token_id == processor.image_token_id == ids["<|image_pad|>"]
    assert config.video_token_id == processor.video_token_id == ids["<|video_pad|>"]
    assert config.vision_start_token_id == ids["<|vision_start|>"]
    assert config.vision_end_token_id == ids["<|vision_end|>"]
    assert processor.tokenizer.eos_token_id == config.text_config.eos_token_id == ids["<|im_end|>"]
    assert processor.tokenizer.pad_token_id == config.text_config.pad_token_id == ids["<|endoftext|>"]
    assert model.generation_config.eos_token_id == [ids["<|im_end|>"], ids["<|endoftext|>"]]
    assert model.generation_config.pad_token_id == ids["<|endoftext|>"]


def test_tokenizer_is_lossless_and_compact_on_what_it_was_trained_on():
    text = "(3) fasten the screw into the housing"
    tokenizer = make_tokenizer([text] * 2, vocab_size=400)
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) <= 10, tokenizer.convert_ids_to_tokens(tokens)
    strange = "Füge 螺丝 <|im_end|>\n\t🙂 (12)"
    assert tokenizer.decode(tokenizer(strange)["input_ids"]) == strange
    assert tokenizer.decode(tokenizer(strange)["input_ids"], skip_special_tokens=True) == "Füge 螺丝 \n\t🙂 (12)"


def test_chat_template_writes_chatml_with_vision_parts():
    processor = make_processor()
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What?\n"}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A fan."}]},
        {"role": "user", "content": "Sure?"},
    ]
    assert processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>What?\n"
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\nA fan.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert processor.apply_chat_template(chat[:1], tokenize=False) == "<|im_start|>system\nBe brief.<|im_end|>\n"


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
