"""The default number of processes that decode clips."""

import os
from collections import namedtuple

import pytest

from qwenvl.config import grpo_config
from qwenvl.config.grpo_config import GRPOConfig, decoding_workers

PLENTY = 64 * 10**9


@pytest.mark.parametrize(
    ("cuda", "cores", "processes", "shared", "expected"),
    [
        (True, 16, 1, PLENTY, 2),
        (True, 16, 8, PLENTY, 1),  # two cores for each process: one is left
        (True, 8, 8, PLENTY, 0),
        (True, 16, 1, 64 * 10**6, 0),  # what Docker gives
        (True, 16, 2, 3 * 10**9, 0),
        (False, 16, 1, PLENTY, 0),
    ],
)
def test_decoding_overlaps_where_the_machine_has_room_for_it(
    cuda, cores, processes, shared, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr(grpo_config, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: namedtuple("Usage", "free")(shared))
    assert decoding_workers(cuda) == expected


def test_a_number_that_is_given_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(grpo_config, "decoding_workers", lambda cuda: 2)
    made = lambda **more: GRPOConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", **more)
    assert made().dataloader_num_workers == 2
    assert made(dataloader_num_workers=0).dataloader_num_workers == 0
