"""Functions that compare an answer with a solution: values by hand, and what they refuse of a record."""

import json
import time
from decimal import Decimal

import pytest
from rouge_score.rouge_scorer import RougeScorer

from qwenvl.rewards.functions.actions import list_of
from qwenvl.rewards.functions.answers import affirms, solves
from qwenvl.rewards.functions.choices import letters
from qwenvl.rewards.functions.grounding import boxes_in, spans_in
from qwenvl.rewards.functions.numeric import numbers_in, only_number
from qwenvl.rewards.kinds import KINDS
from qwenvl.rewards.resolve import resolve
from qwenvl.rewards.table import check_problem_type
from qwenvl.rewards.values import inner_values

TWO = "[0, 0, 10, 10] [20, 20, 30, 30]"
ROUGE = (2 / 3 + 1 / 2 + 2 / 3) / 3  # unigrams 2 of 3, bigrams 1 of 2, longest common subsequence 2 of 3

TWO_SPANS = [(3.0, 8.0), (9.0, 12.0)]

BY_HAND = {  # answer, solution, value
    "accuracy": [
        ("(1) a (2) b", "<answer>(1) a (2) b</answer>", 1),
        ("(1) x", "<answer>(1) a (2) b</answer>", 0.5),
        ("(1)(2)(3)", "(1) (2)", 2 / 3),
        ("(2)(3)", "(1) (2)", 1 / 3),
        ("", "(1)", 0),
        ("1", "(1)", 0),  # a bare digit is no action
        ("(1)</answer><answer>(2)", "(2)", 0),  # the first answer counts
        ("( 1 ) (02)", "(1)(2)", 1),
        ("Insert fan; fasten  screw.", "insert fan, fasten screw", 1),
        ("insert fan\nturn", "<answer>insert fan, fasten screw</answer>", 1 / 3),
        *(("insert fan, turn", "1. insert fan\n2. turn", 1), ("1. stage", "1. stage, 2. stage", 0.5)),
        *(("1. insert fan\n2) turn", "insert fan, turn", 1), ("- insert fan\n- turn", "* turn\n* insert fan", 1)),
        *(("1. insert", "1. insert\n2. turn", 0.5), ("1. insert\n2. turn", "1. insert", 0.5), ("5 V", "- 5 V", 0)),
        *(("2. stage", "1. stage", 0), ("1. stage", "1. stage", 1), ("stage", "1. stage", 0)),  # names, and no list
        ("（1）（２）", "(1) (2)", 1),  # full-width forms, as Chinese keyboards give them
        ("装风扇；拧螺丝", "装风扇，拧螺丝", 1),
        *(("dent (2)", "scratch (2)", 0), ("Scratch (2).", "scratch (2)", 1), ("(2)", "scratch (2)", 1)),
        *(("x (2)", "x (2), y", 0.5), ("y, x (2)", "x (2), y", 1), ("(2) lid", "step (2)", 1)),
    ],
    "action_order": [
        ("(1)(3)(2)", "(1)(2)(3)", 1 / 3),  # two substitutions of three
        ("(1)(3)", "(1)(2)(3)", 2 / 3),  # one insertion
        ("(1)(2)(3)(3)", "(1)(2)(3)", 3 / 4),  # one deletion, the longer has four
        ("", "(1)", 0),
    ],
    "multiple_choice": [
        *(("B", "(B)", 1), ("B. x", "B", 1), ("A, C", "C,A", 1), ("A", "A, C", 0), ("cat", "A", 0)),
        *((f"A. left{sign}C. up", "A, C", 1) for sign in (" and ", " / ", " & ", "; ")),
        *(("(A) left (C) up", "A, C", 1), ("(A) left (C) up", "A", 0), ("B. screw (A) fits", "B", 1)),
        *((f"D{sign} A and B", "D", 1) for sign in (".", ":", ")")),
        *((text, text[0], 1) for text in ("D. Both A and B.", "D. All of A, B and C.", "B. Type A, C.")),
        *((text, text[0], 1) for text in ("B. Carl and J. Smith", "B. a part, e. g. a nut", "D. Dr. Lee, J. Smith")),
        *((text, "D", 1) for text in ("D. Both (A) and (B)", "The answer is D (both A and B)", "The answer is D: A.")),
        *(("(D) A, B", "D", 1), ("B. B, A, C", "B", 1), ("A. C", "A", 1)),
        *(("Ｂ", "B", 1), ("（Ａ），Ｃ", "A, C", 1), (r"\boxed{B}", "B", 1), ("Ａ", "Ｂ", 0)),
    ],
    "yes_no": [("Yes.", "yes", 1), ("no", "yes", 0), ("perhaps", "no", 0), ("NO", "<answer>no</answer>", 1)],
    "exact_match": [
        *((" The  Fan.", "the fan", 1), ("the fans", "the fan", 0), ("Ａ１", "a1", 1), ("", "x", 0)),
        *(("5 m²", "5 m2", 0), ("5 ㎡", "5 m²", 1), ("5", ".5", 0), (".5", ".5", 1), ("\u201cfan\u201d", "fan", 1)),
    ],
    "ocr": [
        ("turn left at once", "turn left at once", 1),
        ("turn right at once", "turn left at once", 0.75),  # one of four words is wrong
        ("left", "turn left at once", 0.25),
        ("a b c d e f", "x y", 0),  # three times too long is clipped
        *(("Exit", "exit", 0), ("", "exit", 0), ("No\nentry", "No entry", 1)),
    ],
    "rouge": [
        *(("the cat sat", "The cat ran!", ROUGE), ("三只猫", "三只狗", ROUGE), ("...", "the cat", 0)),
        *(("कीताब", "किताब", 0), ("किताब", "किताब", 1)),  # vowel signs belong to their letters
        *(("red", "red", 1), ("a red", "red", 2 / 3), ("blue", "red", 0)),  # one word has no pair of words
    ],
    "count": [
        *(("3", "3", 1), ("There are 3 cubes.", "<answer> 3 </answer>", 1), ("3.0", "3", 1), ("4", "3", 0)),
        *(("\N{MINUS SIGN}3", "3", 0), ("\N{MINUS SIGN}3", "-3", 1)),
        *(("\N{EN DASH}3", "-3", 1), ("\N{EN DASH}3", "3", 0), ("- 3", "3", 0), ("- 3", "-3", 0)),
        *(("3k", "3", 0), ("3 k", "3", 0), ("3 Million", "3", 0), ("3 km", "3", 1), ("3kg", "3", 1)),
        *(("2 dozen", "2", 0), ("3 Mio.", "3", 0)),
        *(("3 M", "3", 0), ("3\u4e07", "3", 0), ("3 million", "3", 0), ("step-3", "3", 1), ("step-3", "-3", 0)),
        *(("minus 3", "-3", 1), ("negative 3 cubes", "3", 0)),
        *(("2 or 3", "3", 0), ("three", "3", 0), ("", "3", 0)),
    ],
    "numeric": [
        *(("0.3000001", "0.3", 1), ("0.30001", "0.3", 0), (".5 m", "0.5", 1), ("-.5", "0.5", 0), ("-.5", "-0.5", 1)),
        *(("1,250", "1250", 1), ("0,125", "125", 0), ("0,125", "0.125", 0), ("item.5", "5", 0), ("...5", "5", 0)),
    ],
    "numeric(tolerance=0.01)": [  # absolute up to 1, then 1 percent
        *(("0.51", "0.5", 1), ("0.512", "0.5", 0), ("202", "200", 1), ("203", "200", 0), ("x", "200", 0)),
    ],
    "regression": [
        *(("10", "10", 1), ("9", "10", 0.9), ("-10", "10", 0), ("25", "10", 0)),
        *(("0", "0", 1), ("1", "0", 0), ("ten", "10", 0)),
    ],
    "box_iou": [
        ("[0, 0, 10, 10]", "[0, 0, 10, 10]", 1),
        ("[10, 10, 0, 0]", "(0,0),(10,10)", 1),
        ("[5, 0, 15, 10]", "[0, 0, 10, 10]", 50 / 150),
        ("[20, 20, 30, 30] [0, 0, 10, 10]", TWO, 1),  # any order
        ("[0, 0, 10, 10]", TWO, 0.5),  # one missed
        (TWO + "[50, 50, 60, 60]", TWO, 2 / 3),  # one extra
        ("none", TWO, 0),
        # Greedy matching gives the first box its best partner: .8 + .375. The best: .625 + .75.
        ("[0, 0, 10, 10] [0, 0, 10, 6]", "[0, 0, 10, 8] [0, 0, 10, 16]", 1.375 / 2),
        *(("[3, 3, 3, 3]", "[3, 3, 3, 3]", 1), ("[3, 0, 3, 9]", "[3, 0, 3, 9]", 1)),  # the same point, and line
        *(("[3, 3, 3, 3]", "[4, 4, 4, 4]", 0), ("[3, 3, 3, 3]", "[0, 0, 9, 9]", 0)),
    ],
    "box_giou": [
        ("[0, 0, 10, 10]", "[0, 0, 10, 10]", 1),
        ("[20, 0, 30, 10]", "[0, 0, 10, 10]", -1 / 3),  # apart by their own width: hull 30 x 10, union 200
        ("[0, 0, 10, 10]", TWO, 0),  # (1 - 1) / 2
        ("none", TWO, -1),
        *(("[3, 3, 3, 3]", "[3, 3, 3, 3]", 1), ("[3, 0, 3, 9]", "[3, 0, 3, 9]", 1)),
        *(("[3, 3, 3, 3]", "[4, 4, 4, 4]", 0), ("[3, 3, 3, 3]", "[0, 0, 9, 9]", 0)),  # union 0; hull 81, union 81
    ],
    "box_iou(units=thousandths)": [("[0, 0, 500, 500]", "[0, 0, 320, 240]", 1)],
    "temporal_iou": [
        ("3 to 8", "3 to 8", 1),
        ("0:03 - 0:08", "<answer>3 to 8</answer>", 1),
        ("0 to 10", "5 to 10", 0.5),
        ("0 to 6", "4 to 10", 0.2),
        ("8 to 3", "3 to 8", 0),
        ("0 to 2, 4 to 6", "1 to 5", 1 / 3),  # common 1 + 1, together 6
        ("0 to 5, 0 to 5", "0 to 10", 0.5),  # the same second named twice counts once
    ],
    "temporal_iou(boundary=True)": [  # of 20 s
        ("2 to 8", "4 to 10", 0.5 * 0.9 * 0.9),
        ("4 to 100", "4 to 10", 0),  # an end that is off by more than the whole clip
    ],
    "by_problem_type(numeric_tolerance=0.2)": [("3", "3.5", 1)],
    "by_problem_type(temporal_iou_boundary=True)": [("2 to 8", "4 to 10", 0.5 * 0.9 * 0.9)],
}
PROBLEM_TYPES = {"by_problem_type(numeric_tolerance=0.2)": "numerical"}
FIELDS = {"duration": 20.0, "width": 640, "height": 480}


def value_of(name, answer, solution, **columns):
    text = f"<think>(9) yes 0 to 9</think><answer>{answer}</answer>"
    [value] = inner_values(resolve(name), [text], {"solution": [solution], **{k: [v] for k, v in columns.items()}})
    return value


@pytest.mark.parametrize("name", BY_HAND)
def test_each_reward_gives_the_values_of_its_table(name):
    kind = PROBLEM_TYPES.get(name, "temporal grounding")
    for answer, solution, value in BY_HAND[name]:
        assert value_of(name, answer, solution, problem_type=kind, **FIELDS) == pytest.approx(value), answer
    columns = {"solution": [solution], "problem_type": [kind], **{field: [each] for field, each in FIELDS.items()}}
    [without_block] = inner_values(resolve(name), [solution.removeprefix("<answer>")], columns)
    assert without_block == (-1 if name == "box_giou" else 0)


LISTED = """<video>
Which steps?
(1) Insert the fan.
(2) insert the fan cable
(3) Hold the lid, and turn it
(4) non of these"""


@pytest.mark.parametrize("sign", [";", ",", " ;", "."])
def test_signs_behind_the_items_of_a_list_are_no_part_of_their_names(sign):
    prompt = [{"role": "user", "content": f"Which?\n(1) take the lid{sign}\n(2) put the fan{sign}"}]
    solution = f"(1) take the lid{sign} (2) put the fan{sign}"
    for answer in ("take the lid, put the fan", "take the lid; put the fan;", "(1)(2)", solution):
        columns = {"solution": [solution], "prompts": [prompt]}
        assert inner_values(resolve("accuracy"), [f"<answer>{answer}</answer>"], columns) == [1.0], answer


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("insert the fan", "(1)", 1.0),
        ("insert the fan, then insert the fan cable", "(1)(2)", 1.0),
        *((text, "(1)(2)", 1.0) for text in ("**1**, **2**", "`1`, `2`", "- 1\n- 2", '["1", "2"]', r"\boxed{1, 2}")),
        *((text, "(1)(2)", 1.0) for text in ('{"steps": [1, 2]}', "$1, 2$", "* 1\n* 2")),
        ("[1] insert the fan\n[2] insert the fan cable", "(1)(2)", 1.0),
        ("insert the fan，然后 insert the fan cable", "(1)(2)", 1.0),
        ("1. insert the fan\n2. insert the fan cable", "(1)(2)", 1.0),
        ("1) insert the fan 2) insert the fan cable", "(1)(2)", 1.0),
        ("insert the fan -> insert the fan cable", "(1)(2)", 1.0),
        ("First insert the fan → finally insert the fan cable", "(1)(2)", 1.0),
        *((f"insert the fan{sign}insert the fan cable", "(1)(2)", 1.0) for sign in (" \u2013 ", "/", "|", "\u3001")),
        ('["insert the fan", "insert the fan cable"]', "(1)(2)", 1.0),
        ("wait\u3001insert the fan", "(1)", 0.5),
        ("insert the fan\u093e", "(1)", 1 / 2),  # a vowel sign is no sign between names
        ("1. wait\n2. insert the fan", "(1)", 0.5),
        *(("Step 1: insert the fan", "(1)", 1.0), ("1 - insert the fan", "(1)", 1.0), ("1 insert the fan", "(1)", 1.0)),
        *(("Step 2: insert the fan", "(1)", 0.5), ("action 9 insert the fan", "(1)", 0.5)),  # of another step
        ("wait → wait more → insert the fan", "(1)", 1 / 3),
        ("insert the fan cable", "(1)", 0.0),  # the longest name
        ("insert the fans", "(1)", 0.0),  # another word
        ("Hold the lid, and turn it and insert the fan", "(1)(3)", 1.0),  # a name with a comma in it
        ("insert the fan", "(1)(2)", 1 / 2),
        ("insert the fan, take the box", "(1)(2)", 1 / 3),  # one of two, and one that is wrong
        ("the operator does not insert the fan", "(1)", 1 / 2),
        ("actions", "(1)", 0.0),
        ("(1) insert the fan, insert the fan cable", "(1)(2)", 1 / 2),  # numbers alone count where there are some
        ("", "(1)", 0.0),
    ],
)
def test_an_answer_without_numbers_is_read_by_the_names_of_the_list(answer, solution, score):
    prompt = [{"role": "system", "content": "(1) be brief"}, {"role": "user", "content": LISTED}]
    for name in ("accuracy", "by_problem_type"):
        assert value_of(name, answer, solution, prompts=prompt, problem_type="actions") == pytest.approx(score)
    if "(" not in answer:
        assert value_of("accuracy", answer, solution) == 0.0, "no prompt, no list"


@pytest.mark.parametrize(
    "answer",
    [
        "screw, first screw; and gate",
        "First screw, 1. screw then and gate",
        "1. first screw\n2. screw and and gate",
    ],
)
def test_a_name_may_begin_as_what_stands_between_names_does(answer):
    prompt = [{"role": "user", "content": "Which?\n(1) screw\n(2) first screw\n(3) and gate\n(4) 1. stage"}]
    assert value_of("accuracy", answer, "(1) (2) (3)", prompts=prompt) == 1.0
    assert value_of("accuracy", answer, "(1)", prompts=prompt) == pytest.approx(1 / 3)
    assert value_of("accuracy", "1. 1. stage", "(4)", prompts=prompt) == 1.0


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("(1) insert the fan (3) hold the lid", "1, 3", 1.0),
        ("(1)", "1 and 3", 1 / 2),
        ("(1) (3)", "Steps 1; 3.", 1.0),
        ("(1) (3)", "1 -> 3", 1.0),
        ("(1) (3)", "[1, 3]", 1.0),
        ("(1) (3)", "1-3", 0.0),  # 1 to 3, for all that is known
        ("(1) (2)", "insert the fan, insert the fan cable", 1.0),
        ("(3) hold the lid, and turn it", "Hold the lid, and turn it", 1.0),
        ("(2)", "1", 0.0),
        ("1, 3", "1, 3", 1.0),
        ("1, 3", "1 and 3", 1.0),
        ("1, 3", "(1) (3)", 1.0),
        ("1, 3, 9", "(1) (3)", 2 / 3),
        ("1-3", "(1) (3)", 0.0),
        ("(1) (3)", "1.0, 3.0", 1.0),
        ("insert the fan, then insert the fan cable", "insert the fan -> insert the fan cable", 1.0),
        ("insert the fan, wait", "Insert the fan. Insert the fan cable.", 1 / 3),
        ("insert the fan", "insert the fan, wait", 1 / 2),
        ("(1)", "insert the fan, wait", 0.0),  # and this solution has a hint
        ("(1)", "1.5", 0.0),
        ("(5)", "5", 0.0),  # no number of the list: a count, for all that is known
    ],
)
def test_a_solution_by_bare_numbers_or_names_of_the_list_is_that_of_answers_by_number(answer, solution, score):
    prompt = [{"role": "user", "content": LISTED}]
    assert value_of("accuracy", answer, solution, prompts=prompt) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("(3) 1/2", "1/2", 1.0),
        ("(3)", "1/2", 1.0),
        ("(1) full (2) 3/4", "1/2", 0.0),
        ("1/2", "(3) 1/2", 1.0),
        ("3/4", "(3) 1/2", 0.0),
        ("1/2, full", "(1) (3)", 1.0),
        ("3", "(3)", 0.0),  # no name of the list
    ],
)
def test_a_name_that_is_made_of_numbers_is_that_step_and_no_numbers(answer, solution, score):
    prompt = [{"role": "user", "content": "How full?\n(1) full\n(2) 3/4\n(3) 1/2\n(4) 1/4"}]
    assert value_of("accuracy", answer, solution, prompts=prompt) == pytest.approx(score)


def test_words_between_numbers_are_no_names_with_a_number_behind():
    solutions = (
        *("(1) pick it, and (3) screw it", "First (1), then (3)", "Steps: (1) pick it; finally (3) screw it"),
        *("Answer: (1) (3)", "The operator performs (1) and (3).", "Steps performed: (1), (3)", "\u2460\u2462"),
    )
    for solution in solutions:
        assert value_of("accuracy", "(1) pick it (3) screw it", solution) == 1.0, solution


def test_the_thinking_of_a_solution_is_no_part_of_it():
    assert value_of("accuracy", "(2)", "<think>Not (1).</think>\n(2) insert the fan") == 1.0
    assert value_of("count", "3", "<think>2 and 1</think>3") == 1.0


def test_a_list_may_begin_where_its_clip_stands():
    listed = {"take the lid": 1, "insert the fan": 2}
    assert list_of([{"role": "user", "content": "<video>(1) take the lid\n(2) insert the fan\nWhich?"}]) == listed


@pytest.mark.parametrize(
    "lines", ["(1): take it;\n(2): put it", "(1) - take it,\n(2) - put it", "(1) take it; and\n(2) put it<video>"]
)
def test_signs_around_the_names_of_a_list_are_no_part_of_them(lines):
    assert list_of([{"role": "user", "content": lines}]) == {"take it": 1, "put it": 2}


def test_an_ambiguous_list_of_steps_names_no_step():
    for prompt in ("(1) a\n(1) b", "(1) a\n(2) A.", "(1) a\n(2)", "(1) a (2) b\n(3) c", "(1) a", "which?"):
        assert list_of([{"role": "user", "content": prompt}]) == {}


def test_kinds_of_problems_are_scored_row_by_row():
    rows = [
        ("multiple choice", "B. a lid", "<answer>B</answer>", 1.0),
        ("numerical", "3.5", "<answer>3</answer>", 0.0),
        ("regression", "4", "<answer>3</answer>", 0.75),
        ("OCR", "no entry today please", "<answer>no entry</answer>", 0.5),
        ("open-ended", "a red lid", "<answer>a red lid</answer>", 1.0),
        ("yes_or_no", "no", "<answer>No, it does not.</answer>", 1.0),
        ("temporal grounding", "0 to 4", "<answer>2 to 4</answer>", 0.5),
        ("Labels", "insert the fan, close the lid", "<answer>close the lid</answer>", 0.5),
        ("multiple choice", "A", "no answer", 0.0),
        ("mcq", "A", "<answer>A</answer>", 1.0),  # as files call it
    ]
    kinds, solutions, texts, scores = (list(column) for column in zip(*rows, strict=True))
    columns = {"solution": solutions, "problem_type": kinds, "duration": [None] * len(rows)}
    assert inner_values(resolve("by_problem_type"), texts, columns) == pytest.approx(scores)
    with pytest.raises(ValueError, match="got 'riddle'"):
        value_of("by_problem_type", "B", "B", problem_type="riddle")
    known = check_problem_type("B", {"problem_type": "?"})
    assert [kind.name for kind in KINDS if kind.name not in known] == []


def test_rouge_agrees_with_the_library():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    texts = ["a man opens the door and leaves", "the man, who leaves, opens a door", "door door door", "nothing alike"]
    for truth in texts:
        for text in texts:
            expected = sum(score.fmeasure for score in scorer.score(truth, text).values()) / 3
            assert value_of("rouge", text, truth) == pytest.approx(expected)


IN_CHINESE = [{"role": "user", "content": "哪些?\n(1) 取盖\n(2) 装风扇\n(3) 盖"}]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        *((text, 1) for text in ("取盖和装风扇", "先取盖，然后装风扇", "首先取盖，再装风扇。", "取盖、装风扇", "1和2")),
        *((text, 1) for text in ("1.取盖\n2.装风扇", "1、取盖\n2、装风扇", "步骤1、步骤2")),
        ("步骤1：取盖\n步骤2：装风扇", 1),
        ("第1步：取盖\n第2步：装风扇", 1),
        ("取盖板", 0),  # another name
    ],
)
def test_names_and_numbers_in_chinese_have_no_spaces_around_them(answer, score):
    assert value_of("accuracy", answer, "(1) (2)", prompts=IN_CHINESE) == score


@pytest.mark.parametrize("answer", ["1.open\n2.close", "1、open\n2、close", "-open\n-close", "•open\n•close"])
def test_signs_of_a_list_need_no_space(answer):
    assert value_of("accuracy", answer, "open, close") == 1


READINGS = [
    *((letters, text, {"B"}) for text in ("B", "b", "(B)", "**B**", "B. the red fan", "The answer is B", r"\boxed{B}")),
    *((letters, text, {"B"}) for text in (r"$\boxed{\text{(B)}}$", r"The answer is \boxed{B}.")),
    *((letters, text, {"A", "C"}) for text in ("A, C", "AC", "A. fan\nC. screw", r"\boxed{A} and \boxed{C}")),
    *((letters, text, {"D"}) for text in ("D. Both options A and B", "The answer is D because options A and B fail")),
    *((letters, text, set()) for text in (r"\boxed{a cat}", r"\boxed{B", "a cat", "A cat", "BED", "")),
    (letters, "answer: (D)", {"D"}),
    *((letters, text, {"B"}) for text in ("ANSWER: B", "Final Answer: $B$", r"The answer is $\boxed{B}$.", "选项B")),
    *((letters, text, {"A"}) for text in ("The answer is option A, not option B", "OPTION A")),
    (letters, "NOT AN OPTION", set()),
    *((letters, text, {"B"}) for text in ("**B. the fan**", "`B`", '"B"', "b) the fan", "The answer is b.")),
    *((letters, text, {"A", "C"}) for text in ("答案:A,C", "答案是A、C", "答案是A和C")),
    *((letters, text, set()) for text in ("Option B is incorrect.", "option (B) is not right")),
    (letters, "The correct answer is B. Option A is wrong.", {"B"}),
    *((letters, text, set()) for text in ("A. cat B. dog C. bird", "A) a cat B) a dog C) a bird D) a fish")),
    *((letters, text, {"B"}) for text in ("B. Vitamin D. Because of it", "B. Carl and J. Smith")),
    *((letters, text, {"B"}) for text in ("B。", "B.风扇", "B、风扇", "答案是B", "The answer is B, I am sure")),
    *((letters, text, set()) for text in ("the answer is a man", "i.e. a fan", "Answer: A man opens it.")),
    *((letters, text, {"A"}) for text in ("the answer is A because it fits", "Answer: A", "The answer is (A) man")),
    (letters, "A、C", {"A", "C"}),
    *((letters, text, set()) for text in ("Not option B", "It isn't option B", "Every option except option B")),
    *((letters, text, set()) for text in ("Option B cannot be right", "Eliminate option B", "Answer B doesn't fit")),
    *((letters, text, {"B"}) for text in ("The answer should be B", "{B}")),
    *((letters, text, {"B"}) for text in (r"\(\boxed{\text{(B)}}\)", '{"answer": "B"}', "#### B", "_B_", "‘B’")),
    *((letters, text, {"B"}) for text in ("B\nthe man walks", "B\n\nBecause it moves", "(B)right", "B.right")),
    *((letters, text, {"B"}) for text in ("选择B", "B选项", "正确选项为B", "我选B", "B!", 'The answer is "B"')),
    *((letters, text, {"A"}) for text in ("The answer is A because option B is blue", "Option A, since C is red")),
    *((letters, text, {"A", "C"}) for text in ("答案:AC", "选AC", "A和C", "Both A and C", "A and C are correct")),
    *((letters, text, {"A", "C"}) for text in ("A+C", "- A\n- C", '["A", "C"]', "Options A and C")),
    *((letters, text, {"B"}) for text in ("Option B is most likely", "Option B is supported by the video")),
    (letters, "He falls because he slips. Answer: C", {"C"}),
    (letters, "B is the correct answer because A is wrong", {"B"}),
    *((letters, text, {"A", "C"}) for text in ("A. because it moves\nC. because it turns", "A.\nleft\nC.\nup")),
    (letters, '{"answer":' + " " * 9_000 + "x", set()),
    *((letters, text, {"A", "C"}) for text in ("A\nand C", "A\n\nC")),
    *((letters, text, set()) for text in ("e.g.", "E.g. a cat", "A.left B.right C.up")),
    *((letters, text, {"B"}) for text in ("B - left", "(B) – the left one", "B (left)", "B because it moves")),
    *((letters, text, {"B"}) for text in ("B is the answer.", "The correct letter is B", "B is my answer")),
    *((letters, text, {"B"}) for text in ("I choose B", "It's B.", "B is the correct answer.", "B, as A is up")),
    *((letters, text, {"B", "C"}) for text in ("['B','C']", '["B", "C"]', "(B)(C)", "{B, C}")),
    *((letters, text, set()) for text in ("A - left, B - right", "A - B", "A is correct, but B is better")),
    *((letters, text, {"B"}) for text in ("The answer is:\nB", "Answer:\n\n**B**", "**Final Answer**\n\n$\\boxed{B}$")),
    *((letters, text, {"A", "C"}) for text in ("Answer:\nA\nC", "The correct answers are:\n\n(A)\n(C)")),
    (letters, "Let's look at the options:\nA. red\nB. blue\nC. green\n\nThe correct option is B.", {"B"}),
    *((letters, text, {"B"}) for text in ("A. left\nB. right\nAnswer: B", "The answer is B. The choice A is blue.")),
    *((letters, text, {"B"}) for text in ("The video shows a man.\n\n**B**", "B The man", "B, The man")),
    *((letters, text, {"A"}) for text in ("A The man walks", "A, The man", "A is right, B is wrong")),
    *((letters, text, set()) for text in ("A Man", "A Man Called Otto", "I think so", "So A man walks")),
    *((letters, text, set()) for text in ("A\n\nThe man\n\nB", "I eliminate\nB", "The wrong option is:\nB")),
    *((letters, text, set()) for text in ("B The man\nA The woman", "B The man and A")),
    (letters, "B. The correct answer is A man", {"B"}),
    *((letters, text, {"B"}) for text in ("I think it's B", "Therefore, B", "The letter is B", "Selected: B")),
    *((letters, text, {"B"}) for text in ("Option A. No, the answer is B.", "The answer is A. No: the answer is B")),
    (letters, "The answer is A, I think.\nHowever, the correct option is B.", {"A", "B"}),
    *((letters, text, set()) for text in ("We can rule out:\n\nB", "Wrong answer: A", "错误答案:A")),
    (letters, "The incorrect answer is A", set()),
    (letters, "The incorrect option is A.", {"A"}),  # where the question is which one is incorrect
    (letters, "The answer is A. Therefore option B is the correct answer.", {"A", "B"}),
    (letters, "The answer is A. Wait. Final choice: B.", {"A", "B"}),
    *((letters, text, {"B"}) for text in ("B, not A", "B (not A)", "B rather than A", "Not A but B")),
    (letters, "A is wrong, B is right", {"B"}),
    *((letters, text, {"B"}) for text in ("I choose B, not A or C.", "I choose B instead of option A.")),
    (letters, "B, not option A.", {"B"}),
    *((letters, text, {"A", "C"}) for text in ("The answer is AC.", "A and C, but not option B.")),
    (letters, "The answer is BED", set()),
    *((affirms, text, True) for text in ("There is no one. The answer is: yes", "It has no lid. The answer is Yes!")),
    *((affirms, text, True) for text in ("**Yes**, there is no doubt.", "There is no one, so the answer is **yes**.")),
    (affirms, "The answer can't be yes", None),
    (affirms, "Yes, not no", True),
    (letters, "The correct answer is B, not A, C, or D.", {"B"}),
    (letters, "First I thought the answer is A, but the answer is B.", {"B"}),
    *((letters, text, set()) for text in ("Options A and B are wrong.", "Option B was clearly wrong")),
    *((letters, text, {"B"}) for text in ("【答案】B", "B正确", "选项B正确", "B项", "故选B", "选B不选A")),
    *((letters, text, set()) for text in ("不选B", "不是B")),
    *((affirms, text, True) for text in ("Yes", "Yes, there is no doubt", "There is no man, so the answer is yes")),
    *((affirms, text, None) for text in ("The answer isn't yes", "never yes", "The answer is yes or no")),
    *((affirms, text, True) for text in ("Yes. The answer is no longer unclear", "Yes, I cannot say no")),
    *((affirms, text, False) for text in ("no.", "I say no")),
    *((affirms, text, None) for text in ("maybe yes, maybe no", "nothing", "eyes", "")),
    *((affirms, text, None) for text in ("yes/no", "yes or no", "not yes", "yes and no", "No, yes.", "yes no")),
    *((affirms, text, True) for text in ("yes, yes", "Yes, no part is missing")),
    *((spans_in, text, [(12.0, 20.0)]) for text in ("12 to 20", "from 0:12 - 0:20")),
    (spans_in, "1:02:03.5–1:02:10", [(3723.5, 3730.0)]),
    *((spans_in, text, []) for text in ("0:01:500 to 0:02:000", "1:75 to 2:00")),
    (spans_in, "<3-5> and 7s to 9s", [(3.0, 5.0), (7.0, 9.0)]),
    (spans_in, "between 1:05 and 70 seconds", [(65.0, 70.0)]),
    (spans_in, "- 3 to 8\n- 1 min to 2 min", [(3.0, 8.0), (60.0, 120.0)]),
    (spans_in, "2 to 1.5E+3 or 12e-2 to 4", [(2.0, 4.0)]),
    *((spans_in, text, []) for text in ("1e5", "3", "3, 4, 5")),
    *((spans_in, text, [(80.0, 100.0)]) for text in ("1m20s to 1m40s", "1 min 20 s - 1 min 40 s", "1'20\" - 1'40\"")),
    (spans_in, "from 1 minute and 20 seconds to 1 minute 40 seconds", [(80.0, 100.0)]),
    (spans_in, "1分20秒到1分40秒", [(80.0, 100.0)]),
    *((spans_in, text, [(90.0, 120.0)]) for text in ("1.5 min - 2 min", "1.5-2 minutes")),
    *((spans_in, text, [(80.0, 120.0)]) for text in ("1:20 to 2:00 minutes", "1:20 min to 2:00 min")),
    *((spans_in, text, [(90.0, 125.0)]) for text in ("1 min 30 to 2 min 5", "1 min 30 - 2 min 5", "1m30 to 2m5")),
    (spans_in, "1 h 30 to 2 h", []),  # of what?
    (spans_in, "0.1234567890123456 to 1.5", [(0.1234567890123456, 1.5)]),
    *((spans_in, text, TWO_SPANS) for text in ("1. 3 to 8\n2. 9 to 12", "1) [3, 8]\n2) [9, 12]", "(1) 3-8\n(2) 9-12")),
    *((spans_in, text, TWO_SPANS) for text in ("[[3, 8], [9, 12]]", "3, 8, 9, 12", "- 3, 8\n- 9, 12")),
    (spans_in, "3 to 8 and 9 to 12", TWO_SPANS),
    (spans_in, '{"start": 3, "end": 8}, {"start": 9, "end": 12}', TWO_SPANS),
    (spans_in, '{"event": 1, "start": 3, "end": 8}, {"event": 2, "start": 9, "end": 12}', []),
    *((spans_in, text, []) for text in ("the 2 men jump from 3 to 8, 1", "(1) 3, 8 (2) 9, 12", "2 men: 3 to 8, 9")),
    (spans_in, "starts at 3 s and ends at 8 s", [(3.0, 8.0)]),
    *((spans_in, text, []) for text in ("starts at 3 and lasts 5 s", '{"start": 3, "duration": 5}', "at 3 s for 5 s")),
    *((spans_in, text, []) for text in ("3 s (5 s)", "3 (5)", "3 +5")),
    (spans_in, "for the man: from 3 to 8", [(3.0, 8.0)]),
    (spans_in, "1 h to 1 h 2 min", [(3600.0, 3720.0)]),
    *((spans_in, text, [(0.5, 1.5)]) for text in ("500 ms to 1500 ms", "500-1500 ms")),
    (spans_in, "00:01:20,500 --> 00:01:40,000", [(80.5, 100.0)]),
    *((spans_in, text, []) for text in ("3,5 to 8,0", "3,5, 8,0", "0:12,5 - 0:20,5", "1:20 h - 1:40 h")),
    *((spans_in, text, []) for text in ("frames 12 to 20", "12 to 20 frames", "10 % to 20 %", "5k to 6k")),
    # Separators of thousands are no separators of numbers.
    *((spans_in, text, []) for text in ("1,234.5-1,250.0", "[1,234.5,1,250.0]", "1,234 to 1250.5", "1.234,5-1.250,0")),
    *((spans_in, text, []) for text in ("1 234.5 - 1 250", "1\u202f234 to 1\u202f250", "1'234.5-1'250", "1\u2019234")),
    # Decimal commas, whatever stands between the numbers.
    *((spans_in, text, []) for text in ("9,3 bis 130,7", "3,5 | 8,0", "36,2; 80,1", "20,5,30,7", "3,0...5,0", "3,5/8")),
    (spans_in, "[0,100],[200,300]", [(0.0, 100.0), (200.0, 300.0)]),
    (spans_in, "3.5,8.0,9.5,12.0", [(3.5, 8.0), (9.5, 12.0)]),
    *((spans_in, text, [(3.0, 7.5)]) for text in ("3...7.5", "3..7.5", "3 through 7.5", "0:03,0:07.5")),
    *((spans_in, text, [(90.0, 120.0)]) for text in ("1.5 min,2 min", "1 min 30 s...2 min", "1分30秒,2分")),
    *((spans_in, text, []) for text in ("0:26:000 - 0:30:000", "0:008 to 0:012", ".5 to 1.5", "1_234 - 1_250")),
    *((spans_in, text, []) for text in ("12 frames\u523020 frames", "frame 12\u5230frame 20")),
    *((spans_in, text, [(100.0, 250.0)]) for text in ("[100,250]", "[100, 250]", "100 250", "100 to 250")),
    *((spans_in, text, [(3.0, 5.0)]) for text in ("(3,5)", "[3,5]", "3to5", "3s-5s")),
    (spans_in, "0 min. 12 sec. to 0 min. 20 sec.", [(12.0, 20.0)]),
    *((spans_in, text, [(80.0, 100.0)]) for text in ("From 1m20 to 1m40.", "1m20.0 to 1m40.0", "1m20-1m40: a man")),
    *((spans_in, text, [(3.0, 8.0)]) for text in ("3-8: a man opens it", "0:03-0:08: a man")),
    *((spans_in, text, [(80.0, 100.0)]) for text in ("1m:20s to 1m:40s", "1 min:20 s - 1 min:40 s")),
    *((spans_in, text, []) for text in ("1h30 - 1h40", "-5 to 8", "[-1, 8]", "3-8 (min)", "start (min): 3, end: 8")),
    *((spans_in, text, []) for text in ('{"start_frame": 1, "end_frame": 3}', '{"frames": [1,3]}', "frames from 3")),
    *((spans_in, text, []) for text in ("12-30 (frames)", "12-30 in frames", '{"start_ms":3,"end_ms":8}', "10-20 (%)")),
    *((spans_in, text, [(3.0, 8.0)]) for text in ("3 -8", "- 3 to 8", '{"end": 8, "start": 3}')),
    *((spans_in, text, [(3.0, 8.0)]) for text in ('{"start":3,"end":8.0}', "Start:3, End:8", "时间:3秒-8秒", "s:3-8")),
    (spans_in, "10 to 20 and 1 min 30 s to 2 min", [(10.0, 20.0), (90.0, 120.0)]),
    # 65 to 70 s, or 65 s and 10 s: which unit is meant is not said.
    *((spans_in, text, []) for text in ("1 min 5-10 s", "1 min 5 to 10", "2 min - 30 s", "1 h to 30 s")),
    *((spans_in, text, []) for text in ("45 to 1 min 10 s", "from 50 to 2 min", "45.5-1m10s", "1:12-15", "10:05-12 s")),
    (spans_in, "1:12 to 75", [(72.0, 75.0)]),
    (spans_in, "1 min 30 to 100 s", [(90.0, 100.0)]),
    *((spans_in, text, [(60.0, 120.0)]) for text in ("between 1 and 2 minutes", "1 min to 2 min.")),
    *((spans_in, text, []) for text in ("frames: 12-20", "frame number 12 to frame number 20", "frame #1-frame #2")),
    *((spans_in, text, []) for text in ("frame_12 to frame_20", "12\u5e27-20\u5e27", "12 percent to 20 percent")),
    *((spans_in, text, []) for text in ("[1, 2] min", "minutes: 1-2", "minute 1 to minute 2", "[5, 9] ms", "1½-2 min")),
    *((spans_in, text, [(60.0, 120.0)]) for text in ("1 ... 2 min", "1 through 2 minutes", "1 to about 2 minutes")),
    *((spans_in, text, []) for text in ("| 1 | 3 | 8 |\n| 2 | 9 | 12 |", "1\t3\t8\n2\t9\t12", "[1] 3, 8")),
    *((spans_in, text, TWO_SPANS) for text in ("3, 8; 9, 12", "3 8\n9 12")),
    *((spans_in, text, [(3.0, 8.0)]) for text in ("t1 = 3, t2 = 8", "in the frame from 3 to 8")),
    (spans_in, '{"start":"0:03","end":"0:08"}', [(3.0, 8.0)]),
    (spans_in, json.dumps({"start": 3, "end": 8}, indent=4), [(3.0, 8.0)]),
    (numbers_in, "there are 3 cubes.", [Decimal("3")]),
    (numbers_in, "-2.50 and +4", [Decimal("-2.50"), Decimal("4")]),
    (numbers_in, "2², 3½ and 12", [Decimal("12")]),
    (numbers_in, "温度为-5℃, 约−3.5米, 是.25, 共3个", [Decimal("-5"), Decimal("-3.5"), Decimal("0.25"), Decimal("3")]),
    (numbers_in, "step-4", [Decimal("4")]),
    (only_number, r"\boxed{1{,}450}", Decimal(1450)),
    *((only_number, text, Decimal("3e8")) for text in ("3×10⁸", "3 x 10^8", r"3 \times 10^{8}", "300,000,000 m/s^2")),
    *((only_number, text, Decimal("-5")) for text in ("-$5", "−€5", "-£5.00", "-5 cm^2", r"-5 \text{ m}^{-1}")),
    *((only_number, text, None) for text in ("2³ + 1", "√3 + 1", "5 ½", "5 ± 1", "5 +/- 1", "x^3", "3百", "3 × 4")),
    *((only_number, text, None) for text in (r"3\sqrt{2}", "3√2", r"2\log 3", "3 cm - 5", "3% – 5%", "3  - 5")),
    (only_number, "- 3\n- 5", None),
    *((only_number, text, None) for text in ("π/4", r"\frac{\pi}{4}", "2π/3", "1/√2", "1½ to 2", "±5", r"\pm 5")),
    *((only_number, text, None) for text in ("3萬", "3億", "5 Millionen", "3 млн", "3 and a half", "1..5", "3n^2")),
    *((only_number, text, Decimal("-5")) for text in ("-US$5", r"-\$5", "minus $5", "-(5)", "零下5度", "负5")),
    *((only_number, text, Decimal("-5")) for text in ("$-$5", "{-}5", r"-\,5", r"-\mathrm{5}", r"\textminus5")),
    (only_number, "-**5**", Decimal("-5")),
    *((only_number, text, Decimal("5")) for text in ("- $5", "5 cm²", "5!", "(5)", "5 halls", "5 miles")),
    *((only_number, text, Decimal("5")) for text in ("-> 5", "5 quarters", "5百分点", "5字")),
    (numbers_in, r"sqrt(3), √9, \sqrt{5}, 2π, 3 pi and 12 pins", [Decimal("12")]),
    (letters, "The answer is A or B", {"A", "B"}),
    (letters, "The answer is A, B, C, D.", {"A", "B", "C", "D"}),
    (letters, "the answer is (A), (B), or (C)", {"A", "B", "C"}),
    (letters, "The answer is A, because B is wrong", {"A"}),
    (numbers_in, "\N{MINUS SIGN}2.50", [Decimal("-2.50")]),
    (numbers_in, "1,234,567.5", [Decimal("1234567.5")]),
    (numbers_in, "1,2", [Decimal("1"), Decimal("2")]),
    *((numbers_in, text, [number]) for text, number in (("2e-3", Decimal("0.002")), ("50%", Decimal("50")))),
    *((numbers_in, text, []) for text in ("three", "9" * 31, "0." + "1" * 31)),  # too long to be a number
]


def test_answers_are_read_as_the_table_of_readings_says():
    for read, text, found in READINGS:
        assert read(text) == found, (read.__name__, text)
    boxes = 'x [1, 2, 3, 4], {"bbox_2d": [ 5.5,6,7,8 ]} <|box_start|>(30,40),(10,20)<|box_end|> [1, 2] [1, 2, 3, 4, 5]'
    assert boxes_in(boxes).tolist() == [[1, 2, 3, 4], [5.5, 6, 7, 8], [10, 20, 30, 40]]
    assert boxes_in("none").shape == (0, 4)
    assert boxes_in(json.dumps([{"bbox_2d": [1, 2, 3, 4]}], indent=4)).tolist() == [[1, 2, 3, 4]]


CHOICE, PIXELS = {"problem_type": "multiple choice"}, {"width": 640, "height": 480}
CHECKS = [  # function, solutions and fields that it can compare with, those that it cannot, and why
    ("accuracy", [("<answer>(1)</answer>", {}), ("insert the fan", {})],
     [("", {}), ("<answer> </answer>", {}), ("<answer>,;.</answer>", {})], "names no action"),
    ("accuracy", [("3, 5", {}), ("3,5 and more words", {})], [("3,5", {}), ("3,5 Nm", {})], "may be one number or two"),
    ("accuracy", [("- (1)\n- (3)", {}), ("(1) - take it (3) - put it", {})],
     [(f"(1){to}(3)", {}) for to in ("-", " - ", "...", " to ")], "two steps or all between them"),
    ("action_order", [("<answer>(1)</answer>", {})], [("insert the fan", {})], "names no action"),
    ("action_order", [], [("(2)-(5)", {}), ("(2) through (5)", {})], "two steps or all between them"),
    ("exact_match", [("a", {})], [("<answer>...</answer>", {})], "no word"),
    ("multiple_choice", [("(B)", {}), ("A, C", {}), ("B. left or right", {})],
     [(bad, {}) for bad in ("a red fan", "A. left C. up", "B or C", "<answer>(A), or (B)</answer>")],
     "must choose letters"),
    ("yes_no", [("No", {})], [("perhaps", {})], "yes or no"),
    ("count", [("<answer>3</answer>", {})], [("", {}), ("three", {}), ("2 3", {})], "exactly one number"),
    ("box_iou", [("[0, 0, 9, 9]", {})],
     [(bad, {}) for bad in ("none", "[9, 5, 3, 8]", "[0, 0, 0, 9]", "[0, 0, 9]")], "must hold boxes"),
    ("box_iou", [('[{"bbox_2d": [0, 0, 9, 9], "label": "screw 2"}]', {}), ("1. [0, 0, 9, 9]\n2. [1, 1, 2, 2]", {})],
     [(f"[0, 0, 9, 9], {bad}", {})
      for bad in ("[5, 6, 7, 8, 0.9]", "(5, 6, 7, 8)", "[5, 6, 7e-05, 8]", '["5", "6", "7", "8"]')],
     "alone, and has"),
    ("box_iou(units=thousandths)", [("[0, 0, 9, 9]", PIXELS)], [("[0, 0, 9, 9]", {})], "'width' and 'height'"),
    ("temporal_iou", [("3 to 8", {})], [(bad, {}) for bad in ("never", "8 to 3", "5 to 5", "3")], "name a span"),
    ("temporal_iou", [("1-2 min", {})],
     [(bad, {}) for bad in ("3,5 to 8,0", "frames 2-9", "1% to 9%")], "decimal point"),
    ("temporal_iou(boundary=True)", [("3 to 8", {"duration": 12.5}), ("3 to 8", {"duration": "12.5"})],
     [("3 to 8", fields) for fields in ({}, {"duration": 0}, {"duration": "soon"}, {"duration": ""})], "'duration'"),
    ("segment_f1", [("0-3 (1)", {}), ("0-3 (1) 5 min break", {})],
     [(bad, {}) for bad in ("0-3 (1); 1-2 min (2)", "fan: frames 0-35", "500-900 (ms) (1)", "3-5 frames (1)")],
     "seconds or mm:ss"),
    ("segment_f1", [], [("1. 0-3 turn\n2. 4-5 put\n3. 6-7 turn", {})], "calls steps 1 and 3 'turn'"),
    ("segment_f1", [],
     [('[{"start":0,"end":3,"step":2},{"start":4,"end":5,"step":3,"by":{"hand":"left"}}]', {})], "no span is"),
    ("segment_f1", [("0-3 (2) bolts\n3-7 (2) bolts", {})], [("0-3 2 bolts\n3-7 2 nuts", {})], "calls step 2 'bolts'"),
    ("by_problem_type", [("<answer>B</answer>", CHOICE)], [("?", CHOICE)], "'multiple choice': the solution must"),
    ("by_problem_type", [], [("B", {})], "needs the field 'problem_type', one of multiple choice, numerical"),
    ("countdown", [("", {"nums": [1, 2], "target": 3})],
     [("", {"target": 3, "nums": each}) for each in (None, [], ["1"], [1.5], [True], [-1])], "'nums'"),
    ("countdown", [], [("", {"nums": [1], "target": each}) for each in (None, "3", float("nan"), 10**9)], "'target'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad", "message"), CHECKS)
def test_records_that_cannot_be_scored_are_refused(name, good, bad, message):
    check = resolve(name).check
    assert [check(*each) for each in good] == [None] * len(good)
    for each in bad:
        assert message in check(*each), each


@pytest.mark.parametrize(
    ("answer", "nums", "target", "right"),
    [
        ("(44 + 19) - 8 = 55", [44, 19, 8], 55, True),
        ("8 / (3 - 8 / 3)", [8, 3, 8, 3], 24, True),  # exact fractions
        ("1 / 3", [1, 3], 0.333333, True),  # within 1e-5
        ("1 / 3", [1, 3], 0.3333, False),
        ("-3 + 8", [3, 8], 5, True),
        ("44 + 19 - 8", [44, 19, 8], 56, False),
        ("5 + 5", [5], 10, False),  # one twice
        ("7//2", [7, 2], 3, False),
        ("2**3", [2, 3], 8, False),
        ("98.44", [98, 44], 98.44, False),
        ("45=junk", [45], 45, False),
        ("+45", [45], 45, False),
        ("", [1], 1, False),
        ("1 2", [1, 2], 12, False),
        ("__import__('os')", [1], 1, False),
        ("9**9**9**9", [9, 9, 9, 9], 1, False),
        ("(" * 10_000 + "1" + ")" * 10_000, [1], 1, False),
        ("(" * 95 + "1" + ")" * 95, [1], 1, True),
        ("-" * 190 + "1", [1], 1, False),  # more steps than are read
        ("1000001 - 1", [1000001, 1], 1000000, False),
        ("1\x00", [1], 1, False),
    ],
)
def test_countdown_accepts_only_arithmetic_with_the_given_numbers_that_reaches_the_target(answer, nums, target, right):
    begin = time.thread_time()
    assert solves(answer, nums, target) is right
    assert value_of("countdown", answer, "", nums=nums, target=target) == float(right)
    assert time.thread_time() - begin < 0.5  # towers of powers would take for ever; the others a millisecond


def test_countdown_reads_the_answer_block_in_full_width_forms_and_not_the_thinking():
    columns = {"nums": [[1, 2]] * 2, "target": [3, 3], "solution": [""] * 2}
    assert inner_values(resolve("countdown"), ["<think>1 + 2</think>", "1 + 2"], columns) == [0.0, 0.0]
    assert value_of("countdown", "（７－３）＊６＝２４", "", nums=[3, 6, 7], target=24) == 1.0
