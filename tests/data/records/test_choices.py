"""The option that an answer names: by letter of any case, by text, or by a number whose meaning the file tells."""

import json
from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.choices import options_of
from qwenvl.data.records.chosen import chosen, counted_from
from qwenvl.data.records.option_columns import option_columns, options_in
from qwenvl.data.records.parse import ReadOptions, Row, read_row, record_hints
from qwenvl.data.records.presets import how_counted
from qwenvl.data.records.record_file import RecordFile
from qwenvl.data.records.sources import open_rows

WAYS = ["left", "right", "up"]
LEFT_RIGHT = {"A": "left", "B": "right"}
UP_LEFT_RIGHT = {"A": "up", "B": "left", "C": "right"}
COLUMNS = {"question": "Where?", "video": "a.mp4"}


def parsed(row, **options):
    return read_row(Row("d[0]", "d-0", row), Path("/media"), ReadOptions(format="question-answer", **options))


def gold(row, **options):
    return parsed(row, **options).solution.removeprefix("<answer>").removesuffix("</answer>")


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (["left", "right"], {"A": "left", "B": "right"}),
        (["a. left", "b. right"], {"A": "left", "B": "right"}),
        (["(A) left", "(B) right"], {"A": "left", "B": "right"}),
        (["[a] left", "[b] right"], {"A": "left", "B": "right"}),
        (["A: left", "B: right"], {"A": "left", "B": "right"}),
        (["1. left", "2. right"], {"A": "left", "B": "right"}),
        (["0) left", "1) right"], {"A": "left", "B": "right"}),
        (["1.5 m", "2.5 m"], {"A": "1.5 m", "B": "2.5 m"}),
        ([1, 2.5], {"A": "1", "B": "2.5"}),
        ([{"id": "1", "label": "A", "text": "left"}, {"id": "2", "label": "B", "text": "right"}], LEFT_RIGHT),
        ([{"label": "A", "text": "left"}, {"label": "B", "text": "right"}], {"A": "left", "B": "right"}),
        (["left", "right", "", None, float("nan")], {"A": "left", "B": "right"}),
        ({"a": "left", "b": "right"}, {"A": "left", "B": "right"}),
        ({"0": "left", "1": "right"}, {"A": "left", "B": "right"}),
        ({"option_a": "left", "option_b": "right", "option_c": None}, {"A": "left", "B": "right"}),
        ([{"choice_id": 0, "choice": "left"}, {"choice_id": 1, "choice": "right"}], {"A": "left", "B": "right"}),
        ([{"option": "A", "text": "left"}, {"option": "B", "text": "right"}], {"A": "left", "B": "right"}),
        ([{"choice": "(a)", "value": "left"}, {"choice": "(b)", "value": "right"}], {"A": "left", "B": "right"}),
        ([{"value": "A", "text": "left"}, {"value": "B", "text": "right"}], {"A": "left", "B": "right"}),
        ([{"option": "5"}, {"option": "7"}], {"A": "5", "B": "7"}),
        ([{"text": "left", "label": True}, {"text": "right", "label": False}], {"A": "left", "B": "right"}),
        ([{"text": "up", "label": 0}, {"text": "left", "label": 1}, {"text": "right", "label": 0}], UP_LEFT_RIGHT),
        ('["left", "right"]', {"A": "left", "B": "right"}),
        (json.dumps('["left", "right"]'), {"A": "left", "B": "right"}),
        ("['left', 'right']", {"A": "left", "B": "right"}),
        ("['left' 'right']", {"A": "left", "B": "right"}),
        ("['left'\n \"it's right\"]", {"A": "left", "B": "it's right"}),
    ],
    ids=str,
)
def test_options_are_read_in_every_notation_of_files(given, texts):
    assert options_of(given).texts == texts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["left", "", "up"], "option B is empty"),
        ([], "expected 1 to 26 options"),
        ([["left"]], "expected 1 to 26 options"),
        ("left; right", "expected a list of options"),
        ({"first": "left", "second": "right"}, "expected options by letter or number"),
        ({"²": "left", "³": "right"}, "expected options by letter or number"),
        (3, "list of options or options by letter"),
        ('"left"', "expected a list of options"),
        ("3", "expected a list of options"),
        ([{"text": "left", "label": 1}, {"text": "right", "label": 0}], "options: `label` 1 and 0 may number"),
        ([{"text": "left", "content": "right"}], "expected 1 to 26 options"),
        (["B. left", "A. right"], "options: have the letters B, A in this order"),
        ([{"id": "B", "text": "left"}, {"id": "A", "text": "right"}], "have the letters B, A in this order"),
        ([{"id": 3, "text": "lid"}, {"id": 1, "text": "fan"}, {"id": 2, "text": "cup"}], "the numbers 3, 1, 2 in this"),
        ([{"text": "two", "value": 2}, {"text": "one", "value": 1}], "have the numbers 2, 1 in this order"),
        ({"2": "left", "1": "right"}, "have the numbers 2, 1 in this order"),
        ([{"value": "A", "label": "left"}, {"value": "B", "label": "right"}], "each a text"),
        ([{"option": "A", "description": "left"}, {"option": "B", "description": "right"}], "each a text"),
        ([{"text": "left", "explanation": "as seen"}, {"text": "right", "explanation": "no"}], "each a text"),
    ],
)
def test_values_that_are_no_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        options_of(given)


def test_an_answer_that_is_the_text_of_two_options_is_refused():
    with pytest.raises(ValueError, match="answer: 'x' is the text of the options A and C; write a letter"):
        chosen("x", options_of(["x", "y", "X."]))


@pytest.mark.parametrize(
    "answer",
    [
        *("B", "b", "(b)", "b.", "B)", "[B]", "b. right", "(B) Right.", "right", " RIGHT. ", "Option B"),
        ["B"],
        "<answer>b</answer>",
    ],
    ids=str,
)
def test_an_answer_names_its_option_by_letter_or_text(answer):
    assert chosen(answer, options_of(WAYS)) == "B"


SEVERAL = ["A, C", "AC", ["a", "c"], "a and c", "A/C", "(A) (C)", "A. left, C. up", "(A) left and (C) up", "A. left; C"]


@pytest.mark.parametrize("answer", SEVERAL, ids=str)
def test_several_right_options_are_read_in_every_notation(answer):
    assert chosen(answer, options_of(WAYS)) == "A, C"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("D", "'D' is none of the options A. left, B. right, C. up"),
        ("be", "'be' is none of the options"),
        ("B. left", "names option B, .*text of option A"),
        (7, "7 is none of the options"),
        (1, "--columns answer=answer_index"),
        (True, "expected text or a number"),
    ],
)
def test_an_answer_that_names_no_option_is_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        chosen(answer, options_of(WAYS))


@pytest.mark.parametrize("answer", ["A. left C. up", "(A)(C)", "A.C", "(A) or (C)", "A. leftwards"])
def test_a_letter_with_another_text_than_that_of_its_option_is_refused(answer):
    with pytest.raises(ValueError, match="names option A, and has another text than that"):
        chosen(answer, options_of(WAYS))


def test_numbers_that_count_from_0_and_from_1_are_refused():
    with pytest.raises(ValueError, match="numbers from 0 and from 1"):
        chosen([0, 3], options_of(WAYS))


def test_a_number_within_the_text_of_an_option_is_refused():
    screws = options_of(["2 screws", "3 screws", "4 screws"])
    with pytest.raises(ValueError, match="3 may be the number of an option, and stands in the text of option B"):
        chosen(3, screws)
    assert counted_from([(3, screws)]) is None
    assert chosen(3, screws, first_number=1) == "C"


def test_blanks_beside_commas_of_an_option_do_not_matter():
    assert chosen("B,A,C", options_of(["A, B, C", "B, A, C"])) == "B"


def test_a_letter_that_is_the_text_of_another_option_is_refused():
    letters = options_of({"A": "B", "B": "C", "C": "A"})
    with pytest.raises(ValueError, match="'C' is the letter of an option and the text of option B: write the letter"):
        chosen("C", letters)
    assert chosen("Option B", letters) == "B"
    assert chosen("C", options_of({"A": "A", "B": "B", "C": "C"})) == "C"


@pytest.mark.parametrize(
    ("options", "answer", "first", "letter"),
    [
        ([1, 2, 3, 4], 3, None, "C"),
        (["2", "4", "6", "8"], 2, None, "A"),
        (["2", "4", "6", "8"], "8", None, "D"),
        (["1.0", "2.0"], 2, None, "B"),
        (WAYS, 0, None, "A"),
        (WAYS, 3, None, "C"),
        (WAYS, 1, 0, "B"),
        (WAYS, 1, 1, "A"),
        (WAYS, "2", 1, "B"),
        (["2", "4", "6", "8"], 2, 0, "C"),
        ({"1": "left", "2": "right"}, 1, None, "A"),
        (["0. left", "1. right"], 1, None, "B"),
    ],
)
def test_a_number_as_answer_is_the_text_or_the_place_of_an_option(options, answer, first, letter):
    assert chosen(answer, options_of(options), first_number=first) == letter


def test_the_text_of_one_option_and_the_number_of_another_is_refused():
    with pytest.raises(ValueError, match=r"2 is the text of option A .*number of option B"):
        chosen(2, options_of({"1": "2", "2": "1"}))


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([(1, WAYS), (3, WAYS)], 1),
        ([(1, WAYS), (0, WAYS)], 0),
        ([("1", WAYS), ("3", WAYS)], 1),
        ([(1, WAYS), (2, WAYS)], None),
        ([(3, {"1": "2", "2": "3", "3": "4", "4": "5"})], None),  # the text of one option and the number of another
        ([("left", WAYS), ("B", WAYS)], None),
        ([(2, {"1": "left", "2": "right", "3": "up"})], 1),
        ([(2, ["0. left", "1. right", "2. up"])], 0),
        ([(4, ["one", "two", "three", "four"]), (1, WAYS)], 1),
        ([], None),
    ],
)
def test_the_answers_of_a_file_show_whether_they_count_from_0_or_1(rows, first):
    assert counted_from((answer, options_of(options)) for answer, options in rows) == first


def test_a_number_that_is_the_text_of_another_option_than_the_file_counts_is_refused():
    rows = [(3, {"0": "3", "1": "4", "2": "5", "3": "6"}), (0, WAYS)]
    with pytest.raises(ValueError, match=r"in 1 row a number is the text of one option and, counted from 0"):
        counted_from((answer, options_of(options)) for answer, options in rows)


def written(tmp_path, rows):
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return RecordFile(DatasetSource("rows", tmp_path / "rows.json", tmp_path), seed=0)


def test_a_file_whose_answers_count_from_one_is_read_so_and_reported(tmp_path):
    rows = [COLUMNS | {"question": f"Where {n}?", "options": WAYS, "answer": n} for n in (1, 2, 3)]
    file = written(tmp_path, rows)
    assert [record.solution for record in file] == [f"<answer>{letter}</answer>" for letter in "ABC"]
    assert file.first_number == 1
    assert how_counted("rows", 1) == "rows: whole numbers in its answers count the options from 1"


def test_a_file_that_may_count_from_0_or_1_is_refused_unless_the_column_says_so(tmp_path):
    rows = [COLUMNS | {"question": f"Where {n}?", "options": WAYS, "answer": n} for n in (1, 2)]
    with pytest.raises(RecordError, match="--columns answer=answer_number from 1"):
        list(written(tmp_path, rows))
    assert gold(rows[0], columns={"answer": "answer_index"}) == "B"
    assert gold(rows[0], columns={"answer": "answer_number"}) == "A"


def test_one_bad_row_does_not_turn_texts_into_places(tmp_path):
    numbers = ["1", "2", "3", "4"]
    rows = [COLUMNS | {"question": f"How many {n}?", "options": numbers, "answer": n} for n in ("2", "3", "1")]
    assert [record.solution for record in written(tmp_path, rows)] == [f"<answer>{each}</answer>" for each in "BCA"]
    rows.append(COLUMNS | {"question": "How many?", "options": numbers, "answer": "0"})
    with pytest.raises(RecordError, match="in 3 rows a number is the text of one option and, counted from 0"):
        list(written(tmp_path, rows))


def test_a_number_that_is_the_text_of_another_option_than_its_place_is_refused(tmp_path):
    rows = [COLUMNS | {"options": WAYS, "answer": 0}] * 3
    rows.append(COLUMNS | {"question": "How many turns?", "options": ["1", "2", "3", "4"], "answer": 2})
    with pytest.raises(RecordError, match=r"in 1 row a number is the text of one option.*answer=answer_index"):
        list(written(tmp_path, rows))
    rows[3]["answer"] = 3  # as text and as place it would be beyond, or another
    with pytest.raises(RecordError, match="in 1 row a number is the text of one option"):
        list(written(tmp_path, rows))


def test_a_file_that_counts_both_ways_is_refused(tmp_path):
    rows = [COLUMNS | {"options": WAYS, "answer": n} for n in (0, 3)]
    with pytest.raises(RecordError, match="neither from 0"):
        written(tmp_path, rows)


@pytest.mark.parametrize(
    ("columns", "answer", "letter", "shown"),
    [
        ({"A": "left", "B": "right"}, "b", "B", "B. right"),
        ({"a0": "left", "a1": "right"}, 1, "B", "B. right"),
        ({"a0": "left", "a1": "right"}, "1", "B", "B. right"),
        ({"option1": "left", "option2": "right"}, 1, "A", "A. left"),
        ({"option 0": "left", "option 1": "right"}, 1, "B", "B. right"),
        ({"option_a": "left", "option_b": "right"}, "B", "B", "B. right"),
        ({"optionA": "left", "optionB": "right"}, "b", "B", "B. right"),
        ({"choice_1": "left", "choice_2": "right", "choice_3": ""}, "right", "B", "B. right"),
        ({"answer0": "left", "answer1": "right"}, 0, "A", "A. left"),
        ({"opt1": "left", "opt2": "right"}, "right", "B", "B. right"),
        ({"a0": "left", "a1": "right"}, "a1", "B", "B. right"),
        ({"option2": "right", "option1": "left"}, 2, "B", "B. right"),
    ],
)
def test_options_are_read_from_numbered_and_lettered_columns(columns, answer, letter, shown):
    record = parsed(COLUMNS | columns | {"answer": answer})
    assert record.solution == f"<answer>{letter}</answer>"
    assert f"\n{shown}\n" in record.messages[-1].text
    assert record.fields["problem_type"] == "multiple choice"
    assert record.unread == ()


@pytest.mark.parametrize(
    "texts",
    [
        ["A. fan", "C. lid", "D. bolt"],
        ["B. fan", "C. lid", "D. bolt"],
        ["A. fan", "B. lid", "B. bolt"],
        ["1. fan", "3. lid", "4. bolt"],
        ["(2) fan", "(1) lid"],
    ],
)
def test_options_whose_letters_or_numbers_have_gaps_are_refused(texts):
    with pytest.raises(ValueError, match=r"options: have the (letters|numbers) .* in this order"):
        options_of(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["Option B: right", "Option A: left"],
        ["B - right", "A - left"],
        ["Choice B: right", "Choice A: left"],
        ["**B.** right", "**A.** left"],
        ["2 - right", "1 - left", "0 - up"],
    ],
    ids=str,
)
def test_options_that_seem_to_be_shuffled_are_refused(texts):
    with pytest.raises(ValueError, match="candidates: seem to have the names"):
        options_of(texts, "candidates")
    assert list(options_of(texts[::-1]).texts.values()) == texts[::-1]


def test_initials_of_names_and_places_are_texts():
    for texts in (["J. Smith", "M. Jones"], ["1. FC K", "1. FC N"], ["3. May", "17. May"]):
        assert list(options_of(texts).texts.values()) == texts


def test_letters_in_front_of_lettered_options_are_taken_off():
    for given in ({"A": "A. left", "B": "(b) right"}, {"A": "left", "B": "right"}):
        assert options_of(given).texts == option_columns(given)[0].texts == {"A": "left", "B": "right"}
    assert options_of({"A": "A. Smith", "B": "C. Jones"}).texts == {"A": "A. Smith", "B": "C. Jones"}


def test_columns_of_small_letters_are_options_where_the_answer_is_one_of_them():
    row = {"a": "red", "b": "green", "c": ""}
    for answer in ("B", "b ", "green", "Green.", "(b)", "b. green"):
        assert option_columns(row | {"answer": answer}) == (options_of({"A": "red", "B": "green"}), ("a", "b"))
    assert option_columns(row | {"answer": "blue"}) is None
    assert option_columns({"a": "3", "b": "4", "answer": "4"}) is None  # the larger one of two numbers
    assert option_columns({"a": "red", "answer": "a"}) is None
    assert option_columns({"a": None, "b": None, "answer": None}) is None


def test_columns_with_gaps_are_no_options_and_empty_ones_are_refused():
    assert option_columns({"a1": "x", "a3": "y", "option": "z", "answer": "q"}) is None
    assert option_columns({"option1": "", "option2": None, "answer": "q"}) is None
    assert option_columns({f"option{n}": f"text {n}" for n in range(1, 12)})[0].texts["K"] == "text 11"
    with pytest.raises(ValueError, match="option B is empty"):
        option_columns({"option1": "left", "option2": "", "option3": "up"})
    with pytest.raises(ValueError, match="option1/option3: expected columns of options from 1, 0 or a on"):
        option_columns({"option1": "left", "option3": "up"})
    with pytest.raises(ValueError, match=r"option_01/option_02: .* without a zero in front"):
        option_columns({"option_01": "left", "option_02": "up"})


def test_an_answer_that_names_an_empty_column_is_refused():
    row = {"question": "Which?", "option_1": "left", "option_2": "up", "option_3": ""}
    assert gold(row | {"answer": "option_2"}) == "B"
    with pytest.raises(RecordError, match="answer: names the column 'option_3', which is empty in this row"):
        gold(row | {"answer": "option_3"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"A": "lid", "B": "", "C": "screw"}, "option B is empty"),
        ({"A": None, "B": "fan"}, "option A is empty"),
        ({"1": "lid", "3": "screw", "4": "cable"}, "every number from 0 or 1 on, got 1, 3, 4"),
        ({"option_a": "lid", "option_b": None, "option_c": "screw"}, "option B is empty"),
        ([{"id": 1, "text": "lid"}, {"id": 4, "text": "fan"}], "every number from 0 or 1 on, got 1, 4"),
        ({"2": "lid", "3": "fan"}, "every number from 0 or 1 on, got 2, 3"),
        ({"A": "lid", "a": "fan"}, "has option A twice"),
        ({"A": "A. lid", "B": "C. fan", "C": "B. cup"}, "have the letters A, C, B in front of their texts"),
        ({"A": "lid", "1": "fan"}, "expected options by letter or number"),
        ({"AB": "lid", "C": "fan"}, "expected options by letter or number"),
    ],
)
def test_options_by_name_have_none_left_out(given, message):
    with pytest.raises(ValueError, match=message):
        options_of(given)


def test_columns_by_letter_have_none_left_out():
    for row in ({"A": "lid", "B": "", "C": "screw"}, {"A": "lid", "C": "screw"}, {"B": "fan"}):
        with pytest.raises(ValueError, match=r"option [AB] is empty"):
            option_columns(row)
    assert option_columns({"A": "lid", "B": "fan", "C": "", "D": None})[0].texts == {"A": "lid", "B": "fan"}
    assert option_columns({"A": "", "B": None}) is None


def test_a_number_is_that_of_its_option():
    for given in ([{"id": 1, "text": "lid"}, {"id": 2, "text": "fan"}], {"1": "lid", "2": "fan"}):
        options = options_of(given)
        for first in (1, None):
            assert [options.texts[chosen(n, options, "answer", first)] for n in (1, 2)] == ["lid", "fan"]
        assert counted_from([(2, options)]) == 1
    with pytest.raises(ValueError, match="2 may be the number of several of"):
        chosen(2, options_of({"A": "lid", "C": "screw", "D": "fan"}))


@pytest.mark.parametrize("cells", ["lid,fan,,cable", ",fan,screw,cable", ",fan,,"])
@pytest.mark.parametrize("columns", ["option1,option2,option3,option4", "a0,a1,a2,a3"])
def test_an_empty_option_of_a_table_is_refused_where_others_stand_behind_it(columns, cells, tmp_path):
    (tmp_path / "d.csv").write_text(f"video,question,{columns},answer\na.mp4,Which?,{cells},2\n")
    with pytest.raises(RecordError, match=r"d.csv:2.* option [AC] is empty"):
        read_row(open_rows(str(tmp_path / "d.csv")).row(0), tmp_path, ReadOptions(format="question-answer"))


def test_a_table_has_open_questions_and_questions_with_fewer_options(tmp_path):
    rows = "a.mp4,Which?,lid,fan,,fan\nb.mp4,Which?,,,,a cup\n"
    (tmp_path / "d.csv").write_text(f"video,question,option1,option2,option3,answer\n{rows}")
    read = open_rows(str(tmp_path / "d.csv"))
    options = ReadOptions(format="question-answer")
    first, second = (read_row(read.row(number), tmp_path, options) for number in (0, 1))
    assert (first.solution, first.unread) == ("<answer>B</answer>", ())
    assert (second.solution, second.unread) == ("<answer>a cup</answer>", ())


@pytest.mark.parametrize(
    ("question", "answer", "letter"),
    [
        ("Where does it go?\nA. left\nB. right", "<answer>B</answer>", "B"),
        ("Where does it go?\nA. left\nB. right", "b", "B"),
        ("Where does it go? (A) left (B) right", "(B)", "B"),
        ("Where?\na) left\nb) right", "B", "B"),
        ("Where?\nOptions:\nA: left\nB: right\nC: up", "up", "C"),
        ("Where?\nA. left\nB. right", "B. right", "B"),
        ("What is it? A. a cat B. a dog", "A", "A"),
        ("How many?\nA. 2\nB. 3", 3, "B"),
        ("How many?\nA. 2\nB. 3", "2", "A"),
        ("Where?\n[A] left\n[B] right", "A", "A"),
        ("Where?\n**A.** left\n**B.** right", "A", "A"),
    ],
)
def test_options_in_the_question_make_it_multiple_choice(question, answer, letter):
    record = parsed(COLUMNS | {"question": question, "answer": answer})
    assert (record.solution, record.fields["problem_type"]) == (f"<answer>{letter}</answer>", "multiple choice")
    assert record.messages[-1].text.startswith(f"<video>{question}\nFirst think"), "the options are not written twice"
    assert "the letter of the right option" in record.messages[-1].text


def test_an_answer_is_a_finite_number():
    with pytest.raises(RecordError, match="answer: expected text or a number, got number Infinity"):
        parsed({"question": "How many?", "video": "a.mp4", "answer": float("inf")})


def test_a_letter_that_the_options_in_the_question_lack_is_refused():
    with pytest.raises(RecordError, match="'C' is none of the options"):
        parsed(COLUMNS | {"question": "Where?\nA. left\nB. right", "answer": "C"})


def test_a_number_beside_lettered_lines_is_refused_unless_its_column_says_what_it_counts():
    for question in (
        "How many?\nA. 2 screws\nB. 3 screws\nC. 4 screws",
        "A. lid\nB. fan\nC. cup\nHow many screws?",
        "Where?\nOption A: left\nOption B: right\nOption C: up",
        "Where? (A) left (B) right (C) up",
        "Where?\nA.left\nB.right\nC.up",
    ):
        with pytest.raises(RecordError, match="3 may be the number of an option in the question, or a count"):
            parsed(COLUMNS | {"question": question, "answer": 3})
    in_line = COLUMNS | {"question": "Which way? (A) left, (B) right, (C) up"}
    assert gold(in_line | {"answer_index": 1}) == gold(in_line | {"answer_number": 2}) == "B"
    assert gold(in_line | {"answer": "right"}) == "B"
    assert gold(COLUMNS | {"question": "How many?\nA. 2\nB. 3", "answer": 3}) == "B"


def test_the_tags_and_the_thinking_of_an_answer_are_no_part_of_it():
    for given, kind, text in (("<answer>-3</answer>", "numerical", "-3"), ("<answer>Yes</answer>", "yes or no", "yes")):
        record = parsed(COLUMNS | {"answer": given})
        assert (record.fields["problem_type"], record.solution) == (kind, f"<answer>{text}</answer>")
    record = parsed(COLUMNS | {"answer": "<think>A red sign.</think>\n<answer>STOP</answer>"})
    assert (record.solution, record.fields["thinking"]) == ("<answer>STOP</answer>", "A red sign.")


def test_an_order_of_letters_and_a_kind_that_is_not_the_answers_are_worth_a_look():
    row = COLUMNS | {"question": "In which order?\n(a) lid\n(b) fan\n(c) cup", "answer": "b, a, c"}
    assert [hint.kind for hint in record_hints(parsed(row))] == ["an order of letters"]
    row = COLUMNS | {"question": "How far?", "question_type": "numerical", "answer": "3,5 m and more"}
    assert [hint.kind for hint in record_hints(parsed(row))] == ["another kind of answer than its column says"]


def test_the_prompt_of_several_right_options_asks_for_all():
    record = parsed(COLUMNS | {"options": WAYS, "answer": "A, C"})
    assert "the letters of all right options, with commas between them" in record.messages[-1].text


def test_columns_have_up_to_ten_options():
    row = {letter: f"text {letter}" for letter in "ABCDEFGHIJ"}
    assert list(option_columns(row)[0].texts.values()) == list(row.values())


def test_letters_within_a_sentence_are_no_options_of_another_answer():
    question = "Between part A. and part B. of the clip, how many screws are fastened?"
    assert gold(COLUMNS | {"question": question, "answer": 7}) == "7"
    assert gold(COLUMNS | {"question": question, "answer": "C"}) == "C"


def test_letters_in_a_question_without_options_are_no_options():
    assert options_in("What is in box A. and what in B?") is None
    assert options_in("Where?\nA.left\nB.right").texts == {"A": "left", "B": "right"}
    assert options_in("Where?\nB. left\nC. right") is None
    question = "Which one?\nA. yeast\nB. algae\nC. mould\nD. E. coli\nE. none"
    assert options_in(question).texts["D"] == "E. coli"  # E begins a line of its own
    assert options_in("Where?\nA. left B. right\nC. up").texts == {"A": "left", "B": "right", "C": "up"}
    record = parsed(COLUMNS | {"question": "Who are A. and B. here?", "answer": "two men"})
    assert record.fields["problem_type"] == "free-form"


def test_a_letter_without_options_is_hinted_at():
    [hint] = record_hints(parsed(COLUMNS | {"answer": "B"}))
    assert hint.kind == "a letter without options"


@pytest.mark.parametrize("kind", ["multiple choice", "Multiple Choice", "multiple-choice", "MCQ", "multi-choice", "mc"])
def test_the_kind_multiple_choice_is_read_in_any_spelling(kind):
    record = parsed(COLUMNS | {"options": WAYS, "answer": "right", "problem_type": kind})
    assert (record.solution, record.fields["problem_type"]) == ("<answer>B</answer>", "multiple choice")


def test_another_kind_beside_options_is_kept_as_the_source_kind():
    record = parsed(COLUMNS | {"options": WAYS, "answer": "right", "problem_type": "Temporal Reasoning"})
    assert record.solution == "<answer>B</answer>"
    assert record.fields["source_problem_type"] == "Temporal Reasoning"


@pytest.mark.parametrize(
    "options",
    [
        ["B - left", "C - right"],
        ["\uff08B\uff09\u5de6", "\uff08C\uff09\u53f3"],
        ["B\u3001left", "D\u3001right"],
        ["Option B: left", "Option C: right"],
        ["**B.** left", "**C.** right"],
    ],
    ids=str,
)
def test_letters_with_gaps_are_refused_in_every_notation(options):
    """One was taken out, and B may be the first of these or the second."""
    with pytest.raises(ValueError, match=r"seem to have the names B, . in this order; write their texts alone"):
        options_of(options)


@pytest.mark.parametrize("options", [["C major", "D major"], ["a-left", "a-right"], ["b-flat", "c-sharp"]], ids=str)
def test_letters_that_belong_to_their_texts_are_no_names(options):
    assert list(options_of(options).texts.values()) == options


@pytest.mark.parametrize("kind", ["OCR", "labels", "regression", "open-ended", "yes or no", "numerical"])
def test_the_letter_of_an_option_is_a_choice_whatever_the_question_is_called(kind):
    """The letter alone would be trained on, without options to choose from."""
    record = parsed(COLUMNS | {"options": WAYS, "answer": "b", "problem_type": kind})
    assert (record.solution, record.fields["problem_type"]) == ("<answer>B</answer>", "multiple choice")
    assert record.fields["source_problem_type"] == kind and "B. right" in record.messages[-1].text


def test_an_empty_cell_between_small_columns_of_options_is_told():
    """Without a word all options of the row were left out, and the letter was its answer in words."""
    for row in ({"a": "x", "c": "z", "answer": "c"}, {"b": "y", "c": "z", "answer": "b"}):
        with pytest.raises(RecordError, match="is empty"):
            parsed(COLUMNS | row)


def test_options_that_an_answer_of_another_kind_leaves_out_are_noted():
    record = parsed(COLUMNS | {"options": ["STOP", "GO"], "answer": "STOP", "problem_type": "OCR"})
    assert (record.solution, record.fields["problem_type"]) == ("<answer>STOP</answer>", "OCR")
    assert [hint.kind for hint in record.hints] == ["options that are not shown"]


def test_a_kind_of_question_beside_a_column_with_the_kind_of_answer_is_kept():
    record = parsed({"question": "Is it on?", "answer": "yes", "problem_type": "causal", "answer_type": "binary"})
    assert (record.fields["problem_type"], record.fields["source_problem_type"]) == ("yes or no", "causal")


@pytest.mark.parametrize(
    ("row", "kind", "text"),
    [
        ({"answer": True}, "yes or no", "yes"),
        ({"answer": False, "problem_type": "open question"}, "open question", "no"),
        ({"answer": "FALSE", "question": "Is the lid closed?"}, "yes or no", "no"),  # of a table
        ({"answer": "FALSE", "question": "What does the display show?"}, "free-form", "FALSE"),
        ({"answer": "y", "question": "Is it along x or y?"}, "free-form", "y"),
        ({"answer": "\N{MINUS SIGN}3"}, "numerical", "\N{MINUS SIGN}3"),
        ({"answer": ".5"}, "numerical", ".5"),
        ({"answer": ["red"]}, "free-form", "red"),
        ({"answer": 3}, "numerical", "3"),
        ({"answer": "3.4-5.1", "question_type": "video temporal grounding"}, "temporal grounding", "3.4 to 5.1"),
        ({"answer": "3.4 to 5.1", "question": "When does it start?"}, "temporal grounding", "3.4 to 5.1"),
        ({"answer": "0:12 - 0:20", "question": "At what time does it move?"}, "temporal grounding", "12 to 20"),
        ({"answer": [3.4, 5.1], "problem_type": "TVG"}, "temporal grounding", "3.4 to 5.1"),
        ({"answer": [3723.125, 12345.64], "problem_type": "TVG"}, "temporal grounding", "3723.125 to 12345.64"),
        ({"answer": [[7, 9], [1, 2]], "task_type": "moment retrieval"}, "temporal grounding", "1 to 2, 7 to 9"),
        ({"answer": "from 3 to 5 s", "type": "temporal grounding"}, "temporal grounding", "3 to 5"),
        ({"answer": "3-5", "question": "What was the score?"}, "free-form", "3-5"),
        ({"answer": "red", "question_type": "count"}, "free-form", "red"),
        ({"answer": "3", "question_type": "open-ended"}, "free-form", "3"),
        ({"answer": [[1, 2], [4, 6]], "question": "When?"}, "temporal grounding", "1 to 2, 4 to 6"),
    ],
)
def test_the_kind_of_problem_follows_from_answer_question_and_columns(row, kind, text):
    record = parsed(COLUMNS | row)
    assert (record.fields["problem_type"], record.solution) == (kind, f"<answer>{text}</answer>")
    assert "question_type" not in row or record.fields["question_type"] == row["question_type"], "rewards get it too"


@pytest.mark.parametrize("answer", ["3,5-8,0", "3,5 s - 8,0 s", "0:03,5-0:08,0", "3,5 to 8", "from 3,5 to 8,0"])
def test_times_with_decimal_commas_are_refused_where_times_are_asked_for(answer):
    with pytest.raises(RecordError, match=r"has decimal commas, and would be words: write .*3\.5"):
        parsed(COLUMNS | {"question": "When does the operator insert the fan?", "answer": answer})
    [hint] = record_hints(parsed(COLUMNS | {"question": "Where is it?", "answer": answer}))
    assert hint.kind == "a span as words"


def test_a_span_by_its_kind_has_no_decimal_commas():
    row = {"question": "What then?", "answer": "3,5-5,1", "problem_type": "temporal grounding"}
    with pytest.raises(RecordError, match=r"decimal commas, and would be words: write 3\.5-5\.1"):
        parsed(row)
    assert parsed(row | {"answer": "3.5-5.1"}).solution == "<answer>3.5 to 5.1</answer>"


def test_words_that_look_like_a_span_are_hinted_at():
    [hint] = record_hints(parsed(COLUMNS | {"question": "Where is it?", "answer": "3.4-5.1"}))
    assert hint.kind == "a span as words"


@pytest.mark.parametrize("answer", ["-5 \u00b0C", "12 mm", "3 km/h", "5cats"])
def test_a_number_with_a_unit_that_is_scored_as_words_is_hinted_at(answer):
    [hint] = record_hints(parsed(COLUMNS | {"question": "How much?", "answer": answer}))
    assert hint.kind == "a number with a unit as words"
    assert list(record_hints(parsed(COLUMNS | {"question": "How much?", "answer": "a lot, 3 times"}))) == []


# ---- spans of time

SPAN = {"video_id": "c.mp4", "sentence": "the block starts"}


def span(**more):
    return read_row(Row("d[0]", "d-0", SPAN | more), Path("/media"), ReadOptions(format="activitynet"))


@pytest.mark.parametrize(
    ("timestamp", "duration", "text", "kinds"),
    [
        ([3.2, 5.9], 6.0, "3.2 to 5.9", []),
        ([3.2, 8.9], 6.0, "3.2 to 6", ["a span beyond the clip"]),
        ([3.2, 8.9], None, "3.2 to 8.9", []),
        ([5.0, 2.0], 6.0, "2 to 5", ["a span turned round"]),
        ([9.0, 2.0], 6.0, "2 to 6", ["a span turned round", "a span beyond the clip"]),
        ([[4, 5], [1, 2]], 6.0, "1 to 2, 4 to 5", []),
        ([[4, 7], [1, 2]], 6.0, "1 to 2, 4 to 6", ["a span beyond the clip"]),
        ([3.2, 8.9], "6.0", "3.2 to 6", ["a span beyond the clip"]),
        ([3.2, 8.9], "short", "3.2 to 8.9", []),
        ([0, 6], 6, "0 to 6", []),
        ("[3.2, 8.9]", "6.0", "3.2 to 6", ["a span beyond the clip"]),
        ("[3.2, 8.9]", "0:06", "3.2 to 6", ["a span beyond the clip"]),
        ([3.2, 8.9], "6 s", "3.2 to 6", ["a span beyond the clip"]),
        ([3.2, 8.9], "short", "3.2 to 8.9", []),
    ],
)
def test_spans_are_within_the_clip_and_in_order(timestamp, duration, text, kinds):
    record = span(timestamp=timestamp, duration=duration)
    assert record.solution == f"<answer>{text}</answer>"
    assert [hint.kind for hint in record_hints(record)] == kinds
    assert record.fields.get("duration") == duration, "rewards get it"
    several = isinstance(timestamp, list) and isinstance(timestamp[0], list)
    assert ("of every time that it happens" in record.messages[-1].text) == several


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        ([7, 8], "after the end of the clip, `duration` 6"),
        ([3, 3], "expected two times, got 3 twice"),
        ([1, 2, 3], "expected start and end"),
        ([], "expected start and end"),
        ([[1, 2], [3]], "expected start and end"),
        ([1, "2"], "end: expected seconds"),
        ("soon", "expected start and end"),
    ],
)
def test_spans_that_are_empty_incomplete_or_beyond_the_clip_are_refused(timestamp, message):
    with pytest.raises(RecordError, match=message):
        span(timestamp=timestamp, duration=6.0)
