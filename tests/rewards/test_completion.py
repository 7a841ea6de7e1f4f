import pickle

import pytest

from qwenvl.rewards.completion import Completion


def test_reads_as_text_and_as_a_conversation():
    text = Completion("four")
    assert text == "four" and text[0] == "f" and text[-1] == "r" and text[1] == "o" and text[:2] == "fo"
    assert text[0]["content"] == text[-1]["content"] == text[0].get("content") == "four"
    assert text[0]["role"] == "assistant"
    assert Completion("")[0]["content"] == ""
    with pytest.raises(TypeError):
        text["content"]
    with pytest.raises(IndexError):
        text[4]


def test_pickles():
    assert pickle.loads(pickle.dumps(Completion("four")))[0]["content"] == "four"
    assert pickle.loads(pickle.dumps(Completion("four")[0])) == "f"
