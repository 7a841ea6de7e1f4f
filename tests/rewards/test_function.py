from functools import partial
from typing import Annotated

import pytest

from qwenvl.config.flags import SUCCESSORS
from qwenvl.option import parse_row
from qwenvl.rewards import Argument, RewardError, RewardSettings, build_rubric
from qwenvl.rewards.function import arguments_of
from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.table import TABLE

PLUGIN = """
from qwenvl.rewards import reward


def brevity(completions, *, limit=3, **columns):
    return [float(len(text) <= limit) for text in completions]


@reward("marked")
def scaled(completions, *, scale=2, **columns):
    return [scale * len(text) for text in completions]


class Made:
    def __init__(self, word="a", *, weight=1.0):
        self.word, self.weight = word, weight

    def __call__(self, completions, **columns):
        return [self.weight * (self.word in text) for text in completions]


async def later(completions, *, value=1.0, **columns):
    return [value] * len(completions)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


def test_arguments_of_functions_and_classes_of_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    named = [f"{path}:brevity(limit=1)", f"{path}:Made(word='b', weight=0.5)", f"{path}:later(value=4)"]
    rubric = build_rubric(named)
    assert rubric.names == ("brevity", "Made", "later")
    assert rubric.score(["a", "abc"], {}).components == [[1.0, 0.0], [0.0, 0.5], [4.0, 4.0]]
    rubric.close()
    assert build_rubric("marked(scale=10)", external_plugins=[str(path)]).score(["ab"], {}).totals() == [20.0]
    for wrong, message in (
        ("brevity(limt=1)", "has no argument 'limt': did you mean limit"),
        ("Made(words='b')", "has no argument 'words': did you mean word"),
        ("later(zzz=1)", "has no argument 'zzz': it has value"),
        ("compute_score(x=1)", "has no argument 'x': it has none"),
    ):
        with pytest.raises(RewardError, match=message):
            build_rubric([f"{path}:{wrong}"])


def test_an_argument_that_is_not_given_is_the_column_of_its_name():
    def brevity(completions, *, limit=3, **columns):
        assert "limit" not in columns
        return [float(limit if isinstance(limit, int) else sum(limit))]

    columns = {"limit": [7]}
    assert build_rubric([brevity]).score(["a"], columns).totals() == [7.0]
    assert build_rubric([partial(brevity, limit=5)]).score(["a"], columns).totals() == [5.0]
    assert build_rubric([partial(brevity, limit=5)]).names == ("brevity",)


def test_a_column_never_replaces_a_declared_argument():
    def declared(completions, *, limit: Annotated[int, Argument("x", least=1)] = 3, **columns):
        assert "limit" not in columns
        return [float(limit)]

    assert build_rubric([declared]).score(["a"], {"limit": [7]}).totals() == [3.0]
    ids = {"completion_ids": [[0] * 5], "max_len": [99], "cache": [99]}
    assert build_rubric(["soft_overlong(max_len=10, cache=10)"]).score(["a"], ids).totals() == [-0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosine(mx_len=1)", "reward 'cosine' has no argument 'mx_len': did you mean max_len?"),
        ("count(x=1)", "reward 'count' has no argument 'x': it has none"),
        ("cosine(max_len=0)", "reward 'cosine': max_len must be at least 1, got 0"),
        ("cosine(max_len='9')", "reward 'cosine': max_len must be an integer or None, got '9'"),
        ("length_window(bonus=0)", "reward 'length_window': bonus must be above 0, got 0"),
        ("repetition(max_penalty=1)", "reward 'repetition': max_penalty must be at most 0, got 1"),
        ("format(response_format='answers_only')", "got 'answers_only'; did you mean answer_only"),
        ("temporal_iou(boundary=1)", "reward 'temporal_iou': boundary must be True or False, got 1"),
        ("box_iou(units='mm')", "reward 'box_iou': units must be one of same, thousandths, got 'mm'"),
        ("numeric(tolerance=1e999)", "reward 'numeric': tolerance must be a finite number, got inf"),
        ("cosine(correctness_func='acuracy')", "no reward function is named 'acuracy': did you mean accuracy"),
        *(
            (f"cosine({wrong})", "expected name")
            for wrong in ("9", "max_len=9, max_len=9", "**{}", "max_len=f()", "a b")
        ),
    ],
)
def test_wrong_arguments_are_refused(text, message):
    with pytest.raises(RewardError) as caught:
        build_rubric([text])
    assert message in str(caught.value)


def test_settings_of_the_run_are_defaults_that_arguments_override():
    settings = vars(RewardSettings(response_format="answer_only", generation_max_length=10))
    assert resolve("format", settings).arguments == {"response_format": "answer_only"}
    assert resolve("cosine", settings).arguments["max_len"] == 10
    assert resolve("cosine(max_len=20)", settings).arguments["max_len"] == 20
    assert resolve("cosine(max_len=None)", settings).arguments["max_len"] == 10


def test_flags_that_became_arguments_name_arguments_that_exist():
    for replacement in SUCCESSORS.values():
        if replacement.startswith("--reward_funcs "):
            name, given = parse_row(replacement.split('"')[1])
            assert given.keys() <= arguments_of(TABLE[name].made_of).keys(), replacement
