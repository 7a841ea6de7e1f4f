"""Pass rates in a run: what is drawn by them, what is kept of them, and that a resumed run draws the same."""

import json
from collections import Counter, defaultdict

import pytest

from qwenvl.config.grpo_config import GRPOConfig, WarmupConfig
from qwenvl.runlog import read_metrics, read_rollouts
from qwenvl.train.run.checkpoints import seal
from qwenvl.train.run.pass_rates import FILE
from qwenvl.train.run.resume import SettingsError

SOLVED = ("clip-0", "clip-1", "clip-2", "text")
BAND = {"difficulty_band": "solved(low=0.1, high=0.9, window=1)", "per_device_train_batch_size": 2, "num_iterations": 1}
ANY = {**BAND, "difficulty_band": True}


def solved(completions, id, **columns):
    """1 for all completions of some records, for others 1 for one completion of three, None for the image."""
    values = {"image": None} | dict.fromkeys(SOLVED, 1.0)
    return [values.get(each, float(n % 3 == 0)) for n, each in enumerate(id)]


def brief(completions, **columns):
    return [0.1 * (n % 3) for n in range(len(completions))]


FUNCTIONS = {"functions": [solved, brief]}


def drawn(trainer, epoch_steps: int) -> dict[int, Counter]:
    """How often each record was drawn in each epoch."""
    epochs = defaultdict(Counter)
    for row in read_rollouts(trainer.args.output_dir):
        epochs[(row.step - 1) // epoch_steps][row.record_id] += row.sample == 0
    return epochs


def known(folder) -> dict[str, dict]:
    rows = map(json.loads, (folder / FILE).read_text().splitlines())
    return {row["where"].rpartition("[")[2].rstrip("]"): row for row in rows}


def test_solved_records_are_drawn_less_in_an_epoch_of_the_same_length(make_trainer, tmp_path):
    trainer = make_trainer(**BAND, **FUNCTIONS, max_steps=-1, num_train_epochs=3)
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 12 and trainer.state.epoch == 3
    epochs = drawn(trainer, epoch_steps=4)
    assert set(epochs[0].values()) == {1} and all(counts.total() == 8 for counts in epochs.values())
    # Four of eight lie outside, by 0.1: 8 x 0.4 / 4.4 = 0.73 draws of them, and 7.27 of the others
    assert sum(epochs[1][name] for name in SOLVED) <= 1
    assert all(epochs[1][name] in (1, 2) for name in epochs[0] if name not in SOLVED)
    passes = defaultdict(list)
    for row in read_rollouts(trainer.args.output_dir):
        if row.sample == 0:
            passes[row.record_id].append(row.epoch)
    assert all(each == list(range(len(each))) for each in passes.values()), "each time the frames are drawn anew"
    rows = known(tmp_path / "run")
    assert len(rows) == 8
    for number, name in enumerate([*(f"clip-{n}" for n in range(6)), "text", "image"]):
        row = rows[str(number)]
        assert row["drawn"] == len(passes[name])
        assert row["outside"] == (name in SOLVED)
        expected = 1.0 if name in SOLVED else None if name == "image" else pytest.approx(1 / 3)
        assert all(rate == expected for rate in (row["pass_rate"], *row["epochs"].values()))
    log = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    shares = [row["difficulty/outside_frac"] for row in log]
    assert shares[:4] == [0, 0, 0, 0] and sum(shares[4:8]) * 2 == sum(epochs[1][name] for name in SOLVED)


def test_a_run_that_is_resumed_in_the_midst_of_an_epoch_draws_what_it_would_have(whole_and_resumed, tmp_path):
    """Each epoch is drawn by the one before: the checkpoint has one half of it, the resumed run sees the other."""
    settings = {**BAND, **FUNCTIONS, "filter_groups": "solved", "save_strategy": "steps"}
    whole, resumed = whole_and_resumed(killed=7, resumed_from=6, max_steps=14, save_steps=6, **settings)
    rows = [list(read_rollouts(trainer.args.output_dir)) for trainer in (whole, resumed)]
    assert rows[0] == rows[1] and any(row.dropped for row in rows[0] if row.step > 6)
    assert whole.difficulty.state() == resumed.difficulty.state()
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()
    epochs = drawn(whole, epoch_steps=4)
    assert max(epochs[2].values()) > 1, "by the pass rates, not each record once"


def test_a_new_run_in_the_folder_begins_without_pass_rates(make_trainer, tmp_path):
    for _ in range(2):
        trainer = make_trainer(**BAND, **FUNCTIONS, max_steps=5)
        trainer.train()
        assert set(drawn(trainer, epoch_steps=4)[0].values()) == {1}
    assert sum(row["drawn"] for row in known(tmp_path / "run").values()) == 10


def test_a_resumed_run_keeps_its_band(make_trainer, tmp_path):
    settings = {**BAND, **FUNCTIONS, "save_strategy": "steps", "save_steps": 1}
    make_trainer(**settings, max_steps=1).train()
    with pytest.raises(SettingsError, match=r"--difficulty_band was solved\(low=0\.1.* and is .*low=0\.2\): the order"):
        settings["difficulty_band"] = "solved(low=0.2)"
        make_trainer(**settings).train(str(tmp_path / "run" / "checkpoint-1"))


def test_a_checkpoint_without_pass_rates_is_refused(make_trainer, tmp_path):
    settings = {**BAND, **FUNCTIONS, "save_strategy": "steps", "save_steps": 1}
    make_trainer(**settings, max_steps=1).train()
    path = tmp_path / "run" / "checkpoint-1" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["PassRates"]
    path.write_text(json.dumps(state))
    seal(path.parent)
    with pytest.raises(SettingsError, match="--difficulty_band: the checkpoint has no pass rates"):
        make_trainer(**settings).train(str(path.parent))


def test_which_reward_it_is(make_trainer):
    def accuracy(completions, **columns):
        return [0.0 for _ in completions]

    assert make_trainer(**ANY, functions=[brief, accuracy]).pass_rates._by == "accuracy"
    assert make_trainer(**ANY, functions=[brief]).pass_rates._by == "total"
    with pytest.raises(ValueError, match="--difficulty_band right: no such reward in this run; give one of total"):
        make_trainer(**BAND | {"difficulty_band": "right"}, functions=[brief])
    with pytest.raises(ValueError, match="the totals of a group have a mean of 0; give it one of brief"):
        make_trainer(**ANY, functions=[brief], reward_aggregation="normalize_then_sum")


def test_runs_without_an_earlier_epoch_or_a_random_order_or_rewards_are_refused():
    with pytest.raises(ValueError, match="--difficulty_band has no effect without --num_train_epochs above 1"):
        GRPOConfig(difficulty_band=True)
    GRPOConfig(difficulty_band=True, max_steps=100)
    with pytest.raises(ValueError, match="--difficulty_band cannot be used with --train_sampling_strategy sequential"):
        GRPOConfig(difficulty_band=True, max_steps=100, train_sampling_strategy="sequential")


def test_a_warm_up_has_no_pass_rates():
    for name, value in {"difficulty_band": True, "filter_groups": True}.items():
        with pytest.raises(TypeError, match=f"--{name} has no effect in a warm-up: a warm-up samples nothing"):
            WarmupConfig(**{name: value}, max_steps=10)
