"""No test leaves its process scheduled otherwise than it was: a plugin of pytest.

A process that became a real-time one hands that on to all that it starts. They come before everything else on the
machine, which then takes minutes for what took seconds. SVT-AV1 does so to its callers, where these are root.
"""

from __future__ import annotations

import os

import pytest

AS_IT_WAS = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    if AS_IT_WAS is None or (now := os.sched_getscheduler(0)) == AS_IT_WAS:
        return
    os.sched_setscheduler(0, AS_IT_WAS, os.sched_param(0))
    pytest.fail(f"{item.nodeid} or a fixture of it left this process with scheduling policy {now}, not {AS_IT_WAS}")
