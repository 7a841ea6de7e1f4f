"""Operations on completions, on made ones: cut, joined, selected, masked, and the request that asks for them."""

from __future__ import annotations

import pytest
import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import (
    Drawing,
    EngineLostError,
    SamplingParams,
    SamplingRequest,
    completion_mask,
    end_token,
    join_rollouts,
    lost_together,
    no_completions,
    on_device,
    real_tokens,
    select_rows,
    split_rollouts,
    within_budget,
)
from qwenvl.types import RolloutBatch

PAD = 9


def completions(*rows: list[int], boot: str = "a") -> RolloutBatch:
    """Completions with these tokens, whose log-probs are minus a tenth of them."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    mask = torch.tensor([[n < len(row) for n in range(width)] for row in rows])
    return RolloutBatch(
        completion_ids=ids,
        completion_mask=mask,
        texts=[str(row) for row in rows],
        finish_reasons=["stop"] * len(rows),
        ended_by=["end"] * len(rows),
        logprobs=-0.1 * ids * mask,
        boots=frozenset({boot}),
    )


def test_batches_are_cut_to_their_own_width_and_joined_again():
    whole = completions([1, 2, 3], [4], [5, 6])
    one, none, two = split_rollouts(whole, [1, 0, 2])
    assert one.completion_ids.tolist() == [[1, 2, 3]]
    assert none.texts == [] and len(none.completion_ids) == 0
    assert two.completion_ids.tolist() == [[4, PAD], [5, 6]] and two.texts == ["[4]", "[5, 6]"]
    joined = join_rollouts([one, two], PAD)
    for name in ("completion_ids", "completion_mask", "logprobs"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
    assert (joined.texts, joined.finish_reasons, joined.ended_by) == (whole.texts, whole.finish_reasons, whole.ended_by)


def test_joined_completions_have_the_boots_of_all_servers():
    joined = join_rollouts([completions([1], boot="a"), completions([2, 3], boot="b")], PAD)
    assert joined.boots == {"a", "b"}
    assert joined.completion_ids.tolist() == [[1, PAD], [2, 3]]
    assert joined.completion_mask.tolist() == [[True, False], [True, True]]


def test_rows_are_selected_in_the_order_that_is_asked_for():
    some = select_rows(completions([1, 2, 3], [4], [5, 6]), [2, 1])
    assert some.completion_ids.tolist() == [[5, 6], [4, PAD]] and some.texts == ["[5, 6]", "[4]"]
    assert some.logprobs is not None and some.logprobs[0].tolist() == pytest.approx([-0.5, -0.6])


def test_tensors_move_and_all_else_stays():
    moved = on_device(completions([1, 2]), "meta")
    assert moved.completion_ids.is_meta and moved.logprobs is not None and moved.logprobs.is_meta
    assert moved.texts == ["[1, 2]"]


def test_a_completion_reaches_to_its_first_end():
    is_end = torch.tensor([[False, True, True], [False, False, False], [True, False, False]])
    mask = completion_mask(is_end)
    assert mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert real_tokens(torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), mask) == [[1, 2], [4, 5, 6], [7]]


class Names:
    """The one method of a tokenizer that is called."""

    def convert_ids_to_tokens(self, number: int) -> str:
        return f"<{number}>"


@pytest.mark.parametrize(("ids", "text"), [([4, 7], "<7>"), ([7, 4], ""), ([], "")])
def test_the_token_that_ended_a_completion_is_its_last(ids, text):
    assert end_token(ids, {7}, Names()) == text


def test_a_request_counts_its_completions_and_joins_its_prompts():
    batches = [PromptInputs.of_text(torch.ones(rows, 3, dtype=torch.long)) for rows in (2, 0, 1)]
    request = SamplingRequest(batches, group_size=4, params=SamplingParams(5), seed=1)
    joined = request.joined()
    assert request.sizes == [8, 0, 4] and joined is not None and len(joined) == 3
    assert SamplingRequest(batches[1:2], 4, SamplingParams(5), 1).joined() is None
    assert no_completions().texts == []


def test_a_group_within_a_budget_costs_as_much_as_its_dearest_member():
    groups = within_budget([2, 3, 1, 9], 6, cost=lambda item: item)
    # 2 and 3 cost 2 x 3; a third would cost 3 x 3. 9 is more than the budget allows, and alone.
    assert list(groups) == [[2, 3], [1], [9]]
    assert list(within_budget([2, 3], None, cost=lambda item: item)) == [[2, 3]]


def test_progress_says_which_prompts_are_sampled():
    drawing = Drawing()
    drawing.begin([2], 4, 100)
    drawing.token()
    assert drawing.words() == "token 1 of at most 100, prompt 3 of 4"
    drawing.end()
    assert drawing.words() == "" and drawing.drawn == 1


class Servers:
    """An engine with weights of its own."""

    def sample(self, model, request):
        return []

    def sync(self, model, version):
        pass

    def request(self, model, request):
        return list

    def forget(self):
        pass

    def rest(self):
        pass


class Local:
    """An engine that samples from the policy."""

    def sample(self, model, request):
        return []


def test_a_lost_engine_is_raised_at_the_end_of_the_block():
    with pytest.raises(EngineLostError, match="gone"), lost_together(Servers()):
        raise EngineLostError("gone")
    with pytest.raises(ValueError, match="another"), lost_together(Local()):
        raise ValueError("another")
