"""The window: explored once, gone through in order, as often as it has iterations."""

import pytest
import torch

from qwenvl.train.window import Window
from qwenvl.types import BadSample, PromptBatch, Record

RECORD = Record("r", (), "", (), (), (), {}, "data.json[0]")


def batch(prompts: int, bad: int = 0) -> PromptBatch:
    ids = torch.ones(prompts, 3, dtype=torch.long)
    failed = [BadSample(RECORD, "broken")] * bad
    return PromptBatch([RECORD] * prompts, [0] * prompts, [[]] * prompts, ids, ids, bad=failed)


class Explorer:
    """Names what it is given, and how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, batches: list[PromptBatch]) -> list[str]:
        self.calls += 1
        return [f"{number}: {len(each)} prompts" for number, each in enumerate(batches)]


def test_each_iteration_takes_the_same_experiences_in_the_same_order():
    batches, explore = [batch(2), batch(0, bad=2), batch(1)], Explorer()
    window = Window(batches, iterations=3)
    expected = [window.take(each, explore) for each in batches]
    assert expected == ["0: 2 prompts", "1: 0 prompts", "2: 1 prompts"] and not window
    for _ in range(2):
        places = [batch(0) for _ in range(3)]
        window.again(places)
        assert len(window) == 3
        assert [window.take(place, explore) for place in places] == expected
    assert explore.calls == 1
    with pytest.raises(RuntimeError, match="num_iterations"):  # nothing is kept beyond the last
        window.again([batch(0)])


def test_micro_batches_in_another_order_are_an_error():
    first, second = batch(1), batch(1)
    with pytest.raises(RuntimeError, match="another order"):
        Window([first, second]).take(second, Explorer())


@pytest.mark.parametrize("drawn", [batch(1), batch(0, bad=1)], ids=["a prompt", "a bad sample"])
def test_what_is_drawn_between_the_iterations_must_be_empty(drawn):
    first = batch(1)
    window = Window([first], iterations=2)
    window.take(first, Explorer())
    with pytest.raises(RuntimeError, match="in the midst of the steps on the same completions"):
        window.again([drawn])


def test_weights_are_shares_of_the_step():
    """Twelve completions here and four in another process: 8 in the mean, by which the sum of both is divided."""
    window = Window([batch(2), batch(1)], completions=8.0)
    # The Trainer divides by the two micro-batches, and gradients are averaged over the two processes.
    assert (window.weight(8) / 2 / 2, window.weight(4) / 2 / 2) == (8 / 16, 4 / 16)
    assert Window([batch(2)]).weight(8) == 1.0
