"""The benchmarks run, and count the operations that PyTorch counts."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"


def attention_flops(query_shape, key_shape, value_shape, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(query_shape, key_shape, value_shape)


ON_CPU = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
"""Before version 2.15 PyTorch's counter does not know the attention of the CPU."""


def counted(run) -> dict[str, int]:
    with FlopCounterMode(display=False, custom_mapping=ON_CPU) as counter, torch.no_grad():
        run()
    return {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_flops_of_the_ideal_step(family, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import bench_model
    from bench_model import Case, Step, forward_flops, tower_flops

    from qwenvl.model.sharing.shared_prefix import completion_logprobs

    monkeypatch.setattr(bench_model, "FRAME", (4, 4))  # whole windows
    step = Step.of(Case(60, 3, 8), family)
    mergers = [step.model.model.visual.merger, *getattr(step.model.model.visual, "deepstack_merger_list", ())]
    of_mergers = sum(2 * m.weight.numel() for merger in mergers for m in merger.modules() if hasattr(m, "in_features"))
    of_mergers *= step.patches // 4
    tower = sum(counted(step.tower).values())
    assert tower - of_mergers == pytest.approx(tower_flops(step), rel=1e-6)

    forward = counted(lambda: step.reference_logprobs(completion_logprobs, step.encoded))
    attention = sum(flops for operator, flops in forward.items() if "attention" in operator)
    text = step.model.config.text_config
    tokens = step.prompt_tokens + 3 * 8
    pairs = step.prompt_tokens**2 / 2 + 24 * step.prompt_tokens + 3 * 8**2 / 2
    width = text.num_attention_heads * text.head_dim if family == "qwen3_vl" else text.hidden_size
    products = forward_flops(step) - text.num_hidden_layers * 4 * width * pairs
    # The last token of a completion is not computed, which the ideal does not know.
    assert sum(forward.values()) - attention == pytest.approx(products, rel=4 / tokens)


@pytest.mark.slow
def test_the_step_benchmark_runs():
    command = [sys.executable, str(BENCH / "step.py"), "--cases", "200,2,4", "--repeats", "1", "--threads", "1"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "200,2,4: 222 prompt tokens" in out and out.count(" MiB, ") == 2 and "ideal step" in out


def test_the_records_benchmark_runs(fork_python, tmp_path):
    options = ["--records", "30", "--kinds", "csv", "--folder", str(tmp_path)]
    command = [fork_python, str(BENCH / "records.py"), *options]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "30 records" in out and "| csv, 0 MB | " in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["exact", pytest.param("phases", marks=pytest.mark.slow), "decoding"])
def test_what_a_gpu_is_asked_runs_on_a_cpu(part, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script adds to
    importlib.import_module("gpu").main([part, "--rehearse", "--plain", "--results", str(tmp_path / "rows.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["model"] for row in rows} == {"tiny_qwen2_5_vl", "tiny_qwen3_5"}
    assert all(row["logprobs_ratio"] < 3 and row["parity_mean"] < 0.01 for row in rows if part == "exact")
