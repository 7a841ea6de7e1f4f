"""The recipes: their settings parse, their records can be scored, and each takes two steps on a tiny model."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.data.dataset import load_dataset
from qwenvl.option import parse_row
from qwenvl.rewards import reward_columns
from qwenvl.runlog import read_metrics
from qwenvl.train.assemble import build_rewards
from qwenvl.train.train_grpo import main as train

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
# Right answers that score less than all of their rewards: nothing is said in the length window.
PARTLY = {"video_choice"}
TWO_TINY_STEPS = [
    *("--max_steps", "2", "--generation_max_length", "12", "--grpo_sample_size", "2", "--use_cpu", "True"),
    *("--gradient_accumulation_steps", "1", "--save_strategy", "no"),
]


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_records", ROOT / "scripts" / "recipes" / "make_records.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(recipe, folder):
    return parse_args(
        [str(recipe), "--model_name_or_path", "m", "--dataset_use", "d.json", "--output_dir", str(folder)]
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_records_of_a_recipe_are_scored_by_its_rewards(recipe, maker, tmp_path):
    args = settings_of(recipe, tmp_path)
    maker.make(recipe.stem, tmp_path / "records", train=6, heldout=2)
    (path,) = (tmp_path / "records").glob("train.json*")
    records = load_dataset(str(path), seed=0, training=True).records
    assert len(records) == 6
    rubric = build_rewards(args, None, None)
    assert [rubric.check_record(record) for record in records] == [None] * 6
    right = [f"<think>so</think>\n{record.solution}" for record in records]
    batch = rubric.score(right, reward_columns(records, 1, completion_ids=[[0] * 9] * 6))
    rubric.close()
    values = [value for component in batch.components for value in component if value is not None]
    assert set(values) == ({0.0, 1.0} if recipe.stem in PARTLY else {1.0})


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(each, marks=[] if each.stem in ("mixed", "grounding") else pytest.mark.slow) for each in RECIPES],
    ids=lambda recipe: recipe.stem,
)
def test_two_steps_on_the_tiny_model(recipe, maker, tiny_checkpoint, tmp_path):
    maker.make(recipe.stem, tmp_path / "records", train=4, heldout=1)
    (path,) = (tmp_path / "records").glob("train.json*")
    paths = {"--model_name_or_path": tiny_checkpoint(), "--dataset_use": path, "--output_dir": tmp_path / "run"}
    train([str(recipe), *TWO_TINY_STEPS, *(str(word) for pair in paths.items() for word in pair)])
    steps = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    scored = {name for row in steps for name in row if name.startswith("reward/")}
    names = [parse_row(text)[0] for text in settings_of(recipe, tmp_path).reward_funcs]
    assert {"reward/strict_format", "reward/format"} & scored
    assert scored <= {"reward/total", "reward/std", "reward/max", *(f"reward/{name}" for name in names)}


@pytest.mark.slow
def test_the_script_makes_what_it_needs_and_runs(tmp_path):
    environment = {**os.environ, "TINY": "1", "OUT": str(tmp_path), "PYTHON": sys.executable, "NPROC": "1"}
    command = ["bash", str(ROOT / "scripts" / "recipes" / "run.sh"), "mixed"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "loss" in row] == [1, 2]


def test_the_script_shows_its_command_and_makes_nothing(tmp_path):
    environment = {**os.environ, "DRY_RUN": "1", "OUT": str(tmp_path / "out"), "PYTHON": sys.executable}
    command = ["bash", str(ROOT / "scripts" / "recipes" / "run.sh"), "countdown", "--max_steps", "9"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert shown[shown.index("--dataset_use") + 1] == str(tmp_path / "out" / "records" / "train.jsonl")
    assert shown[-2:] == ["--max_steps", "9"] and not (tmp_path / "out").exists()
