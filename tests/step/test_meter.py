"""Metrics between log entries, joined over processes by hand-made numbers."""

import time
from pathlib import Path

import pytest

from qwenvl.step.meter import Collected, Meter, peak_memory


def test_means_are_weighted_and_none_does_not_count():
    meter = Meter()
    meter.mean("kl", 0.1, weight=3)
    meter.mean("kl", 0.5)
    meter.mean("kl", None)
    meter.mean("never", None)
    assert meter.flush() == {"kl": pytest.approx(0.2)}
    assert meter.flush() == {}


def test_processes_are_joined_by_their_weights():
    meter = Meter()
    meter.mean("reward", 1.0, weight=2)
    meter.max("length", 3)
    meter.count("bad", 0)
    other = Collected(means={"reward": (0.0, 6.0)}, maxima={"length": 9}, sums={"bad": 2.0}, steps=1)
    assert meter.flush(lambda own: [own, other]) == {"reward": pytest.approx(0.25), "length": 9, "bad": 2.0}


def test_times_are_per_step_and_of_the_slowest_process():
    meter = Meter()
    meter.step()
    meter.step()
    with meter.time("time/x_s"):
        time.sleep(0.02)
    meter.start("time/y_s")
    meter.stop("time/y_s")
    meter.stop("time/never_s")
    other = Collected(seconds={"time/x_s": 4.0}, steps=2)
    values = meter.flush(lambda own: [own, other])
    assert values["time/x_s"] == 2.0 and set(values) == {"time/x_s", "time/y_s"}


def test_the_wait_of_each_process_is_logged_by_its_rank():
    meter = Meter()
    meter.step()
    other = Collected(seconds={"time/wait_s": 4.0, "time/x_s": 1.0}, steps=1)
    assert meter.flush(lambda own: [own, other]) == {"time/wait_s/0": 0.0, "time/wait_s/1": 4.0, "time/x_s": 1.0}
    with meter.wait("time/wait_s"):
        pass
    assert meter.flush() == {}, "a process alone waits for nobody"


def test_the_peak_memory_of_a_process_is_that_of_the_system():
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    (before,) = (int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    used, total = peak_memory("cpu")
    assert before * 1024 * 0.99 <= used < total
