"""Stop strings against the text that the tokens spell."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qwenvl.demo.tiny import make_tokenizer
from qwenvl.rollout.local import StopStrings

TEXT = "<think> two </think>\n\n<answer>(2) insert the fan</answer>\nand more é 日本"


@pytest.mark.parametrize(
    "strings", [("</answer>",), ("\n\n", "fan"), ("é", "本"), ("never",), ("t",), ("er>(2) insert",)], ids=str
)
def test_each_token_that_completes_a_string(strings):
    """A string is complete at the first token with which the text so far holds one occurrence more."""
    tokenizer = make_tokenizer()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    whole = [tokenizer.decode(ids[0, : t + 1]) for t in range(ids.shape[1])]
    counts = [[0, *(text.count(string) for text in whole)] for string in strings]
    expected = [any(count[t + 1] > count[t] for count in counts) for t in range(ids.shape[1])]
    stops = StopStrings(tokenizer, strings)
    assert stops.each_token(ids)[0].tolist() == expected
    assert [bool(stops(ids[:, : t + 1])) for t in range(ids.shape[1])] == expected
    assert any(expected) == (strings != ("never",))


def test_a_token_may_hold_more_than_the_end_of_a_string():
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("<answer>") == ["<answer", ">"]
    ids = tokenizer("<answer>", return_tensors="pt").input_ids
    assert StopStrings(tokenizer, ("<ans",)).each_token(ids).tolist() == [[True, False]]


def test_calls_do_not_grow_with_the_tokens():
    stops = StopStrings(make_tokenizer(), ("</answer>", "fan"))

    def calls(tokens):
        with Calls() as counted:
            stops.each_token(torch.randint(0, 300, (2, tokens)))
        return counted.count

    assert calls(100) == calls(10)


class Calls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))
