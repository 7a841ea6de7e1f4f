"""The weight of the entropy bonus follows its target, and a resumed run goes on with it."""

from types import SimpleNamespace

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.runlog import read_metrics
from qwenvl.train.callbacks import EntropyTarget


def test_the_weight_by_hand():
    control = EntropyTarget(target=0.5, step=0.25, first=0.5)
    # The bonus acts at or below the target, and its weight grows then; above it shrinks, and never below 0.
    entropies = [0.4, 0.6, 0.5, None, 0.9, 0.9, 0.9, 0.9, 0.1, 0.1]
    weights = [0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25]
    after = [0.75, 0.5, 0.75, 0.75, 0.5, 0.25, 0.0, 0.0, 0.25, 0.5]
    for entropy, weight, left in zip(entropies, weights, after, strict=True):
        assert control.weight_for(entropy) == weight and control.coefficient == left


def test_what_the_flags_ask_for(tmp_path):
    make = lambda **flags: EntropyTarget.of(GRPOConfig(str(tmp_path), use_cpu=True, **flags))
    assert make() is None and make(entropy_coef=0.1) is None
    made = make(entropy_coef=0.1, entropy_target=0.5)
    assert made.state() == {
        "args": {"target": 0.5, "step": 0.005, "first": 0.1}, "attributes": {"coefficient": 0.1}
    }  # fmt: skip


def test_a_run_that_had_no_target_before_begins_with_the_flag():
    older = SimpleNamespace(global_step=3, stateful_callbacks={})
    new = EntropyTarget(0.5, 0.1, first=0.3)
    new.on_train_begin(None, older, None)
    assert new.coefficient == 0.3 and older.stateful_callbacks["EntropyTarget"] == new.state()


@pytest.mark.parametrize("restores", [False, True])
def test_a_resumed_run_has_the_weights_of_the_uninterrupted_one(whole_and_resumed, tmp_path, restores):
    """All processes of the run have an entropy below the first target, so that its weight grows at each step."""
    flags = {"entropy_coef": 0.1, "entropy_target": 100.0, "num_iterations": 2}
    whole_and_resumed(
        killed=6, resumed_from=4, max_steps=8, save_steps=4, save_strategy="steps",
        restore_callback_states_from_checkpoint=restores, **flags,
    )  # fmt: skip
    for name in ("whole", "cut"):
        rows = [row for row in read_metrics(tmp_path / name) if "loss" in row]
        weights = [row["entropy_coef"] for row in rows]
        assert weights == pytest.approx([0.1, 0.1, 0.105, 0.105, 0.11, 0.11, 0.115, 0.115], rel=1e-12)
        for row in rows:
            assert row["loss/entropy"] == pytest.approx(-row["entropy_coef"] * row["entropy"], rel=1e-5)
