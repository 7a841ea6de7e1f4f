"""From what a user names or writes to a rubric: names, functions of files, arguments, columns, other libraries."""

import pickle
from functools import partial
from types import SimpleNamespace
from typing import Annotated

import pytest

from qwenvl.config.other_names import HERE_FOR
from qwenvl.option import parse_row
from qwenvl.rewards import Argument, RewardError, build_rubric
from qwenvl.rewards.function import Completion, arguments_of, reward_columns
from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.table import TABLE
from qwenvl.types import Message, Record


def test_the_default_rubric_weighs_format_and_accuracy():
    batch = build_rubric().score(["<think>a</think><answer>(1)</answer>", "(1)"], {"solution": ["(1)(2)"] * 2})
    assert batch.names == ("format", "accuracy")
    assert batch.total.tolist() == [pytest.approx(0.3 * 1 + 0.7 * 0.5), 0.0]
    settings = SimpleNamespace(response_format="answer_only")
    answer_only = build_rubric(settings=settings, format_reward_weight=1.0, accuracy_reward_weight=0.0)
    assert answer_only.score(["<answer>(3)</answer>"], {"solution": ["(1)"]}).total.tolist() == [1.0]


def test_names_and_functions_are_mixed_with_weights():
    def short(completions):
        return [float(len(text) < 40) for text in completions]

    rubric = build_rubric(["strict_format", short], [0.5, 2])
    assert rubric.names == ("strict_format", "short") and rubric.weights == (0.5, 2.0)
    assert rubric.score(["<think>a</think><answer>b</answer>"], {}).total.tolist() == [2.5]
    assert build_rubric(["format"]).weights == (1.0,)
    assert build_rubric("format").names == ("format",) and build_rubric(short).names == ("short",)
    assert build_rubric(reward_weights=[0.1, 0.9]).weights == (0.1, 0.9)


@pytest.mark.parametrize("given", [3, {"format": 1.0}, {"format"}, [None], [3], [["format"]], "", []], ids=str)
def test_values_that_are_neither_names_nor_functions_are_refused_in_a_sentence(given):
    with pytest.raises(RewardError) as refused:
        build_rubric(given)
    assert str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("weights", [0.5, ["a"], [None], "a"], ids=str)
def test_weights_that_are_no_numbers_are_refused_in_a_sentence(weights):
    with pytest.raises(RewardError, match="reward_weights: expected a list of numbers"):
        build_rubric("format", weights)


def test_misspelt_or_joined_names_and_weights_without_effect_are_refused():
    with pytest.raises(RewardError, match="did you mean accuracy"):
        build_rubric(["acuracy"])
    for words in ("format accuracy", "format,accuracy", "format, accuracy"):
        with pytest.raises(RewardError, match=r"several names: .*\[format, accuracy"):
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
    """The path of a file with marked and unmarked reward functions."""
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
    with pytest.raises(RewardError, match="`texts`, may mean them or the column of that name"):
        build_rubric([f"{path}:by_position"]).score(["<a>"], {"texts": ["a field of the record"]})


def test_functions_that_read_columns_alone_have_them_by_name():
    def long(completion_ids, **kwargs):  # the first example of TRL
        return [float(len(ids)) for ids in completion_ids]

    def asked(prompts, solution):
        return [float(len(prompt) + len(truth)) for prompt, truth in zip(prompts, solution, strict=True)]

    def at_station(station, **columns):
        return [float(len(text) * place) for text, place in zip(columns["completions"], station, strict=True)]

    columns = {"completion_ids": [[1, 2]], "prompts": [["a"]], "solution": ["xy"], "station": [3]}
    rubric = build_rubric([long, asked, at_station])
    assert rubric.score(["four"], columns).components == [[2.0], [3.0], [12.0]]
    del columns["station"]
    with pytest.raises(RewardError, match="\"at_station\" needs the column 'station'"):
        rubric.score(["four"], columns)


def test_files_without_a_usable_reward_are_refused_with_the_reason(plugin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"bare": "def f(completions):\n    return []\n", "broken": "1 / 0\n", "script": "import sys\nsys.exit()\n"}
    files |= {"clash": PLUGIN.replace('"short"', '"accuracy"'), "twin": PLUGIN}
    for name, text in (files | {"needy": "class Needy:\n    def __init__(self, x):\n        pass\n"}).items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "unwritten_module.py").write_text("def f(:\n")
    for funcs, plugins, message in (
        (["short"], ["bare.py"], r'no function is marked with @reward\("name"\)'),
        (["short"], ["broken.py"], "ZeroDivisionError while it was loaded"),
        (["short"], ["script.py"], "script.py: SystemExit while it was loaded"),
        (["short"], ["missing.py"], "missing.py: no such Python file"),
        (["short"], [plugin, "twin.py"], "there is another reward 'short'"),
        (["short"], ["clash.py"], "there is another reward 'accuracy'"),
        (["shart"], [plugin], "did you mean short"),
        ([f"{plugin}:nothing"], [], "has no 'nothing': it has .*shortness"),
        ([f"{plugin}:shortnes"], [], "has no 'shortnes': did you mean shortness"),
        ([f"{plugin}:not_a_function"], [], "expected a function"),
        (["needy.py:Needy"], [], "cannot be made without arguments"),
        (["no.such.module:f"], [], "cannot import no.such.module"),
        (["broken_module:f"], [], "cannot import broken_module: ZeroDivisionError"),
        (["unwritten_module:f"], [], "cannot import unwritten_module: SyntaxError"),
        ([".relative:f"], [], "cannot import .relative: TypeError"),
        ([":f"], [], "cannot import : ValueError: Empty module name"),
    ):
        with pytest.raises(RewardError, match=message):
            build_rubric(funcs, external_plugins=plugins)


WITH_ARGUMENTS = """
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


def test_arguments_reach_functions_and_classes_of_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(WITH_ARGUMENTS)
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
        ("cosine(max_len=0)", "reward 'cosine': max_len must be at least 1, got 0"),
        ("cosine(max_len='9')", "reward 'cosine': max_len must be an integer, got '9'"),
        ("format(response_format='answers_only')", "got 'answers_only'; did you mean answer_only"),
        ("temporal_iou(boundary=1)", "reward 'temporal_iou': boundary must be True or False, got 1"),
        ("length_window(min=600)", "reward 'length_window': min must be at most max (512), got 600"),
        ("soft_overlong(max_len=10, cache=20)", "reward 'soft_overlong': cache must be at most max_len (10), got 20"),
        ("segment_f1(iou=[0.5, 2])", "reward 'segment_f1': iou must be numbers above 0 and at most 1, got [0.5, 2]"),
        ("segment_f1(iou=[])", "reward 'segment_f1': iou must be numbers above 0 and at most 1, got []"),
        ("numeric(tolerance=1e999)", "reward 'numeric': tolerance must be a finite number, got inf"),
        ("cosine(correctness_func='acuracy')", "no reward function is named 'acuracy': did you mean accuracy"),
        (
            "cosine(correctness_func=\"judge(base_url='http://localhost:1', model='m')\")",
            "reward 'cosine': correctness_func can't be judge, which is asynchronous",
        ),
        *(
            (f"cosine({wrong})", "expected name")
            for wrong in ("9", "max_len=9, max_len=9", "**{}", "max_len=f()", "a b")
        ),
    ],
)
def test_wrong_arguments_of_a_reward_are_refused_by_name(text, message):
    with pytest.raises(RewardError) as caught:
        build_rubric([text])
    assert message in str(caught.value)


def test_settings_of_the_run_are_defaults_that_arguments_override():
    settings = SimpleNamespace(response_format="answer_only", generation_max_length=10)
    assert resolve("format", settings).arguments == {"response_format": "answer_only"}
    assert resolve("cosine", settings).arguments["max_len"] == 10
    assert resolve("cosine(max_len=20)", settings).arguments["max_len"] == 20
    assert resolve("cosine(max_len=None)", settings).arguments["max_len"] == 10


def test_flags_that_became_arguments_name_arguments_that_exist():
    for replacement in HERE_FOR.values():
        if replacement.startswith("--reward_funcs "):
            name, given = parse_row(replacement.split('"')[1])
            assert given.keys() <= arguments_of(TABLE[name].made_of).keys(), replacement


def record(name, **fields):
    message, place = Message("user", "<video>what?"), f"x.json[{name}]"
    return Record(name, (message,), "(1)", ("/a.mp4",), (), (None,), {"id": name, **fields}, place)


def test_fields_are_repeated_for_the_group():
    columns = reward_columns([record("a", nums=[1, 2]), record("b", level=3)], 2, finish_reasons=list("wxyz"))
    assert columns == {
        "id": ["a", "a", "b", "b"],
        "nums": [[1, 2], [1, 2], None, None],
        "level": [None, None, 3, 3],
        "solution": ["(1)"] * 4,
        "prompts": [[{"role": "user", "content": "<video>what?"}]] * 4,
        "video_paths": [["/a.mp4"]] * 4,
        "image_paths": [[]] * 4,
        "opened_think": [False] * 4,
        "finish_reasons": ["w", "x", "y", "z"],
    }


VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.endswith(ground_truth)
    return {"score": 1.0 if right else 0.0, "length": len(solution_str), "note": "text", "source": data_source}


def plain(data_source, solution_str, ground_truth, extra_info):
    return extra_info["weight"] * (solution_str == ground_truth)
"""


def test_compute_score_of_verl_gives_the_score_and_metrics_and_gets_the_fields_of_its_data(tmp_path):
    path = tmp_path / "verl_rewards.py"
    path.write_text(VERL)
    batch = build_rubric([f"verl:{path}:compute_score"]).score(["= 4", "four"], {"solution": ["4", "4"]})
    assert batch.names == ("compute_score",) and batch.total.tolist() == [1.0, 0.0]
    assert batch.metrics == {"reward/compute_score/length": [3.5, 3.5]}
    columns = {
        "solution": ["x"] * 3,
        "reward_model": [{"style": "rule", "ground_truth": "4"}, None, {"ground_truth": "9"}],
        "ground_truth": [None, None, "5"],
        "extra_info": [{"weight": 2}, {"weight": 3}, {"weight": 5}],
    }
    assert build_rubric([f"verl:{path}:plain"]).score(["4", "x", "5"], columns).components == [[2.0, 3.0, 5.0]]


def test_a_completion_reads_as_text_and_as_a_conversation():
    text = Completion("four")
    assert text == "four" and text[0] == "f" and text[-1] == "r" and text[1] == "o" and text[:2] == "fo"
    assert text[0]["content"] == text[-1]["content"] == text[0].get("content") == "four"
    assert text[0]["role"] == "assistant"
    assert Completion("")[0]["content"] == ""
    with pytest.raises(IndexError):
        text[4]
    assert pickle.loads(pickle.dumps(text))[0]["content"] == "four" and pickle.loads(pickle.dumps(text[0])) == "f"
