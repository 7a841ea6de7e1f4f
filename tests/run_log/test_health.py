"""Rules over made-up histories: what each needs, what it is silent about, and that it does not count log entries."""

from __future__ import annotations

import math

from qwenvl.run_log.health import LogEntry, findings, history_of


def history(groups: int = 4, every: int = 1, **series: list[float]) -> list[LogEntry]:
    """A log of so many groups a step, from the values of each step by metric, ``a__b`` for ``a/b``.

    Args:
        every: steps of a log entry, whose values are means.
    """
    named = {name.replace("__", "/"): values for name, values in series.items()}
    steps = len(next(iter(named.values())))
    entries = []
    for start in range(0, steps, every):
        part = range(start, min(start + every, steps))
        values = {name: sum(values[k] for k in part) / len(part) for name, values in named.items()}
        if "reward/max" in named:
            values["reward/max"] = max(named["reward/max"][k] for k in part)
        entries.append(LogEntry(part[-1] + 1, len(part), groups * len(part), values))
    return entries


def first_found(entries: list[LogEntry], name: str) -> int | None:
    """The step at which a rule holds for the first time. None where it never does."""
    for count in range(1, len(entries) + 1):
        if name in [finding.code for finding in findings(entries[:count])]:
            return entries[count - 1].step
    return None


def ramp(start: float, end: float, steps: int) -> list[float]:
    return [start + (end - start) * k / (steps - 1) for k in range(steps)]


def test_equal_rewards_are_reported_after_24_groups_in_a_row():
    def shares(values, groups):
        entries = history(groups, group__zero_std_frac=values, reward__total=[0.25] * len(values))
        return first_found(entries, "equal_rewards")

    assert shares([1.0] * 60, groups=1) == 24
    assert shares([1.0] * 60, groups=8) == 3
    assert shares(([1.0] * 20 + [0.5]) * 2 + [1.0] * 18, groups=1) is None
    [found] = findings(history(1, group__zero_std_frac=[1.0] * 24, reward__total=[0.25] * 24))
    assert found.message.startswith("over 90% of the last 24 groups had equal rewards (mean reward 0.250)")
    assert "--generation_temperature" in found.advice


def test_equal_rewards_of_a_short_run_are_reported_at_its_end():
    short = history(1, group__zero_std_frac=[1.0] * 3, reward__total=[0.0] * 3)
    assert not list(findings(short))
    [found] = findings(short, ended=True)
    assert found.message.startswith("over 90% of the last 3 groups had equal rewards")
    assert not list(findings(history(1, group__zero_std_frac=[1.0, 0.5]), ended=True))
    assert not list(findings([], ended=True))


def test_a_format_that_is_never_reached_is_reported():
    name = "format_never_reached"
    assert first_found(history(4, reward__strict_format=[0.0] * 20), name) == 12  # 48 groups
    assert first_found(history(4, reward__strict_format=[0.0] * 5 + [0.01] + [0.0] * 20), name) is None
    assert first_found(history(4, **{"reward/strict_format/skipped": [0.0] * 20}), name) is None
    assert first_found(history(4, reward__accuracy=[0.0] * 20), name) is None
    assert first_found(history(4, reward__format_penalty=[0.0] * 20), name) is None, "0 is the best of a penalty"


def test_truncated_completions_are_reported_unless_they_become_fewer():
    def cut(values):
        return first_found(history(4, completion__truncated_frac=values), "truncated")

    assert cut([0.11] * 20) == 12  # two windows of 24 groups
    assert cut([0.09] * 30) is None
    assert cut([0.0] * 20 + [0.31] * 20) == 22  # a third of the last window
    assert cut(ramp(1.0, 0.0, 24)) is None  # the model learns to stop
    assert cut([1.0] * 20) == 2  # all of 8 groups
    assert cut([0.0] + [1.0] * 20) == 3
    for share, names in ((1.0, ["truncated"]), (0.9, [])):  # of a run that ends before there were as many
        found = findings(history(1, completion__truncated_frac=[share] * 3), ended=True)
        assert [each.code for each in found] == names


def test_a_policy_that_stops_looking_is_reported():
    def stops(looked, calls=0.0):
        entries = history(4, look__looked_frac=looked, look__calls=[calls] * len(looked))
        return first_found(entries, "looks_stop"), [each.message for each in findings(entries)]

    assert stops([0.3] * 40) == (None, [])
    when, [message] = stops([0.4] * 10 + ramp(0.4, 0.0, 11) + [0.0] * 20)
    assert when == 31  # two windows of six steps, the first with one of 0.04
    assert message == (
        "0% of the completions of the last 48 groups looked at the video again, where 40% did in an earlier step"
    )
    assert stops([0.0] * 11)[0] is None
    assert stops([0.0] * 40) == (12, ["0% of the completions of the last 48 groups looked at the video again"])
    assert stops([0.0] * 40, calls=0.5)[1][0].endswith("again; they call tools 0.5 times each, and are refused")
    assert stops([0.0] * 10 + [0.1] * 2)[0] is None  # it begins to look


def test_a_kl_that_grows_without_the_reward_is_reported():
    def grows(kl, reward):
        return first_found(history(4, kl=kl, reward__total=reward), "kl_grows")

    falls, rises = ramp(0.5, 0.2, 60), ramp(0.2, 0.9, 60)
    assert grows([0.0] * 30 + ramp(0.0, 2.0, 30), falls) == 50  # when the last 24 have 0.5 on average
    assert grows([0.0] * 30 + ramp(0.0, 2.0, 30), rises) is None
    assert grows([0.02] * 24 + [0.2] * 36, falls) is None  # small
    assert grows([0.8] * 60, falls) is None  # high, and as high as before
    assert grows([0.0] * 24 + [2.0] * 24, [math.nan] * 48) is None  # no reward to compare with


def test_an_entropy_that_collapses_without_a_gain_is_reported():
    def collapsed(entropy, reward, best=1.0):
        entries = history(4, entropy=entropy, reward__total=reward, reward__max=[best] * len(reward))
        return first_found(entries, "entropy_collapsed")

    falls = [1.0] * 10 + [0.1] * 30
    assert collapsed(falls, [0.3] * 40) == 16  # six steps are 24 groups
    assert collapsed(falls, ramp(0.1, 0.9, 40)) is None  # it learns
    assert collapsed(falls, [0.95] * 40) is None  # nothing left to learn
    assert collapsed(falls, [0.3] * 40, best=0.32) is None
    assert collapsed([1.0] * 10 + [0.3] * 30, [0.3] * 40) is None
    assert collapsed([0.01] * 40, [0.3] * 40) is None  # so it was from the beginning


def test_a_reward_that_does_not_rise_is_reported():
    def flat(reward, best=1.0, equal=0.0):
        more = {"reward__max": [best] * len(reward), "group__zero_std_frac": [equal] * len(reward)}
        return first_found(history(4, reward__total=reward, **more), "reward_flat")

    assert flat([0.3] * 160) == 100  # 100 steps of 4 groups are 400
    assert flat(ramp(0.3, 0.35, 300)) is None
    assert flat([0.95] * 160) is None
    assert flat([0.0] * 160, equal=1.0) is None  # of equal rewards it is told already
    assert first_found(history(1, reward__total=[0.3] * 500), "reward_flat") == 400


def test_a_healthy_run_has_no_finding():
    """The reward rises, entropy falls and KL grows with it, completions learn to stop, and all is solved at last."""
    steps = 300
    learned = [1 / (1 + math.exp(-(k - 80) / 20)) for k in range(steps)]
    noise = [0.03 * math.sin(7.3 * k) for k in range(steps)]
    entries = history(
        8,
        reward__total=[0.3 + 0.85 * x + e for x, e in zip(learned, noise, strict=True)],
        reward__max=[1.2] * steps,
        reward__strict_format=[0.2 + 0.8 * x for x in learned],
        entropy=[0.5 - 0.48 * x for x in learned],
        kl=[1.5 * x for x in learned],
        completion__truncated_frac=[max(0.0, 0.6 - 0.05 * k) for k in range(steps)],
        group__zero_std_frac=[0.2 + 0.5 * x for x in learned],
    )
    assert [found for count in range(1, steps, 3) for found in findings(entries[:count])] == []


def test_rows_of_steps_become_entries_with_their_groups():
    """By hand: two steps on each completions, six prompts a step that samples, which are the first, third and fifth."""
    rows = [{"step": 1, "kl": 0.1}, {"step": 4, "reward/total": 0.5, "time/sample_s": 9.0}, {"step": 5}]
    found = history_of(rows, prompts=6, iterations=2)
    assert [(each.step, each.steps, each.groups) for each in found] == [(1, 1, 6), (4, 3, 6), (5, 1, 6)]
    assert [each.values for each in found] == rows


def test_the_groups_that_were_sampled_are_counted_where_the_row_has_them():
    """A data set of 16 records in a step of 100,000 prompts, trained on twice."""
    rows = [{"step": 1, "group/count": 16.0}, {"step": 2, "group/count": 0.0}, {"step": 4, "group/count": 16.0}]
    assert [each.groups for each in history_of(rows, prompts=100_000, iterations=2)] == [16, 0, 16]
