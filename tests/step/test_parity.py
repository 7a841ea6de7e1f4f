"""When sampler and trainer are said to disagree."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.local import LocalEngine, SharedPrefixEngine
from qwenvl.run_log.log import read_metrics
from qwenvl.step.meter import Meter
from qwenvl.step.parity import ParityCheck, ParityError
from qwenvl.step.probe import Probe, probe_of, probe_rows
from qwenvl.types import RolloutBatch, SamplingParams
from tests.train.conftest import with_kernels


def checked(sampled, trained, exact=None, half_precision=False) -> dict[str, float]:
    """The numbers logged for one row of completion tokens with these log-probs of sampler and trainer."""
    mask = torch.arange(sampled.shape[1])[None] < sampled.shape[1] - 1  # the last one is padding
    rollout = RolloutBatch(
        mask.long(), mask, ["x"], ["stop"], sampled, boots=frozenset(["a"] if exact is not None else [])
    )
    meter, experience = Meter(), SimpleNamespace(rollout=rollout, staleness=0)
    parity = ParityCheck("first", half_precision=half_precision, dropout=False, meter=meter)
    parity.check(0, experience, trained, lambda: exact)
    return meter.flush()


def test_differences_are_measured_over_tokens_that_count():
    found = checked(torch.tensor([[-1.001, -2.0, 9.0]]), torch.tensor([[-1.0, -2.0, 0.0]]))
    assert found == {"parity/max": pytest.approx(1e-3, rel=1e-2), "parity/mean": pytest.approx(5e-4, rel=1e-2)}


@pytest.mark.parametrize(("difference", "half"), [(0.02, False), (0.005, False), (0.06, True), (3.0, True)])
def test_a_difference_above_rounding_stops_the_run(difference, half):
    ours = torch.tensor([[-1.0, -2.0, 0.0]])
    with pytest.raises(ParityError, match="positions, frames or templates"):
        checked(ours - difference, ours, half_precision=half)


def test_half_precision_may_round_a_single_token_far_off():
    theirs = torch.zeros(1, 101)
    theirs[0, 3] = 1.5
    checked(theirs, torch.zeros(1, 101), half_precision=True)


def test_dropout_on_adapters_turns_the_check_off_with_one_line(make_trainer, tmp_path, caplog):
    settings = {"lora_enable": True, "lora_r": 4, "lora_dropout": 0.5, "gradient_accumulation_steps": 2, "max_steps": 1}
    make_trainer(**settings).train()
    assert caplog.text.count("check_parity: left out, because lora_dropout") == 1
    assert not any("parity/max" in row for row in read_metrics(tmp_path / "run"))


def test_a_server_in_half_precision_is_held_to_the_trainers_own_rounding():
    ours = torch.zeros(1, 101)
    exact = ours + 0.03
    found = checked(
        ours + 0.059, ours, exact, half_precision=True
    )  # less than twice the rounding, more than without a measurement
    assert found["parity/noise"] == pytest.approx(0.03) and found["parity/mean"] == pytest.approx(0.059)
    with pytest.raises(ParityError, match=r"expected at most 2 and 0\.06"):
        checked(ours + 0.07, ours, exact, half_precision=True)


class Dropping:
    """A sampler that drops height and width of the positions."""

    def __init__(self, engine):
        self.engine = engine

    def sample(self, model, request):
        return self.engine.sample(model, replace(request, prompts=[dropped(each) for each in request.prompts]))


def dropped(prompts):
    temporal = prompts.position_ids[:1]
    return replace(prompts, position_ids=temporal.expand_as(prompts.position_ids).contiguous())


@pytest.mark.parametrize("kind", [LocalEngine, SharedPrefixEngine])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_sampler_that_drops_height_and_width_is_found_in_every_family(family, kind, tiny_pair, random_prompts):
    model, processor = tiny_pair(family)
    prompts = random_prompts(model, ["tit", "tv"])
    engine, params = kind(processor.tokenizer, model), SamplingParams(16)
    probe = lambda engine: probe_of(
        model, prompts, engine, params, shared_prefix.completion_likelihood, precision="float32"
    )
    assert probe(engine).problem() is None
    assert "positions, frames or templates" in probe(Dropping(engine)).problem()


def test_one_short_prompt_of_each_kind_of_media_is_probed(tiny_pair, random_prompts):
    model, _ = tiny_pair()
    prompts = random_prompts(model, ["t", "vt", "vtttt", "i", "iv"])
    lengths = prompts.attention_mask.sum(1).tolist()
    clips = [row for row in (1, 2, 4) if lengths[row] == min(lengths[n] for n in (1, 2, 4))]
    assert probe_rows(prompts) == list(dict.fromkeys([min((3, 4), key=lengths.__getitem__), *clips]))
    assert probe_rows(prompts, {"image"}) == clips and probe_rows(prompts, {"image", "video"}) == []
    assert probe_rows(prompts.select([0])) == []


def test_the_bound_of_a_probe_follows_the_rounding_of_the_trainer():
    trained, mask = torch.zeros(1, 101), torch.ones(1, 101, dtype=torch.bool)
    found = lambda gap, noise, precision="float32", temperature=1.0: Probe(
        trained + gap, trained, None if noise is None else trained + noise, mask, temperature, precision
    ).problem()
    assert found(7e-5, 1e-5) is None and "at most 8e-05" in found(9e-5, 1e-5)
    assert found(1e-6, 0.0) is None and found(3e-6, 0.0)
    assert found(3e-6, 0.0, temperature=0.5) is None and found(3e-6, 0.0, temperature=2.0)
    assert found(9e-5, None) is None and found(2e-4, None)
    assert found(0.029, 0.01, "half") is None and found(0.031, 0.01, "half")
    # A few tokens that rounding has sent to another expert.
    few = torch.zeros(1, 101)
    few[0, :40] = 0.5
    assert Probe(few, trained, trained + 1e-6, mask, 1.0, "float32").problem() is None


@pytest.mark.parametrize("settings", [{"bf16": True}, {}], ids=["bfloat16", "float32"])
def test_a_run_ends_whose_sampler_drops_height_and_width(make_trainer, settings):
    trainer = make_trainer(max_steps=1, gradient_accumulation_steps=1, train_sampling_strategy="sequential", **settings)
    with_kernels(trainer, engine=Dropping(trainer.kernels.engine))
    with pytest.raises(ParityError, match="positions"):
        trainer.train()
