from qwenvl.rewards.columns import field_problem, is_routed, reward_columns, route_problem
from qwenvl.types import Message, Record


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


def test_prompts_that_end_inside_a_think_block_are_marked_for_the_group():
    columns = reward_columns([record("a"), record("b")], 2, opened_think=[False, True])
    assert columns["opened_think"] == [False, False, True, True]


def test_fields_that_would_hide_a_column_are_refused():
    assert field_problem("(1)", {"solution": "(1)", "id": "a"}) is None
    assert "'prompts'" in field_problem("(1)", {"prompts": []})
    assert "differs from the last gpt turn" in field_problem("(1)", {"solution": "(2)"})


def test_routes():
    assert is_routed(None, "a") and is_routed("a", "a") and is_routed(["b", "a"], "a") and not is_routed("ab", "a")
    assert route_problem(None, ["a"]) is None and route_problem(["a"], ["a"]) is None
    for wrong in ("b", ["a", "b"], [], 3, [None], {"a": 1}):
        assert "'reward'" in route_problem(wrong, ["a"])
