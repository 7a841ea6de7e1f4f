"""The recipes: their settings parse, and a right answer to a record of the kind gets all of their rewards."""

from pathlib import Path

import pytest

from qwenvl.config.command_line import parse_args
from qwenvl.data.dataset import load_dataset
from qwenvl.rewards import reward_columns
from qwenvl.step.assemble import build_rewards

RECIPES = Path(__file__).resolve().parents[1] / "scripts" / "recipes"
RECORDS = {  # the answer of a record, and the fields that its rewards read
    "clevr_count": ("3", {}),
    "countdown": ("(3 + 7) * 2", {"nums": [2, 3, 7], "target": 20}),
    "grounding": ("2 to 5", {"duration": 8}),
    "mixed": ("3 + 7", {"nums": [3, 7], "target": 10, "reward": ["strict_format", "countdown"]}),
    "procedure": ("(2) insert the fan (3) fasten the screw", {}),
    "timeline": ("0.0-3.5 (2) insert the fan\n3.5-7.0 (3) fasten the screw", {}),
    "video_choice": ("B", {}),
}


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_records_of_a_recipe_are_scored_by_its_rewards(recipe, write_rows, make_row, tmp_path):
    named = ["--model_name_or_path", "m", "--dataset_use", "d.json", "--output_dir", str(tmp_path)]
    args, (answer, fields) = parse_args([str(recipe), *named]), RECORDS[recipe.stem]
    path = write_rows([make_row(solution=f"<answer>{answer}</answer>", **fields)])
    records = load_dataset(str(path), seed=0, training=True).records
    rubric = build_rewards(args, None, None)
    assert rubric.check_record(records[0]) is None
    right = [f"<think>so</think>\n{records[0].solution}"]
    scored = rubric.score(right, reward_columns(records, 1, completion_ids=[[0] * 9]))
    rubric.close()
    values = {name: each[0] for name, each in zip(scored.names, scored.components, strict=True) if each[0] is not None}
    # Too short for the bonus of the length window.
    assert values == {name: 0.0 if name == "length_window" else 1.0 for name in values} and len(values) > 1
