"""The numbers that a run writes of its rewards equal those made by hand."""

import math
from types import SimpleNamespace

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.errors import BadMediaError
from qwenvl.demo.tiny import make_processor
from qwenvl.run_log.log import read_metrics, read_rollouts
from qwenvl.step.meter import Meter
from qwenvl.train.journal import Journal, launch_facts
from qwenvl.types import BadSample, Turn

NONE = math.nan
REWARDS = [1.0, NONE, 0.5, NONE, NONE, NONE, *(2.0, 2.0, 5.0) * 6]  # 8 groups of 3


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_completions_without_a_reward_count_nowhere(make_trainer, scale):
    """The first group lacks one, the second all three: both functions fail on them, or give what is no reward."""

    def first(completions, **columns):
        return REWARDS

    def second(completions, **columns):
        return [reward * 2 for reward in REWARDS]

    trainer = make_trainer(
        functions=(first, second),
        on_reward_error="skip",
        scale_rewards=scale,
        per_device_train_batch_size=8,
        max_steps=1,
    )
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir))
    totals = [None if math.isnan(reward) else 3 * reward for reward in REWARDS]
    assert [row.total for row in rows] == totals
    assert [row.rewards["first"] for row in rows] == [None if math.isnan(reward) else reward for reward in REWARDS]

    # Group 0: 3 and 1.5, deviations +-.75, std .75 sqrt(2). The others: 6 6 15, deviations -3 -3 6, std sqrt(27).
    # All 20 of them: 1 x 3, 1 x 1.5, 12 x 6, 6 x 15, so that the mean is 8.325.
    squares = (3 - 8.325) ** 2 + (1.5 - 8.325) ** 2 + 12 * (6 - 8.325) ** 2 + 6 * (15 - 8.325) ** 2
    of_all = math.sqrt(squares / 19)
    spread = {"group": (0.75 * math.sqrt(2), math.sqrt(27)), "batch": (of_all, of_all), "none": (1, 1)}[scale]
    first_group, others = (std + (scale != "none") * 1e-4 for std in spread)
    expected = [0.75 / first_group, 0, -0.75 / first_group, 0, 0, 0, *(-3 / others, -3 / others, 6 / others) * 6]
    assert [row.advantage for row in rows] == pytest.approx(expected, rel=1e-5)

    (log,) = (row for row in read_metrics(trainer.args.output_dir) if "loss" in row)
    assert log["reward/total"] == pytest.approx(8.325) and log["reward/first"] == pytest.approx(8.325 / 3)
    assert log["reward/std"] == pytest.approx((0.75 * math.sqrt(2) + 0 + 6 * math.sqrt(27)) / 8, rel=1e-5)
    assert log["group/zero_std_frac"] == pytest.approx(1 / 8)
    assert log["reward/first/skipped"] == log["reward/second/skipped"] == 4


def test_failed_rows_are_counted_since_the_last_entry_after_a_resume_too(whole_and_resumed):
    def brittle(completions, trainer_state, **columns):
        fails = trainer_state.global_step % 2 == 0  # in the steps 1, 3 and 5
        return [NONE if fails and row == 0 else float(row) for row in range(len(completions))]

    settings = {"max_steps": 6, "logging_steps": 2, "save_strategy": "steps", "save_steps": 4}
    settings |= {"functions": (brittle,), "on_reward_error": "skip", "per_device_train_batch_size": 1}
    settings |= {"gradient_accumulation_steps": 1}
    whole, resumed = whole_and_resumed(killed=5, resumed_from=4, **settings)
    for trainer in (whole, resumed):
        log = [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]
        assert [(row["step"], row["reward/brittle/skipped"]) for row in log] == [(2, 1), (4, 1), (6, 1)]


class Drawn(list):
    """A batch of training: its samples, and those that were left out."""

    records = ()

    def __init__(self, samples=(), bad=()):
        super().__init__(samples)
        self.bad = [BadSample(SimpleNamespace(where=f"r[{n}]", dataset="d"), f"{n}.mp4: cut short") for n in bad]


def test_a_run_whose_media_are_gone_ends(tmp_path):
    journal = Journal(GRPOConfig(output_dir=str(tmp_path), use_cpu=True), Meter())
    for start in (0, 15):  # fifteen in a row, and a good one between
        for number in range(start, start + 15):
            journal.drawn(Drawn(bad=[number]))
        journal.drawn(Drawn(samples=[0]))
    journal.drawn(Drawn(bad=range(8)))
    with pytest.raises(BadMediaError, match="none of the last 16 samples could be read, the latest: 15"):
        journal.drawn(Drawn(bad=range(8, 16)))


def test_the_command_of_a_run_is_noted_without_its_tokens(monkeypatch):
    tokens = ["--hub_token", "secret", "--hub-token=secret"]
    monkeypatch.setattr("sys.argv", ["/bin/qwenvl", "train", *tokens, "--stop_strings", "token", "3"])
    facts = launch_facts()
    assert facts["command"] == "qwenvl train --hub_token ... --hub-token=... --stop_strings token 3"
    assert facts["hardware"].endswith("CPU cores") and facts["started"]


def thinking(texts, reasons, opened=False, turns=None) -> dict[str, float]:
    """The numbers that a journal logs of the thinking parts of a group of three."""
    processor = make_processor()
    data, meter = SimpleNamespace(ruler=SimpleNamespace(processor=processor)), Meter()
    rollout = SimpleNamespace(texts=texts, finish_reasons=reasons, turns=turns)
    journal = Journal(GRPOConfig(use_cpu=True, grpo_sample_size=len(texts)), meter, data)
    journal._thinking(SimpleNamespace(opened_think=[opened]), rollout)
    return meter.flush()


def test_the_length_of_thinking_and_the_share_cut_inside_it_are_logged():
    length = lambda text: len(make_processor().tokenizer(text)["input_ids"])
    texts = ["<think>left</think>1", "<think>left or right", "<think>left</think>12345"]
    found = thinking(texts, ["stop", "length", "length"])
    assert found["completion/thinking_mean"] == pytest.approx((2 * length("left") + length("left or right")) / 3)
    assert found["completion/thinking_cut_frac"] == pytest.approx(1 / 3)
    opened = thinking(["left</think>1", "1"], ["stop", "length"], opened=True)
    assert opened["completion/thinking_mean"] == pytest.approx((length("left") + length("1")) / 2)
    assert opened["completion/thinking_cut_frac"] == 0.5
    assert thinking(["1", "2"], ["stop", "length"]) == {}
    without = thinking(["<think>left</think>1", "2"], ["stop", "length"])
    assert without["completion/thinking_mean"] == pytest.approx(length("left") / 2)
    assert without["completion/thinking_cut_frac"] == 0
    turns = [(Turn("<think>left</think>call"), Turn("<think>right"))]
    several = thinking(["<think>left</think>call<think>right"] * 2, ["length"] * 2, turns=turns * 2)
    assert several["completion/thinking_mean"] == pytest.approx(length("left") + length("right"))
    assert several["completion/thinking_cut_frac"] == 1
