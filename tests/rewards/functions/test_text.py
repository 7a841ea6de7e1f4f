import time

from qwenvl.rewards.functions.text import answer_of, first_block, solution_of


def test_first_block_is_the_first_opening_to_the_next_closing():
    text = "</answer> <answer>a<answer>b</answer> <answer>c</answer>"
    assert first_block(text, "answer") == (10, 37, "a<answer>b")


def test_no_pair():
    for text in ("", "<answer>", "</answer>", "</answer><answer>", "<ANSWER>1</ANSWER>", "<answer >1</answer>"):
        assert first_block(text, "answer") is None


def test_dots_match_newlines_and_outer_space_goes():
    assert answer_of("<answer>\n (1)\n(2) \n</answer>") == "(1)\n(2)"
    assert answer_of("<answer></answer>") == "" and answer_of("(1)") is None


def test_a_solution_may_have_no_tags():
    assert solution_of(" (1) ") == "(1)" == solution_of("<think>no</think><answer> (1) </answer>")


def test_linear_time():
    for text in ("<answer>" * 400_000, "<answer>" + " " * 3_000_000, "<think></think>" * 200_000 + "<answer>"):
        begin = time.thread_time()
        assert answer_of(text) is None
        assert time.thread_time() - begin < 0.05
