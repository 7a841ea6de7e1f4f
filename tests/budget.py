"""Where the tests take longer than they should, they say which of them do: a plugin of pytest."""

from __future__ import annotations

import os
import time

SECONDS = 540  # of all tests, on two cores that do nothing else
SHOWN = 15


def pytest_configure(config):
    config.began = time.monotonic()


def pytest_terminal_summary(terminalreporter, config):
    took = time.monotonic() - config.began
    if took <= SECONDS or hasattr(config, "workerinput"):
        return
    seconds: dict[str, float] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if hasattr(report, "duration"):
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    terminalreporter.section(f"{took:.0f} s, more than the {SECONDS} s that the tests may take on two quiet cores")
    load = os.getloadavg()[0]
    terminalreporter.line(f"The load of the machine was {load:.1f} in the last minute. The slowest tests, in seconds:")
    for name, each in sorted(seconds.items(), key=lambda item: -item[1])[:SHOWN]:
        terminalreporter.line(f"{each:7.1f} {name}")
