"""Operations against PyTorch's own counter, and seconds redone by hand."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.sharing import shared_prefix
from qwenvl.plan.seconds import DEVICES, REACHED, READ, Rates, forward_flops, rates_of, seconds_by_phase, text_flops
from qwenvl.plan.sizes import Job, Shapes
from tests.plan.test_memory import JOB, SHAPES, TEXT, WEIGHTS


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_products_of_a_forward(family):
    """Attention and linear attention are left out on both sides: the counter does not know the first on a CPU."""
    model = make_model(family, make_processor(family), hidden_size=64, num_layers=4)
    prompts, ids = PromptInputs.of_text(torch.randint(0, 250, (1, 50))), torch.randint(0, 250, (3, 9))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        shared_prefix.completion_logprobs(
            model, prompts, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0, logit_chunk_tokens=512
        )
    counted = counter.get_flop_counts()["Global"]
    products = sum(flops for operator, flops in counted.items() if str(operator) in ("aten.mm", "aten.addmm"))
    shapes = Shapes.of(model.config)
    job = Job(tokens=50, patches=0, group=3, length=9)
    expected = text_flops(shapes.text, job.row_tokens, 0.0, 27)
    if shapes.text.linear is not None:
        expected -= 3 * 6.0 * shapes.text.linear.state * job.row_tokens
    assert products == pytest.approx(expected, rel=0.01)


def test_a_layer_by_hand():
    entries = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 16
    assert text_flops(TEXT, tokens=7, pairs=30.0, logits=2) == 2 * (2 * entries * 7 + 4 * 8 * 30) + 2 * 100 * 8 * 2
    pairs = 10**2 / 2 + 15 * 10 + 15 * 5 / 2
    merger = 2 * (4 * 4) * (4 * 4 + 8) * 16 / 4
    assert forward_flops(SHAPES, JOB) == text_flops(TEXT, JOB.row_tokens, pairs, 15) + merger


def test_seconds_follow_from_the_rates():
    slow, fast = (seconds_by_phase(SHAPES, WEIGHTS, JOB, Rates(rate, 1e9, "")) for rate in (1e9, 2e9))
    assert slow["policy"] == pytest.approx(forward_flops(SHAPES, JOB) / 1e9) == 2 * fast["policy"]
    assert slow["backward"] == 2 * slow["policy"] and slow["reference"] == slow["policy"]
    assert slow["update"] == fast["update"]


def test_rates_are_nominal_or_given():
    assert rates_of(None, 78, None, None).source.startswith("a100-80, ")
    rates, (_, tflops, gbs) = rates_of("l4", 80, None, None), DEVICES["l4"]
    assert (rates.flops, rates.bytes) == (tflops * REACHED * 1e12, gbs * READ * 1e9)
    assert "nominal" in rates.source
    rates = rates_of("l4", 24, 50.0, 100.0)
    assert (rates.flops, rates.bytes) == (50e12, 100e9) and "as given" in rates.source


def test_a_warm_up_takes_no_seconds_to_sample():
    taught = replace(JOB, warmup=True, encoded=False)
    rates = Rates(1e9, 1e9, "")
    whole, own = (seconds_by_phase(SHAPES, WEIGHTS, job, rates) for job in (replace(taught, warmup=False), taught))
    assert set(own) == {"vision", "policy", "backward", "update"}
    assert own["policy"] == whole["policy"] and own["vision"] < whole["vision"]
