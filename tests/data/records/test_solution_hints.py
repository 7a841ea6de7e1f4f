"""Solutions by the numbers of the prompt's list of steps: those that do not agree with the list are worth a look."""

from dataclasses import replace

import pytest

from qwenvl.data.records.solution_hints import solution_hints
from qwenvl.types import Message, Record

LISTED = "Which?\n(1) take the lid\n(2) hold it, and turn\n"


def hints(solution, asked=LISTED):
    record = Record("0", (Message("user", asked),), solution, (), (), (), {}, "d[0]")
    return [hint.message for hint in solution_hints(record)]


@pytest.mark.parametrize(
    "solution",
    [
        "(1)",
        "<answer>(1) take the lid (2) hold it, and turn</answer>",
        "(2) Hold it; (1): Take the lid.",
        "0.0-3.5 (1) take the lid\n3.5-7.0 (2)",
        "0.0-3.5 take the lid",
        "0-2 (1)\n2-3 (2)",
        "take the lid, hold it, and turn",
        "1, 2",
        "[1, 2]",
        "1 \u2192 2",
        "1 -> 2",
        "(1, 2)",
        "- (1) take the lid\n- (2) hold it, and turn",
        "Answer: (1) take the lid, then (2)",
        "Steps: 1, 2",
        "1.0, 2.0",
        "yes",
        "3",
        "B",
        "[10, 20, 30, 40]",
        "(1) and (2)",
        "(1), then (2), and finally (1)",
        "(1) first, (2) next.",
    ],
)
def test_a_solution_of_the_list_has_no_hint(solution):
    assert hints(solution) == []


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        ("(4) fly", "the solution has a number that is not in the prompt's list"),
        ("(2) take the lid", "the solution gives a number another name than the prompt's list"),
        ("take the lid because it fits", "the solution names a step of the prompt's list, and more that is none"),
        ("(1) take the lid, hold it, and turn", "the solution names a step of the prompt's list without its number"),
        ("(1) take the lid, 2", "the solution has numbers with and without brackets"),
        *((text, "the solution has more than numbers and names") for text in ("all except (1)", "not (2)")),
        ("(1) take the lid: no\n(2) hold it, and turn: yes", "the solution has more than numbers and names"),
        ("(1) take the lid - (2)", "the solution has more than numbers and names"),
        ("1, (2)", "the solution has numbers with and without brackets"),
        ("1-2", "the prompt has a list of steps, and the solution names no step of it"),
        ("S1, S2", "the prompt has a list of steps, and the solution names no step of it"),
        ("No. 2", "the prompt has a list of steps, and the solution names no step of it"),
        ("1.take the lid 2.hold it", "the solution names a step of the prompt's list, and more that is none"),
        ("0-2 take lid\n2-3 hold it", "the solution names a step that is not in the prompt's list, string"),
        ("0-2 (1); 2-3 hold", "the solution names a step that is not in the prompt's list, string"),
        ("0.0-3.5 (1) turn\n3.5-7.0 (2)", "the solution gives a number another name"),
    ],
)
def test_a_solution_that_the_list_contradicts_is_named(solution, message):
    assert [each[: len(message)] for each in hints(solution)] == [message]
    assert hints(solution, "Which step?") == []


def test_a_prompt_that_shows_another_form_is_named():
    asks = LISTED + "Answer as <answer>{}</answer>."
    [message] = hints("(1)", asks.format("actions"))
    assert message.startswith("the prompt shows the answer as <answer>actions</answer>, and the solution has")
    for shown in ("(1) ... (2) ...", "...", "", "the numbers", "(number) name"):
        assert hints("(1)", asks.format(shown)) == []


def test_a_prompt_that_asks_for_numbers_has_a_solution_with_steps_of_its_list():
    asks = LISTED + "Answer as <answer>(number) step (number) step</answer>."
    for solution in ("both", "take lid", "3"):
        [message] = hints(solution, asks)
        assert message.startswith("the prompt asks for numbers of its list, and the solution names no step of it")
    for solution in ("1 2", "take the lid", "(2)"):
        assert hints(solution, asks) == []


def test_a_span_is_of_another_kind_where_the_prompt_asks_for_times():
    assert hints("1.5 to 3.5", "When is the second step shown?\n(1) take the lid\n(2) hold it\n") == []
    [message] = hints("1.5 to 3.5")
    assert message.startswith("the prompt has a list of steps, and the solution names no step")


def test_a_kind_of_answer_that_is_no_list_of_steps_has_no_hint():
    record = Record("0", (Message("user", LISTED),), "a red lid", (), (), (), {"problem_type": "free-form"}, "d[0]")
    assert list(solution_hints(record)) == []
    [_] = solution_hints(replace(record, fields={"problem_type": "labels"}))


def test_a_list_that_is_not_read_is_named():
    for asked in ("(1) fasten the screws (4)\n(2) close it", "(1) take it\n(1) put it", "(1) take it\n(2)"):
        [message] = hints("(2)", asked)
        assert message.startswith("a number or a name of the prompt's list occurs twice")
    assert hints("(2)", "(1) take it") == []


@pytest.mark.parametrize("line", ["{}. {}", "- ({}) {}", "**({})** {}", "{}) {}", "Step {}: {}", "[{}] {}"])
def test_a_list_in_another_notation_is_named_where_the_solution_has_numbers(line):
    asked = "Which?\n" + "\n".join(line.format(n, name) for n, name in ((1, "take it"), (2, "put it")))
    for solution in ("(1) take it", "1, 2", "take it, put it"):
        [message] = hints(solution, asked)
        assert message.startswith("the lines of the prompt's list do not begin with (1), (2), ...")
    assert hints("red", asked) == hints("2", asked) == []


def test_a_list_in_one_line_is_named_where_the_solution_has_names_or_bare_numbers():
    for asked in ("Which? (1) take it (2) put it", "Which?\n(1) take it; (2) put it"):
        for solution in ("take it", "1, 2", "put it, take it"):
            [message] = hints(solution, asked)
            assert message.startswith("the steps of the prompt's list do not stand on a line each")
        assert hints("(2) put it", asked) == hints("red", asked) == []


def test_a_list_in_another_turn_is_named():
    turns = (Message("system", LISTED), Message("user", "Which?"))
    for solution in ("(1)", "take the lid"):
        [hint] = solution_hints(Record("0", turns, solution, (), (), (), {}, "d[0]"))
    assert "the list of steps of the last user turn, and it stands in another one" in hint.message


def test_a_whole_number_as_tables_write_it_is_named():
    [message] = hints("2.0", "How many?")
    assert message.startswith("tables write 2.0 for 2 in a column with gaps")
    assert hints("2.5", "How many?") == []


def test_a_number_that_may_have_a_decimal_comma_is_named():
    [message] = hints("2,375", "How many metres?")
    assert message.startswith("rewards for numbers read the solution 2,375 as 2375")
    assert hints("2.375", "How many metres?") == hints("1,250,000", "How many?") == []


def test_a_solution_that_is_longer_than_answers_are_read_is_named():
    """A timeline of a hundred spans with names of a hundred letters."""
    lines = [f"{n}.0-{n + 1}.0 (1) {'take the lid ' * 8}" for n in range(100)]
    [message] = hints("\n".join(lines), asked="When?")
    assert message.startswith("answers of more than 10,000 characters count as missing")
    assert hints("\n".join(lines[:80]), asked="When?") == []
