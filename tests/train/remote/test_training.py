"""Training over servers: parity at every step, also where servers die, and an end that can be resumed."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch

from qwenvl.rollout.engine import EngineLostError
from qwenvl.run_log.log import read_metrics, read_rollouts


def settings(fakes, **more):
    return {
        "rollout_engine": "vllm_server",
        "vllm_server": [each.address for each in fakes],
        "vllm_patience": 0.3,
        "generation_temperature": 1.0,
        "generation_top_p": 1.0,
        "logging_steps": 1,
        "num_train_epochs": 1,
        "report_to": [],
    } | more


def rows(trainer):
    return [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]


@pytest.mark.parametrize(
    "recipe",
    [{}, {"lora_enable": True, "lora_dropout": 0.0}, {"tune_mm_vision": True}],
    ids=["whole weights", "an adapter", "the tower learns"],
)
def test_servers_sample_with_the_weights_of_each_step(make_trainer, fake, sop_data, recipe):
    """Completions are of the weights of their step, which parity would tell."""
    fakes = [fake(initializer_range=0.1) for _ in range(2)]
    trainer = make_trainer(
        **settings(fakes, **recipe),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        check_parity="every",
        eval_dataset_use=str(sop_data),
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.train()
    assert [row["parity/max"] < 1e-4 for row in rows(trainer)] == [True] * 3
    assert all(row["time/sync_s"] > 0 for row in rows(trainer)) and sum(len(each.asked) for each in fakes) >= 8
    # For steps 1, 2 and 3 and the last evaluation. That after step 2 needs no more.
    assert len({request.version for request, _ in fakes[0].given}) == len(fakes[0].given) == 4
    texts = [row.completion for row in read_rollouts(trainer.args.output_dir)]
    assert len(texts) == 3 * 4 * 3


def test_a_server_that_comes_back_is_given_the_weights_and_compared_again(make_trainer, fake):
    """It has the starting weights. It is given the policy's, and its first batch is compared."""
    first = fake(initializer_range=0.1)
    trainer = make_trainer(**settings([first], vllm_patience=20.0), max_steps=3)
    started = []

    def die_in_step_two(answer):
        first.faults = ["die"]
        return answer

    first.faults = [die_in_step_two]
    port = first.port

    def start_again():
        while not started:
            try:
                started.append(fake(port=port, initializer_range=0.1))
            except OSError:
                time.sleep(0.02)

    threading.Thread(target=start_again, daemon=True).start()
    trainer.train()
    assert len(first.asked) == 1 and len(started[0].asked) == 2
    compared = [row["step"] for row in rows(trainer) if "parity/max" in row]
    assert compared == [1, 2] and all(row["parity/max"] < 1e-4 for row in rows(trainer) if "parity/max" in row)


def test_the_end_of_all_servers_leaves_a_checkpoint(make_trainer, fake, tmp_path):
    """The run that goes on from it ends with the weights of one that nothing happened to."""
    more = {"max_steps": 4}
    server = fake(initializer_range=0.1)
    whole = make_trainer(**settings([server], **more), output_dir=str(tmp_path / "whole"))
    whole.train()
    server = fake(initializer_range=0.1)
    server.faults = [*[lambda answer: answer] * 2, "die"]  # in step 3
    cut = {**settings([server], **more), "output_dir": str(tmp_path / "cut")}
    trainer = make_trainer(**cut)
    with pytest.raises(EngineLostError, match="no server samples any more"):
        trainer.train()
    state = json.loads((tmp_path / "cut" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    server = fake(initializer_range=0.1)
    resumed = make_trainer(**{**cut, "vllm_server": [server.address]}, resume="auto")
    resumed.train()
    for (name, here), there in zip(resumed.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(here, there), name
    assert [row["step"] for row in rows(resumed) if "parity/max" in row] == [1, 3]  # and of a resumed run's server
    folders = tmp_path / "cut", tmp_path / "whole"
    cut, whole = ([row.record_id for row in read_rollouts(each, split=None)] for each in folders)
    assert cut == whole


def test_settings_that_servers_cannot_have_are_refused(make_trainer, fake):
    for more, told in (
        ({"top_entropy_quantile": 0.2}, "--top_entropy_quantile cannot be used with --rollout_engine vllm_server"),
        ({"vllm_patience": 7200.0}, "--vllm_patience 7200 seconds are not below --stall_timeout 60 minutes"),
    ):
        with pytest.raises(ValueError, match=told):
            make_trainer(**settings([fake()], **more))
