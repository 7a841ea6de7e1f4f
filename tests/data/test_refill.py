"""Which records take the places of others."""

from collections import Counter

from qwenvl.data.difficulty import Difficulty
from qwenvl.data.options import DifficultyArguments
from qwenvl.data.order import Part
from qwenvl.data.refill import RefillOrder


def order(parts=None, **settings) -> RefillOrder:
    return RefillOrder(parts or [Part("a", 100)], seed=3, longest=30, **settings)


def test_as_many_other_records_as_are_asked_for_with_the_epoch():
    keys = order().draw(step=5, epoch=2, round=1, count=8, without=set(range(50)))
    assert len(set(keys)) == 8 and all(epoch == 2 and index >= 50 for epoch, index in keys)


def test_what_is_drawn_depends_on_seed_step_round_and_process_alone():
    def draw(step=5, round=1, seed=3, process=0, count=4):
        made = RefillOrder([Part("a", 100)], seed, 30, process, processes=2)
        return made.draw(step, 0, round, count, ())

    assert draw() == draw()
    assert len({tuple(draw(**change)) for change in ({}, {"step": 6}, {"round": 2}, {"seed": 4}, {"process": 1})}) == 5
    assert draw(count=2) == draw()[:2], "fewer are the first of the same row"


def test_processes_have_records_of_their_own_and_change_shares():
    shares = [set(), set()]
    for round in range(1, 9):
        drawn = [
            {index for _, index in order(process=process, processes=2).draw(0, 0, round, 20, ())} for process in (0, 1)
        ]
        assert not drawn[0] & drawn[1]
        for share, own in zip(shares, drawn, strict=True):
            share |= own
    assert all(any(index % 2 == rest for index in share) for share in shares for rest in (0, 1))


def test_where_records_run_out_there_are_fewer():
    assert order([Part("a", 3)]).draw(0, 0, 1, 5, without={0}) in ([(0, 1), (0, 2)], [(0, 2), (0, 1)])
    assert order([Part("a", 3)]).draw(0, 0, 1, 5, without={0, 1, 2}) == []
    assert order([Part("a", 1)], process=1, processes=2).draw(0, 0, 2, 5, without=()) == [], "the other one has it"


def test_data_sets_are_mixed_as_the_epoch_is():
    plain, weighted = Counter(), Counter()
    parts = [Part("a", 20), Part("b", 80)]
    for step in range(300):
        plain.update(index < 20 for _, index in order(parts).draw(step, 0, 1, 5, ()))
        heavy = [Part("a", 20, 0.7), Part("b", 80, 0.3)]
        weighted.update(index < 20 for _, index in order(heavy).draw(step, 0, 1, 5, ()))
    assert 0.17 < plain[True] / 1500 < 0.23
    assert 0.66 < weighted[True] / 1500 < 0.74


def test_records_outside_of_the_band_are_passed_over_by_their_weight():
    rates = Difficulty(DifficultyArguments(weight=0.25))
    for index in range(50):
        rates.add(0, index, [0.0])
    drawn = Counter()
    for step in range(400):
        drawn.update(index < 50 for _, index in order(difficulty=rates).draw(step, 1, 1, 4, ()))
    assert 0.17 < drawn[True] / 1600 < 0.23  # 0.25 of 1.25
    first = order(difficulty=rates).draw(0, 0, 1, 4, ())
    assert first != order(difficulty=rates).draw(0, 1, 1, 4, ()), "in epoch 0 nothing was known"


def test_where_all_are_outside_the_places_are_still_taken():
    rates = Difficulty(DifficultyArguments(weight=0.01))
    for index in range(100):
        rates.add(0, index, [0.0])
    assert len(order(difficulty=rates).draw(0, 1, 1, 6, ())) == 6
