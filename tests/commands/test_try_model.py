"""The whole command on tiny models: what it says of what was seen and answered is what training has."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from qwenvl.cli import main as qwenvl
from qwenvl.commands.try_model import as_text
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.types import Turn
from tests.evaluate.made import LETTERS
from tests.made_clips import write_clip
from tests.run_log.runs import LOOKED, REFUSED

QUESTION = "Which steps? (1) pick (2) insert"


@pytest.fixture(scope="module")
def trained(tiny_checkpoint, tmp_path_factory):
    """A folder with a run of one step in ``run``, with settings of its own, on a clip of 60 frames; and its trainer."""
    folder = tmp_path_factory.mktemp("trained")
    write_clip(folder / "17.mp4", 60, size=(320, 240))
    turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": "<answer>(1) pick</answer>"}]
    (folder / "data.json").write_text(json.dumps([{"id": 17, "video": "17.mp4", "conversations": turns}]))
    (folder / "template.txt").write_text("Look well. {prompt}")
    config = GRPOConfig(
        str(folder / "run"),
        dataset_use=str(folder / "data.json"),
        eval_dataset_use=str(folder / "data.json"),
        max_steps=1,
        learning_rate=1e-3,
        base_interval=0.5,
        video_max_frame_pixels=4 * 28 * 28,
        system="Be brief.",
        prompt_template=str(folder / "template.txt"),
        generation_max_length=7,
        generation_temperature=1.3,
        reward_funcs=["format", LETTERS],
        reward_weights=[0.25, 0.75],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = GRPOTrainer(str(tiny_checkpoint(initializer_range=0.1)), config)
    trainer.train()
    trainer.save_model()
    (folder / "template.txt").unlink()  # its text is saved with the model
    return folder, trainer


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """The trainer of that run. The working folder is a copy of its folder."""
    folder, trainer = trained
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return trainer


def told(*argv: str, capsys) -> dict:
    capsys.readouterr()
    assert qwenvl(["try", *argv, "--json", "--use_cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def test_try_sees_and_answers_as_the_evaluation_of_the_run(run, capsys, never_at_full_size):
    answers = told("run", "17.mp4", QUESTION, "--solution", "<answer>(1) pick</answer>", capsys=capsys)
    batch = run.data_collator([run.eval_dataset[0]])["prompts"]
    [(rollout, rewards)] = run.answer([batch], 1, run.step_context())
    [answer] = answers["answers"]
    assert answer["text"] == rollout.texts[0] and answer["finish_reason"] == rollout.finish_reasons[0]
    assert answer["rewards"] == pytest.approx({name: values[0] for name, values in rewards.columns().items()})
    assert set(answer["rewards"]) == {"format", "letters", "total"}
    [seen] = answers["media"]
    assert seen["times"] == list(batch.frames[0][0].times) and len(seen["times"]) == 8
    assert seen["size"] == [n * 14 for n in batch.video_grid_thw[0, 1:].tolist()]
    assert answers["prompt_tokens"] == [batch.input_ids.shape[1], seen["tokens"]]
    assert "Be brief." in answers["prompt"] and "Look well. <|vision_start|><video: " in answers["prompt"]
    assert answers["settings"] == "of the run run" and answers["sampling"] == "greedy"


def test_several_answers_are_sampled_as_in_training(run, capsys):
    answers = told("run", "17.mp4", QUESTION, "-n4", "--generation_max_length", "3", capsys=capsys)
    assert answers["sampling"] == "sampled at temperature 1.3" and len(answers["answers"]) == 4
    assert len({answer["text"] for answer in answers["answers"]}) > 1
    assert all(answer["tokens"] <= 3 and not answer["rewards"] for answer in answers["answers"])


def test_flags_stand_above_the_settings_of_the_run_and_texts_may_be_files(run, capsys):
    Path("question.txt").write_text(f"{QUESTION}\n(3) fasten\n")
    Path("solution.txt").write_text("<answer>(1) pick</answer>\n")
    texts = ["question.txt", "--solution", "solution.txt"]
    answers = told("run", "17.mp4", *texts, "--video_fps", "0.5", "--system", "Speak.", capsys=capsys)
    assert len(answers["media"][0]["times"]) == 4 and "Speak." in answers["prompt"]
    assert "Be brief." not in answers["prompt"] and "(3) fasten" in answers["prompt"]
    assert answers["solution"] == "<answer>(1) pick</answer>"


def test_images_and_several_clips_stand_where_the_tags_are(run, capsys):
    Image.new("RGB", (90, 60), (200, 30, 30)).save("part.dat", "PNG")  # what a file is its bytes say
    answers = told("run", "part.dat", "17.mp4", "17.mp4", "What <video> or <image> is in <video>?", capsys=capsys)
    assert [Path(seen["path"]).name for seen in answers["media"]] == ["17.mp4", "17.mp4", "part.dat"]
    assert re.search(r"What .*<video:.* or .*<image:.* is in .*<video:", answers["prompt"])
    plain = told("run", "part.dat", "17.mp4", "Which?", capsys=capsys)
    assert re.search(r"<image: .*>\S*\n\S*<video: .*>\S*\nWhich\?", plain["prompt"])
    text = told("run", "1 + 1 =", capsys=capsys)
    assert text["media"] == [] and "1 + 1 =" in text["prompt"]


def test_try_takes_an_adapter_and_a_model_without_a_run(run, tiny_checkpoint, tmp_path, capsys):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    base = str(tiny_checkpoint(initializer_range=0.1))
    asked = ("17.mp4", f"<video>\n{QUESTION}", "--generation_max_length", "5")
    plain = told(base, *asked, capsys=capsys)
    assert plain["settings"] == "the defaults of training" and plain["base"] is None
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForImageTextToText.from_pretrained(base), lora).save_pretrained(tmp_path / "adapter")
    frames = FrameOptions(video_min_frames=2, video_max_frames=2)
    PromptSettings(frames, PromptOptions(), base, "Speak.", None).save("adapter")
    adapted = told("adapter", *asked, capsys=capsys)
    assert adapted["base"] == base and adapted["answers"] != plain["answers"]
    assert len(adapted["media"][0]["times"]) == 2 and "Speak." in adapted["prompt"]
    assert adapted["settings"] == "saved beside the weights"


def test_tools_are_in_the_prompt_and_turns_in_the_answer(run, capsys):
    answers = told("run", "17.mp4", QUESTION, "--tools", "look", capsys=capsys)
    assert "look(start, end)" in answers["prompt"] and answers["answers"][0]["turns"][0]["calls"] == []


def test_names_and_texts_that_are_shown_steer_no_terminal(run, capsys):
    Path("17.mp4").rename("\x1b[2J.mp4")
    capsys.readouterr()
    assert qwenvl(["try", "run", "\x1b[2J.mp4", f"{QUESTION}\n\tnow\x07", "--use_cpu"]) == 0
    shown = capsys.readouterr().out
    assert "\ufffd[2J.mp4: 8 frames" in shown and "\n  \tnow\ufffd" in shown
    assert "\x1b" not in shown and "\x07" not in shown


def test_the_answer_of_a_tool_stands_behind_its_call():
    turns = [asdict(turn) for turn in (*LOOKED[:1], Turn("And?", (REFUSED,)), *LOOKED[1:])]
    answers = {"model": "m", "base": None, "settings": "s", "media": [], "prompt": "p", "prompt_tokens": (9, 0)}
    answer = {"text": "", "tokens": 40, "finish_reason": "stop", "rewards": {}, "turns": turns}
    lines = list(as_text({**answers, "solution": None, "sampling": "greedy", "answers": [answer]}))
    assert lines[lines.index("\nanswer (greedy): 40 tokens") + 1 :] == [
        *(f"  {line}" for line in LOOKED[0].text.splitlines()),
        "  -> 12.0 to 15.0 seconds: 4 frames at 12.00 13.00 14.00 15.00 s, 88 tokens",
        *("  And?", "  -> refused: look lacks end", "  <answer>(2) insert the fan</answer>"),
    ]
