"""What engines share: groups within a budget."""

import pytest

from qwenvl.rollout.engine import within_budget


@pytest.mark.parametrize(
    ("costs", "budget", "groups"),
    [
        ([5, 4, 3, 20, 1], 10, [[5, 4], [3], [20], [1]]),
        ([2, 4, 4, 9], 12, [[2, 4, 4], [9]]),  # three that are padded to 4
        ([2, 5, 4], 12, [[2, 5], [4]]),
        ([5, 4], None, [[5, 4]]),
        ([5, 4], 0, [[5], [4]]),
        ([], 10, []),
    ],
)
def test_groups_cost_what_their_dearest_member_does_times_their_members(costs, budget, groups):
    assert list(within_budget(iter(costs), budget, cost=lambda cost: cost)) == groups


def test_an_item_may_have_several_members():
    pairs = [(2, 3), (4, 1), (1, 0), (3, 1)]  # cost of a member, members
    found = list(within_budget(pairs, 16, cost=lambda pair: pair[0], members=lambda pair: pair[1]))
    assert found == [[(2, 3), (4, 1), (1, 0)], [(3, 1)]], "4 x (3 + 1 + 0) fit, 4 x 5 do not"
