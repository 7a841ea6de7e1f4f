import pytest

from qwenvl.rewards import RewardError, RewardSettings, build_rubric


def test_the_default_rubric_by_hand():
    batch = build_rubric().score(["<think>a</think><answer>(1)</answer>", "(1)"], {"solution": ["(1)(2)"] * 2})
    assert batch.names == ("format", "accuracy")
    assert batch.total.tolist() == [pytest.approx(0.3 * 1 + 0.7 * 0.5), 0.0]
    settings = RewardSettings(response_format="answer_only")
    answer_only = build_rubric(settings=settings, format_reward_weight=1.0, accuracy_reward_weight=0.0)
    assert answer_only.score(["<answer>(3)</answer>"], {"solution": ["(1)"]}).total.tolist() == [1.0]


def test_names_and_functions_with_weights():
    def short(completions):
        return [float(len(text) < 40) for text in completions]

    rubric = build_rubric(["strict_format", short], [0.5, 2])
    assert rubric.names == ("strict_format", "short") and rubric.weights == (0.5, 2.0)
    assert rubric.score(["<think>a</think><answer>b</answer>"], {}).total.tolist() == [2.5]
    assert build_rubric(["format"]).weights == (1.0,)
    assert build_rubric("format").names == ("format",) and build_rubric(short).names == ("short",)
    assert build_rubric(reward_weights=[0.1, 0.9]).weights == (0.1, 0.9)


def test_refusals():
    with pytest.raises(RewardError, match="did you mean accuracy"):
        build_rubric(["acuracy"])
    for words in ("format accuracy", "format,accuracy", "format, accuracy"):
        with pytest.raises(RewardError, match=r"several names: a settings file lists them, \[format, accuracy"):
            build_rubric([words])
    with pytest.raises(RewardError, match="--format_reward_weight has no effect with --reward_weights"):
        build_rubric(["format"], [1.0], format_reward_weight=0.3)
    with pytest.raises(RewardError, match="--accuracy_reward_weight has no effect with --reward_funcs"):
        build_rubric(["format"], accuracy_reward_weight=0.3)


PLUGIN = """
from qwenvl.rewards import reward


@reward("short")
def shortness(completions, **columns):
    return [1 / len(text) for text in completions]


@reward("polite")
class Polite:
    def __call__(self, completions, word, **columns):
        return [float(w in text) for text, w in zip(completions, word, strict=True)]

    def check(self, solution, fields):
        return None if "word" in fields else "the field 'word' is missing"


def unmarked(completions, **columns):
    return [7.0] * len(completions)


not_a_function = 3
"""

# As a user of TRL would write them for chat prompts, and a user of ms-swift (without the lines that import swift).
OTHERS = """
import re


def format_reward(completions, **kwargs):
    pattern = r"^<think>.*?</think>\\s*<answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL) else 0.0 for content in contents]


def token_budget(prompts, completions, completion_ids, solution, trainer_state, **kwargs):
    assert prompts[0][-1]["role"] == "user"
    return [float(len(ids) < 3) for ids in completion_ids]


def by_position(texts, **kwargs):
    return [float(text.startswith("<")) for text in texts]


class CountdownORM:
    def __call__(self, completions, target, nums, **kwargs):
        return [float(str(t) in c) for c, t in zip(completions, target)]
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return str(path)


def test_marked_functions_of_a_plugin_file_are_found_by_name(plugin):
    rubric = build_rubric(["format", "short", "polite"], external_plugins=[plugin])
    batch = rubric.score(["please"], {"word": ["please"]})
    assert rubric.names == ("format", "short", "polite")
    assert batch.components == [[0.0], [pytest.approx(1 / 6)], [1.0]]
    assert "'word' is missing" in rubric.check_solution("x")


def test_files_written_for_other_libraries_run_unchanged(tmp_path):
    path = tmp_path / "others.py"
    path.write_text(OTHERS)
    names = ("format_reward", "token_budget", "by_position", "CountdownORM")
    rubric = build_rubric([f"{path}:{name}" for name in names])
    columns = {
        "prompts": [[{"role": "user", "content": "?"}]] * 2,
        "completion_ids": [[1, 2], [1, 2, 3]],
        "solution": ["", ""],
        "target": [24, 24],
        "nums": [[4, 6], [4, 6]],
    }
    batch = rubric.score(["<think>4</think>\n<answer>24</answer>", "no"], columns, trainer_state=object())
    assert batch.components == [[1.0, 0.0]] * 4


def test_refusals_of_users_functions(plugin, tmp_path):
    bare = tmp_path / "bare.py"
    bare.write_text("def f(completions):\n    return []\n")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit()\n")
    clash = tmp_path / "clash.py"
    clash.write_text(PLUGIN.replace('"short"', '"accuracy"'))
    twin = tmp_path / "twin.py"
    twin.write_text(PLUGIN)
    needy = tmp_path / "needy.py"
    needy.write_text("class Needy:\n    def __init__(self, x):\n        pass\n")
    for funcs, plugins, message in (
        (["short"], [str(bare)], r'no function is marked with @reward\("name"\)'),
        (["short"], [str(broken)], "ZeroDivisionError while it was loaded"),
        (["short"], [str(script)], "script.py: SystemExit while it was loaded"),
        (["short"], ["missing.py"], "missing.py: no such Python file"),
        (["short"], [plugin, str(twin)], "there is another reward 'short': rename this one"),
        (["short"], [str(clash)], "there is another reward 'accuracy'"),
        (["shart"], [plugin], "did you mean short"),
        ([f"{plugin}:nothing"], [], "has no 'nothing': it has .*shortness"),
        ([f"{plugin}:shortnes"], [], "has no 'shortnes': did you mean shortness"),
        ([f"{plugin}:not_a_function"], [], "expected a function"),
        ([f"{needy}:Needy"], [], "cannot be made without arguments"),
        (["no.such.module:f"], [], "cannot import no.such.module"),
    ):
        with pytest.raises(RewardError, match=message):
            build_rubric(funcs, external_plugins=plugins)
