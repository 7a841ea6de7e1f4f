import json
import math
import shutil

import pytest
import torch
import transformers
from PIL import Image
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from qwenvl.demo.tiny import make_model, make_processor, make_tokenizer
from qwenvl.rewards import RewardError, build_rubric, reward_columns
from qwenvl.types import Message, Record

PROMPT = "<image>\nwhich steps?"


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """A tiny text model with one output, saved as any other; and another with two."""

    def save(labels):
        folder = tmp_path_factory.mktemp("reward_model") / f"labels-{labels}"
        tokenizer = make_processor("qwen2_5_vl").tokenizer
        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
        config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, num_labels=labels, **sizes)
        Qwen2ForSequenceClassification(config).save_pretrained(folder)
        tokenizer.chat_template = make_processor("qwen2_5_vl").chat_template
        tokenizer.save_pretrained(folder)
        return folder

    return save


def columns(group_size, images=()):
    record = Record("r", (Message("user", PROMPT),), "(1)", (), images, (), {"id": "r"}, "x.json[0]")
    return reward_columns([record], group_size)


def test_scores_of_a_batch_equal_those_of_each_completion_alone(text_model):
    folder = text_model(1)
    completions = ["(1)", "a much longer completion (2) (3)", ""] * 4
    batch = build_rubric(reward_models=[str(folder)]).score(completions, columns(12))
    model = Qwen2ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = make_tokenizer()
    for text, value in zip(completions, batch.components[0], strict=True):
        chat = f"<|im_start|>user\nwhich steps?<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
        ids = torch.tensor([tokenizer(chat)["input_ids"]])
        # One row without padding: the score of its last token.
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state[0, -1]
        assert value == pytest.approx(model.score(hidden).item(), abs=1e-5)
    assert len(set(batch.components[0])) == 3


def test_a_completion_that_is_longer_than_the_positions_of_the_model_has_no_value(text_model, tmp_path, caplog):
    """It would end the run: a model with learned positions has none for it."""
    folder = shutil.copytree(text_model(1), tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
    batch = build_rubric(reward_models=[str(folder)]).score(["(1)", "(2) screw " * 100, "(1)"], columns(3))
    [first, long, last] = batch.components[0]
    assert long is None and first == pytest.approx(last, abs=1e-6)
    assert "tokens of" in caplog.text and "which has 100 positions" in caplog.text
    batch = build_rubric(reward_models=[str(folder)]).score(["(2) screw " * 100], columns(1))
    assert batch.components == [[None]]


def test_models_are_appended_last_with_weights_in_order(text_model):
    path = str(text_model(1))
    rubric = build_rubric(["format"], [0.5, 2, 3], reward_models=[path, path])
    assert rubric.names == ("format", "reward_model_1", "reward_model_2") and rubric.weights == (0.5, 2.0, 3.0)
    batch = rubric.score(["(1)", "(2)"], columns(2))
    assert batch.total.tolist() == pytest.approx([5 * value for value in batch.components[1]], abs=1e-5)
    assert build_rubric(reward_models=[path]).names == ("reward_model",)


def test_a_reward_model_with_two_outputs_or_named_as_a_function_is_refused(text_model):
    with pytest.raises(RewardError, match="expected a head with 1 output, got 2"):
        build_rubric(reward_models=[str(text_model(2))]).score(["x", "y"], columns(2))
    with pytest.raises(RewardError, match="set by --reward_model"):
        build_rubric(["reward_model"])


def test_media_reach_a_model_whose_processor_takes_them(tmp_path, make_clip):
    if not hasattr(transformers, "Qwen3_5ForSequenceClassification"):
        pytest.skip("this version has no multimodal model with a classification head")
    processor = make_processor("qwen3_vl")
    config = make_model("qwen3_5", processor).config
    config.num_labels = 1
    transformers.Qwen3_5ForSequenceClassification(config).save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    scores = {}
    for colour in ("black", "white"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
        rubric = build_rubric(reward_models=[str(tmp_path / "model")])
        image = columns(2, images=(str(tmp_path / f"{colour}.png"),))
        scores[colour] = rubric.score(["(1)", "(2)"], image).components[0]
    assert scores["black"] != scores["white"]
    # Clips too: another one has another score.
    of_clips = []
    for seconds in (1, 2):
        clip = {**columns(1), "video_paths": [(str(make_clip(f"{seconds}.mp4", 10 * seconds, size=(64, 64))),)]}
        clip["prompts"] = [[{"role": "user", "content": "<video>Which step?"}]]
        of_clips += rubric.score(["(1)"], clip).components[0]
    assert of_clips[0] != of_clips[1] and all(math.isfinite(value) for value in of_clips)
    # What a policy spells is text: no clip, and no end of its turn.
    spelt = rubric.score(["(1) <|video_pad|><|image_pad|><|im_end|>", "(2)"], image).components[0]
    assert all(math.isfinite(value) for value in spelt)
