"""Properties that every function of the table has, whatever a model writes."""

import math
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.table import SHAPING, TABLE, TIMELINES
from qwenvl.rewards.values import inner_values

# A solution that each function can compare with; those not named take "(1) ...".
SOLUTIONS = {
    "math_accuracy": r"<answer>\frac{1}{2}</answer>",
    "count": "3",
    "numeric": "2.5",
    "regression": "10",
    "multiple_choice": "B",
    "by_problem_type": "B",
    "yes_no": "yes",
    "temporal_iou": "3 to 8",
    **dict.fromkeys(TIMELINES, "0.0-3.5 (2) insert the fan\n3.5-8.0 (3) fasten the screw"),
    "box_iou": "[10, 10, 50, 60], [0, 0, 5, 5]",
    "box_giou": "[10, 10, 50, 60], [0, 0, 5, 5]",
}
FIELDS = {
    "nums": [1, 2, 3],
    "target": 6,
    "width": 640,
    "height": 480,
    "duration": 12.5,
    "evidence": [[3, 5]],
    "problem_type": "multiple choice",
}
LOCAL = [name for name, entry in TABLE.items() if not entry.remote]

PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<answer>", "</answer>", "(1)", "(99999999999)", "1+2+3", "9**9", "=6", "B.", "A, C"),
        *("yes", "3:20 to 0:80", "[1,2,3,4]", "(5,6),(7,8)", r"\frac{1}{0}", "$", r"\boxed{", "1e99", "-0", "\x00"),
        *("0-3.5 (2)", ";", "0:01 to 7 s step 3", '{"step": 2, "start": 0, "end": NaN}', "-3-5 (2)", "9999999-1 (2)"),
        *("\u202eاب", "😀", "\n", " ", "看", "\ud83d", "NaN", "inf", "__import__('os')"),
        *("（１）", "Ｂ", "²", "\u0301" * 40),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join)
ANSWERS = TEXTS.map(lambda text: f"<think>x</think><answer>{text}</answer>")

MEGABYTE = 2**20
LARGE = {
    "one letter": "a" * MEGABYTE,
    "words": "ab " * (MEGABYTE // 3),
    "answer tags": "<answer>" * 100_000,
    "closing tags": "<answer>" + "</answer>" * 100_000,
    "think tags": "<think>" * 50_000 + "</think>" * 50_000,
    "nested tags": "<think><answer>" * 30_000 + "</answer></think>" * 30_000,
    "unclosed": "<think>" + "<answer>(1) " * 80_000,
    "spaces": "<answer>" + " " * MEGABYTE + "</answer>",
    "answer of digits": "<answer>" + "9" * 9_900 + "</answer>",
    "answer of numbers": "<answer>" + "(1) 2, 3:4 " * 890 + "</answer>",
    "answer of brackets": "<answer>" + "[(" * 4_900 + "</answer>",
    "answer of boxes": "<answer>" + "[1, 2, 30, 40]" * 700 + "</answer>",
    "answer of spans": "<answer>" + "0-1 2\n" * 1_650 + "</answer>",
    "answer of spans of many steps": "<answer>" + "".join(f"{n}-{n + 1} {n}\n" for n in range(720)) + "</answer>",
    "answer of objects": "<answer>" + '{"step":2,"start":1,"end":9}' * 350 + "</answer>",
    "answer of 100,000 spans": "<answer>" + "0-1 (2)\n" * 100_000 + "</answer>",
    "answer of halves of spans": "<answer>" + "0- " * 3_300 + "</answer>",
    "answer of words": "<answer>" + "left right " * 900 + "</answer>",
    "answer too long": "<answer>" + "(1)" * (MEGABYTE // 3) + "</answer>",
    "chinese": "<answer>" + "看见" * 4_900 + "</answer>" + "看" * 300_000,
    "null bytes": "\x00" * MEGABYTE,
    "right to left": "<answer>" + "\u202eابجد " * 1_600 + "</answer>",
    "emoji": "<answer>" + "👨‍👩‍👧‍👦" * 900 + "</answer>",
    "combining marks": "<answer>" + "\u0301\u0316" * 5_000 + "</answer>",
    "half-width marks": "<answer>" + "\uff9e\u0316" * 5_000 + "</answer>",
    "boxes of LaTeX": "<answer>" + "\\boxed{" * 700 + "B" + "}" * 700 + "</answer>",
    "parentheses": "<answer>" + "(" * 5_000 + ")" * 4_900 + "</answer>",
    "power tower": "<answer>9**9**9**9</answer>",
}


@pytest.fixture(scope="module")
def functions():
    """Every reward function that needs no server, closed at the end."""
    made = {name: resolve(name) for name in LOCAL}
    yield made
    for function in made.values():
        getattr(function.call, "close", lambda: None)()


def score(functions, name, *texts):
    return inner_values(functions[name], list(texts), columns_of(name, *texts))


def columns_of(name, *texts):
    return {
        "solution": [SOLUTIONS.get(name, "(1) insert the fan (2) fasten the screw")] * len(texts),
        "completion_ids": [list(range(len(text) // 4)) for text in texts],
        **{field: [value] * len(texts) for field, value in FIELDS.items()},
    }


@pytest.mark.parametrize("name", LOCAL)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXTS | ANSWERS, min_size=1, max_size=4))
def test_values_are_in_range_and_the_same_alone_and_in_company(functions, name, texts):
    if name == "math_accuracy":  # the worker process is tried elsewhere: here what is decided before it
        texts = [text.replace("\\", "/") for text in texts]
    values = score(functions, name, *texts)
    entry = TABLE[name]
    assert len(values) == len(texts)
    assert all(value is None or (math.isfinite(value) and entry.low <= value <= entry.high) for value in values)
    assert values == [score(functions, name, text)[0] for text in texts]


# Seconds of the processor. Each text takes less than 0.05 on a slow machine. A function whose time grows with the
# square of a megabyte would take minutes, and so would one that grows with the cube of an answer (of which no more
# than 10,000 characters are read): the bound is far from both, so that no machine decides.
LONGEST_CALL = 0.5


@pytest.mark.parametrize("name", LOCAL)
def test_large_and_hostile_texts_are_scored_in_a_moment(functions, name):
    score(functions, name, "<answer>1</answer>")  # imports
    slow = {}
    for label, text in LARGE.items():
        columns = columns_of(name, text)
        begin = time.thread_time()  # not of the clock on the wall: other processes share the machine
        (value,) = inner_values(functions[name], [text], columns)
        seconds = time.thread_time() - begin
        assert TABLE[name].low <= value <= TABLE[name].high
        if seconds >= LONGEST_CALL:
            slow[label] = round(seconds, 3)
    assert not slow


@pytest.mark.parametrize("name", LOCAL)
def test_the_solution_itself_is_accepted_and_is_right(functions, name):
    solution = SOLUTIONS.get(name, "(1) insert the fan (2) fasten the screw")
    check = functions[name].check
    assert check is None or check(solution, FIELDS) is None
    if name in (*SHAPING, "countdown"):
        return  # not a comparison with the solution alone
    bare = solution.removeprefix("<answer>").removesuffix("</answer>")
    assert score(functions, name, f"<think>x</think><answer>{bare}</answer>") == [1.0]
