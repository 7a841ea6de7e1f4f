import sys
import unicodedata
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from qwenvl.rewards.functions.text import answer_of, first_block, pairs, solution_of, thinking_of, unified

DECOMPOSED = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.decomposition(c)]
KEPT = {c for c in DECOMPOSED if unicodedata.decomposition(c).startswith(("<super>", "<sub>", "<fraction>"))}
CIRCLED = {c for c in DECOMPOSED if unicodedata.decomposition(c).startswith("<circle>")}


def test_first_block_is_the_first_opening_to_the_next_closing():
    text = "</answer> <answer>a<answer>b</answer> <answer>c</answer>"
    assert first_block(text, "answer") == (10, 37, "a<answer>b")


def test_texts_without_a_pair_of_tags_have_no_block():
    for text in ("", "<answer>", "</answer>", "</answer><answer>", "<ANSWER>1</ANSWER>", "<answer >1</answer>"):
        assert first_block(text, "answer") is None


def test_full_width_forms_are_read_as_plain_ones():
    assert answer_of("<answer>（１）Ｂ，　５：００</answer>") == "(1)B, 5:00"
    drafted = "<think>maybe <answer>5</answer>? no</think>"
    assert answer_of(f"{drafted}<answer>6</answer>") == solution_of(f"{drafted}<answer>6</answer>") == "6"
    assert answer_of(f"<think>look</think>\n{drafted}<answer>6</answer>") == "6"
    assert answer_of(f"{drafted} so") == answer_of("<answer>5</answer></think>") == "5"
    assert solution_of("（1）") == solution_of("<answer>（1）</answer>") == "(1)"
    assert pairs(["<answer>Ｂ</answer>", "Ｂ"], ["Ｂ", "Ｃ"]) == [("B", "B"), (None, "C")]


def test_superscripts_subscripts_and_fractions_keep_their_meaning():
    for text in ("x²", "10⁵", "H₂O", "3½", "1 m²"):
        assert unified(text) == text
    assert unified("㎡ ｘ²") == "m² x²"


def test_every_other_character_is_normalised_as_by_nfkc():
    made_of_kept = {c for c in DECOMPOSED if KEPT & set(unified(c))}
    assert made_of_kept > KEPT and len(made_of_kept) < len(KEPT) + 20  # besides them ㎡ and the like
    others = set(DECOMPOSED) - made_of_kept - CIRCLED
    assert not [c for c in others if unified(c) != unicodedata.normalize("NFKC", c)]


def test_a_sign_in_a_circle_is_one_in_brackets():
    assert unified("\u2461\u246b \u24b6") == "(2)(12) (A)"
    assert len(CIRCLED) > 100
    for circled in CIRCLED:
        assert unified(circled) == f"({unicodedata.normalize('NFKC', circled)})"


@settings(deadline=None)  # a machine may be busy
@given(st.text(st.characters(exclude_characters="".join(KEPT | CIRCLED)) | st.sampled_from("é̖́ﾞｶ한각각ﬁ"), max_size=25))
def test_texts_are_normalised_as_by_nfkc(text):
    if not KEPT & set(unified(text)):
        assert unified(text) == unicodedata.normalize("NFKC", text)
    assert unified(unified(text)) == unified(text)


def test_long_runs_of_combining_marks_are_broken_before_they_are_put_in_order():
    """Ordering a run of n marks takes n² steps; half-width voice marks are no marks until they are decomposed."""
    for pair in ("\u0301\u0316", "\uff9e\u0316", "\u0344\u0316"):
        runs = [len(list(run)) for is_mark, run in groupby(unified("a" + pair * 100), unicodedata.combining) if is_mark]
        assert sum(runs) >= 199 and max(runs) <= 30


def test_the_thinking_part_of_a_turn_and_whether_it_was_closed():
    assert thinking_of("<think>so</think><answer>1</answer>", False) == ("so", True)
    assert thinking_of("Well. <think>so</think>", False) == ("so", True)
    assert thinking_of("<think>so, and", False) == ("so, and", False)
    assert thinking_of("<answer>1</answer>", False) is None and thinking_of("so</think>", False) is None
    assert thinking_of("so</think>1", True) == ("so", True) and thinking_of("so, and", True) == ("so, and", False)
    assert thinking_of("<think>so</think>1", True) == ("so", True)
    assert thinking_of("so <think> again</think>1", True) == ("so <think> again", True)
