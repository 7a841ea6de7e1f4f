"""Pass rates by hand, and how often records are drawn by them."""

import json
from collections import Counter

import pytest

from qwenvl.data.difficulty import Difficulty
from qwenvl.data.options import DifficultyArguments
from qwenvl.data.order import EpochSampler, Grouping, Part, RepeatedSteps


def difficulty(**arguments) -> Difficulty:
    return Difficulty(DifficultyArguments(**arguments))


def with_solved(solved: range, of: int, **options) -> Difficulty:
    """Of so many records those in ``solved`` were always solved in epoch 0, the others half of the time."""
    made = difficulty(**options)
    for index in range(of):
        made.add(0, index, [1.0, 1.0] if index in solved else [0.0, 1.0])
    return made


class TestPassRate:
    def test_by_hand(self):
        rates = difficulty(window=2)
        for epoch, rewards in enumerate(([1.0, 1.0], [0.0, 1.0], [0.0], [0.0, 0.0, 0.0])):
            rates.add(epoch, 7, rewards)
        assert [rates.pass_rate(7, epoch) for epoch in (0, 1)] == [None, None], "what is this long ago is forgotten"
        assert rates.pass_rate(7, 2) == 0.5  # of epoch 1 alone: epoch 0 is out of the window of the newest epoch
        assert rates.pass_rate(7, 3) == pytest.approx(1 / 3)  # 0 + 1 + 0
        assert rates.pass_rate(7, 4) == 0.0  # 0, 0 + 0 + 0

    def test_an_epoch_knows_only_those_before_it(self):
        rates = difficulty()
        rates.add(0, 3, [0.5])
        before = rates.pass_rate(3, 1), rates.outside(3, 1), rates.times(3, 1)
        rates.add(1, 3, [1.0])
        rates.add(1, 3, [1.0])
        assert (rates.pass_rate(3, 1), rates.outside(3, 1), rates.times(3, 1)) == before == (0.5, False, 1)
        assert rates.pass_rate(3, 2) == pytest.approx(2.5 / 3) and rates.times(3, 2) == 3

    def test_the_bounds_lie_inside(self):
        rates = difficulty()
        for index, rate in enumerate((0.0, 0.1, 0.9, 0.95)):
            rates.add(0, index, [rate])
        assert [rates.outside(index, 1) for index in range(5)] == [True, False, False, True, False]

    def test_an_epoch_without_rewards_is_no_rate_of_0(self):
        rates = difficulty(window=1)
        rates.add(0, 0, [1.0])
        rates.add(1, 0, [])
        assert rates.pass_rate(0, 2) == 1.0 and rates.times(0, 2) == 2

    def test_times_outlive_the_window(self):
        rates = difficulty(window=1)
        for epoch in range(6):
            rates.add(epoch, 0, [0.5])
        assert rates.times(0, 6) == 6 and len(rates._records[0].epochs) == 2

    def test_what_is_kept_is_all_of_it(self):
        ours = difficulty()
        for epoch in range(3):
            ours.add(epoch, epoch % 2, [0.1 * epoch, 1 / 3], where=f"data.json[{epoch}] ä")
        theirs = difficulty()
        theirs.load(ours.state())
        assert theirs.state() == ours.state() and list(theirs.rows()) == list(ours.rows())
        theirs.add(3, 0, [0.7])
        ours.add(3, 0, [0.7])
        assert theirs.pass_rate(0, 4) == ours.pass_rate(0, 4)

    def test_the_rows_for_the_user(self):
        rates = difficulty()
        rates.add(0, 4, [1.0, 1.0], "sop.json[4]")
        rates.add(1, 4, [1.0, 0.9], "sop.json[4]")
        (row,) = rates.rows()
        assert row == {
            "where": "sop.json[4]",
            "pass_rate": 0.975,
            "outside": True,
            "drawn": 2,
            "epochs": {0: 1.0, 1: 0.95},
        }
        assert json.loads(json.dumps(row))["epochs"] == {"0": 1.0, "1": 0.95}


class TestDraws:
    def test_by_hand(self):
        """Six outside by 0.5: 10 draws are 4 / 7 for those inside, 5.71, and 3 / 7 for those outside, 4.29."""
        rates = with_solved(range(6), of=10, weight=0.5)
        outside = Counter()
        for epoch in range(1, 2001):
            times = rates.draws(0, epoch, 0, 10, 10)
            assert sum(times.values()) == 10
            assert {times[index] for index in range(6)} <= {0, 1} and {times[i] for i in range(6, 10)} <= {1, 2}
            assert sum(times[index] for index in range(6)) in (4, 5)
            outside.update({index: times[index] for index in range(6)})
        assert sum(outside.values()) / 2000 == pytest.approx(10 * 3 / 7, abs=0.05)
        assert max(outside.values()) - min(outside.values()) < 200, "none is left out for good"

    @pytest.mark.parametrize("solved", [range(0), range(10)], ids=["none", "all"])
    def test_where_all_are_alike_nothing_changes(self, solved):
        assert with_solved(solved, of=10).draws(0, 1, 0, 10, 10) == dict.fromkeys(range(10), 1)

    def test_one_of_many_is_rarely_drawn_and_not_never(self):
        rates = with_solved(range(1), of=10)
        drawn = [rates.draws(0, epoch, 0, 10, 10)[0] for epoch in range(1, 1001)]
        assert set(drawn) == {0, 1} and sum(drawn) / 1000 == pytest.approx(10 * 0.1 / 9.1, abs=0.03)

    def test_in_the_first_epoch_nothing_is_known(self):
        assert with_solved(range(6), of=10).draws(0, 0, 0, 10, 10) == dict.fromkeys(range(10), 1)


class TestOrder:
    def keys(self, sampler, epoch):
        sampler.set_epoch(epoch)
        return list(sampler)

    def test_an_epoch_stays_as_long_and_a_record_has_a_new_pass_each_time(self):
        sampler = EpochSampler([Part("a", 40), Part("b", 60)], seed=1, difficulty=with_solved(range(60), of=100))
        assert sorted(self.keys(sampler, 0)) == [(0, index) for index in range(100)]
        keys = self.keys(sampler, 1)
        assert len(keys) == len(sampler) == 100 and len(set(keys)) == 100
        drawn = Counter(index for _, index in keys)
        assert 12 <= sum(drawn[index] for index in range(60)) <= 14  # 100 x 6 / 46 = 13.04
        for index in range(60, 100):
            assert sorted(turn for turn, other in keys if other == index) == list(range(1, 1 + drawn[index]))
            assert drawn[index] in (2, 3)

    def test_draws_of_a_record_are_spread_over_the_epoch(self):
        sampler = EpochSampler([Part("a", 100)], seed=1, difficulty=with_solved(range(50), of=100))
        keys = self.keys(sampler, 1)
        for index in range(50, 100):
            places = [place for place, (_, other) in enumerate(keys) if other == index]
            if len(places) == 2:
                assert places[0] < 60 and places[1] >= 40

    def test_weights_of_the_data_sets_hold(self):
        parts = [Part("a", 20, 0.3), Part("b", 20, 0.7)]
        sampler = EpochSampler(parts, seed=1, difficulty=with_solved(range(10), of=40))
        for epoch in (0, 1):
            assert sum(index < 20 for _, index in self.keys(sampler, epoch)) == 12

    def test_function_of_seed_epoch_and_earlier_epochs(self):
        def order(later: bool) -> list:
            rates = with_solved(range(60), of=100)
            if later:
                rates.add(1, 70, [1.0])
            return self.keys(EpochSampler([Part("a", 100)], seed=1, difficulty=rates), 1)

        assert order(later=False) == order(later=True)
        other = EpochSampler([Part("a", 100)], seed=2, difficulty=with_solved(range(60), of=100))
        assert self.keys(other, 1) != order(later=False)

    def test_with_lengths_and_repeated_steps(self):
        plain = EpochSampler([Part("a", 40)], difficulty=with_solved(range(20), of=40))
        grouped = EpochSampler(
            [Part("a", 40)], grouping=Grouping(4, lambda key: key[1] % 7), difficulty=with_solved(range(20), of=40)
        )
        assert sorted(self.keys(grouped, 1)) == sorted(self.keys(plain, 1)) != self.keys(grouped, 1)
        repeated = RepeatedSteps(plain, step=4, iterations=2)
        assert [key for key in self.keys(repeated, 1) if key is not None] == self.keys(plain, 1)

    def test_their_own_order_is_not_changed(self):
        with pytest.raises(ValueError, match="their own order are not drawn by difficulty"):
            EpochSampler([Part("a", 4)], shuffle=False, difficulty=difficulty())


@pytest.mark.parametrize("band", [{"low": 0.95}, {"low": "a"}, {"high": float("nan")}, {"weight": 1.0}])
def test_what_is_no_band(band):
    with pytest.raises(ValueError, match=f"--{next(iter(band))} "):
        DifficultyArguments(**band)
