import random

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from qwenvl.data.order import EpochSampler, Grouping, Part, RefillOrder, RepeatedSteps, draws_per_epoch
from qwenvl.data.seeds import stable_random


def keys_of(sampler: EpochSampler, epoch: int = 0) -> list[tuple[int, int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_every_record_once_per_epoch_in_another_order():
    parts = [Part("a", 30), Part("b", 20)]
    orders = [keys_of(EpochSampler(parts, seed=3), epoch) for epoch in (0, 1)]
    assert [sorted(order) for order in orders] == [[(epoch, i) for i in range(50)] for epoch in (0, 1)]
    assert [index for _, index in orders[0]] != [index for _, index in orders[1]]
    assert list(EpochSampler(parts, shuffle=False)) == [(0, i) for i in range(50)]


def test_a_seed_is_the_first_eight_bytes_of_sha256():
    # printf '0\x1f1' | sha256sum -> 1bb4027db324470c...
    assert stable_random(0, 1).random() == random.Random(0x1BB4027DB324470C).random()
    assert stable_random(1, 23).random() != stable_random(12, 3).random(), "parts do not run together"


def test_draws_per_epoch_follow_the_weights_and_round_to_whole_records():
    # 10 records: 0.25, 0.25 and 0.5 of 10 are 2.5, 2.5 and 5; the one left over goes to the first of equals
    assert draws_per_epoch([Part("a", 7, 0.25), Part("b", 2, 0.25), Part("c", 1, 0.5)]) == [3, 2, 5]
    parts = lambda *weights: [Part("a", 60, weights[0]), Part("b", 40, weights[1])]
    assert draws_per_epoch(parts(0.3, 0.7)) == draws_per_epoch(parts(3, 7)) == [30, 70], "they are relative"
    assert draws_per_epoch(parts(None, None)) == [60, 40], "without weights each has its turn"
    with pytest.raises(ValueError, match=r"the weight of 'b', 0.001 of 1.001, is less than one record in an epoch"):
        draws_per_epoch(parts(1, 0.001))


class TestWeights:
    PARTS = (Part("small", 5, 0.3), Part("large", 35, 0.7))  # 12 and 28 draws of 40

    @pytest.fixture
    def sampler(self):
        """The order of an epoch of two weighted data sets."""
        return EpochSampler(self.PARTS, seed=1)

    def test_every_stretch_of_an_epoch_holds_data_sets_by_their_weights(self, sampler):
        for epoch in range(3):
            keys = keys_of(sampler, epoch)
            assert len(keys) == len(sampler) == 40
            assert sum(index < 5 for _, index in keys) == 12
        for start in range(0, 40):
            for end in range(start + 1, 41):
                small = sum(index < 5 for _, index in keys[start:end])
                # a place in each stretch of 1/12 and one in each of 1/28: off by at most one at either end of either
                assert abs(small - 0.3 * (end - start)) < 2

    def test_no_record_comes_again_before_all_of_its_part_have_come(self, sampler):
        drawn = [key for epoch in range(5) for key in keys_of(sampler, epoch)]  # 60 of the small, 140 of the large part
        small = [key for key in drawn if key[1] < 5]
        large = [key for key in drawn if key[1] >= 5]
        for part, size in ((small, 5), (large, 35)):
            for turn in range(len(part) // size):
                chunk = part[turn * size : (turn + 1) * size]
                assert {each[0] for each in chunk} == {turn}, "the pass says how often the record came before"
                assert len({index for _, index in chunk}) == size
        assert len({tuple(key[1] for key in small[i : i + 5]) for i in range(0, 60, 5)}) > 6, "orders are drawn anew"

    def test_the_order_is_a_function_of_seed_and_epoch_alone(self, sampler):
        third = keys_of(EpochSampler(self.PARTS, seed=1), 3)
        for epoch in range(4):
            keys = keys_of(sampler, epoch)
        assert keys == third != keys_of(EpochSampler(self.PARTS, seed=2), 3)

    def test_weighted_data_sets_without_shuffling_are_refused(self):
        with pytest.raises(ValueError, match="have no order of their own"):
            EpochSampler(self.PARTS, shuffle=False)


def padded(lengths: list[int], batch: int) -> int:
    """Positions that hold nothing when consecutive prompts are padded to the longest of their batch."""
    batches = [lengths[i : i + batch] for i in range(0, len(lengths), batch)]
    return sum(len(each) * max(each) - sum(each) for each in batches)


class TestGrouping:
    LENGTHS = tuple(50 + 7 * ((i * 37) % 101) for i in range(250))

    ONE = (Part("a", 250),)

    def sampler(self, step=8, parts=ONE, seed=2):
        return EpochSampler(parts, seed=seed, grouping=Grouping(step, lambda key: self.LENGTHS[key[1]]))

    def test_pools_of_steps_are_sorted_by_length(self):
        # five steps of two are one pool; the eleventh is left for a step of its own, and no pool is shorter than a step
        lengths = [5, 1, 4, 2, 9, 8, 7, 3, 6, 10, 11]
        plain = keys_of(EpochSampler([Part("a", 11)], seed=4))
        keys = keys_of(EpochSampler([Part("a", 11)], seed=4, grouping=Grouping(2, lambda key: lengths[key[1]])))
        assert keys[-1] == plain[-1]
        for start in range(0, 10, 2):  # 11 // (4 * 2) = 1 step to a pool: sorted, and not mixed
            assert keys[start : start + 2] == sorted(plain[start : start + 2], key=lambda key: lengths[key[1]])

    def test_grouping_keeps_every_record_of_an_epoch_and_depends_on_seed_and_epoch(self):
        sampler = self.sampler()
        orders = [keys_of(sampler, epoch) for epoch in range(3)]
        for epoch, keys in enumerate(orders):
            assert sorted(keys) == [(epoch, index) for index in range(250)]
        assert orders[2] == keys_of(self.sampler(), 2) != keys_of(self.sampler(seed=3), 2)

    def test_steps_and_the_batches_in_them_hold_like_lengths(self):
        plain = [self.LENGTHS[index] for _, index in EpochSampler([Part("a", 250)], seed=2)]
        grouped = [self.LENGTHS[index] for _, index in self.sampler()]
        assert padded(grouped, 4) < padded(plain, 4) / 6
        assert padded(grouped, 8) < padded(plain, 8) / 5

    def test_a_run_begins_before_all_lengths_are_known(self):
        asked = []
        grouping = Grouping(2, lambda key: asked.append(key) or key[1])
        keys = iter(EpochSampler([Part("a", 1000)], grouping=grouping))
        next(keys)
        assert len(asked) == 64  # 32 steps of two


class TestRepeatedSteps:
    def test_a_step_is_followed_by_empty_batches_for_its_iterations(self):
        sampler = RepeatedSteps(EpochSampler([Part("a", 5)], shuffle=False), step=2, iterations=3)
        sampler.set_epoch(4)
        empty = [None] * 4
        expected = [(4, 0), (4, 1), *empty, (4, 2), (4, 3), *empty, (4, 4), None, *empty]
        assert list(sampler) == expected and len(sampler) == len(expected)

    @pytest.mark.parametrize("size", [1, 3])
    def test_each_process_has_its_share_of_every_step(self, size):
        """Batches are dealt out in turn, two micro-batches each; no prompt comes twice to make up for a last one."""
        sampler = RepeatedSteps(EpochSampler([Part("a", 25)], seed=2), step=4 * size, iterations=2)
        shares = [
            list(BatchSamplerShard(BatchSampler(sampler, size, drop_last=False), num_processes=2, process_index=rank))
            for rank in (0, 1)
        ]
        assert len(shares[0]) == len(shares[1]) == len(sampler) / size / 2
        seen = []
        for start in range(0, len(shares[0]), 4):
            new, empty = ([key for share in shares for b in share[start + i :][:2] for key in b] for i in (0, 2))
            assert new.count(None) < 4 * size and set(empty) == {None}
            seen += [key for key in new if key is not None]
        assert sorted(seen) == [(0, index) for index in range(25)]


class TestRefillOrder:
    @staticmethod
    def order(parts=None, **settings) -> RefillOrder:
        return RefillOrder(parts or [Part("a", 100)], **{"seed": 3, "longest": 30} | settings)

    def test_a_refill_draws_as_many_other_records_as_are_left(self):
        keys = self.order().draw(step=5, epoch=2, round=1, count=8, without=set(range(50)))
        assert len(set(keys)) == 8 and all(epoch == 2 and index >= 50 for epoch, index in keys)
        three = self.order([Part("a", 3)])
        assert sorted(three.draw(0, 0, 1, 5, without={0})) == [(0, 1), (0, 2)], "fewer where no more are left"
        other = self.order([Part("a", 1)], process=1, processes=2)
        assert other.draw(0, 0, 2, 5, without=()) == [], "the other process has it"

    def test_a_refill_depends_on_seed_step_round_and_process_alone(self):
        def draw(step=5, round=1, seed=3, process=0, count=4):
            return self.order(seed=seed, process=process, processes=2).draw(step, 0, round, count, ())

        changes = ({}, {"step": 6}, {"round": 2}, {"seed": 4}, {"process": 1})
        assert draw() == draw()
        assert len({tuple(draw(**change)) for change in changes}) == 5
        assert draw(count=2) == draw()[:2], "fewer are the first of the same row"

    def test_processes_have_records_of_their_own_and_change_shares(self):
        shares = [set(), set()]
        for round in range(1, 9):
            drawn = [{i for _, i in self.order(process=p, processes=2).draw(0, 0, round, 20, ())} for p in (0, 1)]
            assert not drawn[0] & drawn[1]
            shares = [share | own for share, own in zip(shares, drawn, strict=True)]
        assert all(any(index % 2 == rest for index in share) for share in shares for rest in (0, 1))

    @pytest.mark.parametrize(("weights", "share"), [((None, None), 0.2), ((0.7, 0.3), 0.7)])
    def test_data_sets_are_mixed_as_the_epoch_is(self, weights, share):
        order = self.order([Part("a", 20, weights[0]), Part("b", 80, weights[1])])
        drawn = [index < 20 for step in range(300) for _, index in order.draw(step, 0, 1, 5, ())]
        assert len(drawn) == 1500 and abs(sum(drawn) / 1500 - share) < 0.04
