"""Asking an engine ahead: the order of requests, whose weights answer them, and what becomes of errors."""

from __future__ import annotations

import io
import threading

import pytest
import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.background import BackgroundEngine
from qwenvl.rollout.drafts import CountsDrafts, DraftCounts
from qwenvl.rollout.engine import EngineWithWeights, SamplingParams, SamplingRequest
from qwenvl.types import RolloutBatch

PARAMS = SamplingParams(max_new_tokens=3)
PROMPTS = [PromptInputs.of_text(torch.zeros(1, 2, dtype=torch.long))]


def rollouts(seed: int, version: int) -> list[RolloutBatch]:
    """One completion that tells who made it."""
    ids = torch.tensor([[seed, version]])
    return [
        RolloutBatch(
            ids, torch.ones_like(ids).bool(), [f"{seed} by {version}"], ["stop"], -ids / 7, None, frozenset({"boot"})
        )
    ]


class Held:
    """An engine that answers a request when the test lets it."""

    def __init__(self):
        self.version, self.made, self.may = None, [], {}

    def sync(self, model, version):
        self.version = version

    def forget(self):
        pass

    def rest(self):
        raise AssertionError("it samples while the policy trains")

    def sample(self, model, request):
        return self.request(model, request)()

    def request(self, model, request):
        seed = request.seed
        version, may = self.version, self.may.setdefault(seed, threading.Event())

        def make():
            may.wait(60)
            self.made.append((seed, threading.current_thread() is threading.main_thread()))
            if seed == 13:
                raise ConnectionError("the server is gone")
            return rollouts(seed, version)

        return make


def test_the_drafts_of_the_engine_are_counted():
    class Drafts(Held):
        def take_counts(self):
            return DraftCounts(drafted=7, accepted=3)

    assert isinstance(BackgroundEngine(Drafts()), CountsDrafts)
    assert BackgroundEngine(Drafts()).take_counts() == DraftCounts(drafted=7, accepted=3)
    assert BackgroundEngine(Held()).take_counts() == DraftCounts()


@pytest.fixture
def held():
    """An engine with the weights of step 0, which is to be asked ahead, and the one behind it."""
    engine = Held()
    ahead = BackgroundEngine(engine)
    ahead.sync(None, 0)
    yield ahead, engine
    for may in engine.may.values():
        may.set()
    ahead.close()


def ask(ahead, seed):
    ahead.ask(None, SamplingRequest(PROMPTS, 1, PARAMS, seed))


def sampled(ahead, seed) -> str:
    [[text]] = [each.texts for each in ahead.sample(None, SamplingRequest(PROMPTS, 1, PARAMS, seed))]
    return text


def test_steps_are_taken_in_order_with_the_version_that_was_asked(held):
    ahead, engine = held
    assert isinstance(ahead, EngineWithWeights)
    for seed in (1, 2, 3):
        ask(ahead, seed)
    assert ahead.waiting == 3 and not engine.made
    for seed in (3, 2, 1):
        engine.may[seed].set()
    ahead.sync(None, 5)  # waits: these are sampled by the weights of step 0
    assert engine.made == [(1, False), (2, False), (3, False)] and engine.version == 5
    ask(ahead, 4)
    engine.may[4].set()
    with pytest.raises(RuntimeError, match="of other prompts than those of this step"):
        ahead.take(2)
    assert [ahead.take(seed) for seed in (1, 2, 3, 4)] == [0, 0, 0, 5]
    ahead.rest()
    assert ahead.waiting == 0 and sampled(ahead, 4) == "4 by 5"
    engine.may[4].set()
    assert sampled(ahead, 4) == "4 by 5" and engine.made[-1] == (4, True), "taken once, and sampled now then"


def test_an_error_is_raised_by_every_call_and_ends_sampling(held):
    ahead, engine = held
    for seed in (1, 13, 2):
        ask(ahead, seed)
    ahead.check()
    for seed in (1, 13, 2):
        engine.may[seed].set()
    assert ahead.take(1) == 0
    for told in (ahead.finish, ahead.check, lambda: ahead.take(13), lambda: ahead.sync(None, 1)):
        with pytest.raises(ConnectionError, match="the server is gone"):
            told()
    assert [seed for seed, _ in engine.made] == [1, 13]


def test_a_closed_engine_forgets_its_requests_and_can_begin_anew(held):
    ahead, engine = held
    for seed in (1, 2):
        ask(ahead, seed)
        engine.may[seed].set()
    ahead.close()
    assert ahead.waiting == 0 and ahead.version is None
    assert "sampling-ahead" not in [each.name for each in threading.enumerate()]
    ahead.sync(None, None)
    with pytest.raises(RuntimeError, match="call sync before ask"):  # weights of an unknown step
        ask(ahead, 1)
    ahead.sync(None, 3)
    ask(ahead, 1)
    assert ahead.take(1) == 3


def test_completions_sampled_ahead_are_kept_in_a_file(held, tmp_path):
    ahead, engine = held
    ahead.save(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    for seed in (1, 2**62 + 1):
        ask(ahead, seed)
        engine.may[seed].set()
    ahead.save(tmp_path / "kept")
    other = BackgroundEngine(Held())
    other.load(tmp_path / "kept")
    assert other.waiting == 2
    assert other.take(1) == 0 and other.take(2**62 + 1) == 0
    (kept,) = other.sample(None, SamplingRequest(PROMPTS, 1, PARAMS, 2**62 + 1))
    (own,) = rollouts(2**62 + 1, 0)
    assert kept.boots == own.boots == {"boot"}
    assert torch.equal(kept.completion_ids, own.completion_ids) and torch.equal(kept.logprobs, own.logprobs)
    assert torch.equal(kept.completion_mask, own.completion_mask) and kept.entropies is None
    assert (kept.texts, kept.finish_reasons) == (own.texts, own.finish_reasons)
    other.load(tmp_path / "none")
    assert other.waiting == 0
    older = io.BytesIO()
    torch.save([(1, 2, [{"texts": []}])], older)  # without what a later version keeps
    for content in (b"", b"no such file", bytes(100), older.getvalue()):
        (tmp_path / "kept").write_bytes(content)
        with pytest.raises(ValueError, match="kept: expected completions that were sampled ahead, found"):
            other.load(tmp_path / "kept")
