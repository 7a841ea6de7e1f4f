import pytest

from qwenvl.commands.rewards import main
from qwenvl.rewards.table import TABLE


def test_list_shows_every_function_with_its_range(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == [*TABLE, "--reward_model", "--temporal_contrast"]
    assert next(line for line in lines if line.startswith("cosine ")).split()[1:4] == ["-0.5", "to", "1"]
    assert "    n_grams=3: Words in a row that are compared (words, at least 1)." in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["accuracy", "--completion", "<answer>(1)</answer>", "--solution", "(1)(2)"], "accuracy: 0.5"),
        (["countdown", "--completion", "<answer>1+2</answer>", "--field", "nums=[1,2]", "--field", "target=3"], ": 1"),
        (["soft_overlong(max_len=10)", "--completion", "x", "--tokens", "9"], ": -0.5"),
        (["format(response_format='answer_only')", "--completion", "<answer>x</answer>"], "format: 1"),
        (
            [
                *("temporal_iou(boundary=True)", "--completion", "<answer>2 to 8</answer>", "--solution", "4 to 10"),
                *("--field", "duration=20"),
            ],
            "temporal_iou: 0.405",
        ),
    ],
)
def test_try_prints_the_score_of_a_completion(capsys, arguments, shown):
    assert main(["try", *arguments]) == 0
    assert shown in capsys.readouterr().out


def test_try_says_where_a_reward_has_no_value(capsys):
    """The formula cannot be verified in its time."""
    flags = ["--completion", "<answer>9^{9^{9^{9}}}</answer>", "--solution", "x+1"]
    assert main(["try", "cosine(correctness_func='math_accuracy')", *flags]) == 0
    assert "cosine: no value" in capsys.readouterr().out
