"""The loss of a warm-up and its gradient, against the stock model's; how a step is divided; adapters; its end."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerControl, TrainerState

from qwenvl.config.grpo_config import WarmupConfig
from qwenvl.model.loading import unwrap
from qwenvl.model.positions import completion_positions
from qwenvl.run_log.log import read_metrics
from qwenvl.train.run.finite_steps import SKIPPED
from qwenvl.train.warmup.trainer import StopBelow, WarmupTrainer
from tests.train.conftest import turns
from tests.train.every_target import GRADIENTS
from tests.train.test_distributed import launch


@pytest.fixture
def make_warmup(tiny_checkpoint, sop_data, tmp_path):
    """``make_warmup(model=None, **settings)`` -> a WarmupTrainer on the tiny model and ``sop_data``."""

    def make(model=None, callbacks=None, **settings) -> WarmupTrainer:
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "dataset_use": str(sop_data),
            "max_steps": 2,
            "learning_rate": 1e-3,
            "base_interval": 0.5,
            "disable_tqdm": True,
            "save_strategy": "no",
            "use_cpu": True,
            "seed": 3,
        }
        model = model or str(tiny_checkpoint(initializer_range=0.1))
        return WarmupTrainer(model, WarmupConfig(**{**defaults, **settings}), callbacks=callbacks)

    return make


class Several:
    """One to three targets, a different number for each record."""

    def check_record(self, record):
        return None

    def of(self, record, opened_think):
        n = len(record.id) % 3 + 1
        return [(f"<answer>{record.id} {'again ' * k}</answer>",) for k in range(n)]


def logprobs_of(trainer, model, inputs) -> torch.Tensor:
    return trainer.target_logprobs(model, inputs, trainer.encoded(model, inputs))


def stock_losses(model, trainer, inputs) -> list[tuple[torch.Tensor, int, float]]:
    """For each target of a batch: its cross-entropy by the stock model's logits, its tokens, and its loss by labels."""
    prompts, losses = trainer.encode.build_inputs(inputs["prompts"]), []
    size = len(inputs["target_ids"]) // len(prompts)
    for n, (ids, mask) in enumerate(zip(inputs["target_ids"], inputs["target_mask"], strict=True)):
        if not mask.any():
            continue
        prompt, target = prompts.select([n // size]), ids[mask][None]
        positions = completion_positions(prompt.position_ids, 1, target.shape[1])
        output = model(
            input_ids=torch.cat([prompt.input_ids, target], 1),
            position_ids=torch.cat([prompt.position_ids, positions], 2),
            labels=torch.cat([torch.full_like(prompt.input_ids, -100), target], 1),
            **prompt.vision(),
        )
        logits = output.logits[0, -target.shape[1] - 1 : -1]
        losses.append((cross_entropy(logits, target[0], reduction="sum"), target.shape[1], output.loss.item()))
    return losses


@pytest.mark.parametrize(("family", "share"), [("qwen2_5_vl", "auto"), ("qwen2_5_vl", "off"), ("qwen3_vl", "auto")])
def test_loss_and_gradient_equal_those_of_the_stock_model(make_warmup, tiny_checkpoint, family, share):
    """Of all eight records, clips, image and text, with one to three targets each; in float64."""
    start = tiny_checkpoint(family, initializer_range=0.1)
    model = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float64)
    stock = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float64)
    trainer = make_warmup(model, shared_prefix=share, tune_mm_vision=True, per_device_train_batch_size=8)
    trainer.data_collator.targets = Several()
    inputs = next(iter(trainer.get_train_dataloader()))
    assert inputs["target_mask"].any(1).view(8, 3).sum(1).unique().tolist() == [1, 2, 3]
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()

    losses = stock_losses(stock, trainer, inputs)
    tokens = sum(count for _, count, _ in losses)
    by_hand = sum(total for total, _, _ in losses) / tokens
    by_hand.backward()
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert by_hand.item() == pytest.approx(sum(mean * count for _, count, mean in losses) / tokens, rel=1e-5)
    ours = dict(trainer.model.named_parameters())
    for name, parameter in stock.named_parameters():
        largest = parameter.grad.abs().max()
        torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=0, atol=float(1e-5 * largest), msg=name)


@pytest.fixture(scope="module")
def divided(tiny_checkpoint, sop_data, tmp_path_factory):
    """The gradients of two steps, of eight prompts and of the three that are left, divided in three ways."""
    folder = tmp_path_factory.mktemp("divided")
    words = [turns("What comes next? " + "step " * n, "so " * (1 + n % 4)) for n in range(10)]
    rows = [{"id": f"text-{n}", "conversations": conversation} for n, conversation in enumerate(words)]
    rows.append(json.loads(sop_data.read_text())[7] | {"image": str(sop_data.parent / "part.png")})
    (folder / "data.json").write_text(json.dumps(rows))
    splits = {
        "1 x 8": (1, {"per_device_train_batch_size": 8}),
        "8 x 1": (1, {"gradient_accumulation_steps": 8}),
        "2 processes x 4": (2, {"per_device_train_batch_size": 4}),
    }
    start, flags = tiny_checkpoint(initializer_range=0.1), {"num_train_epochs": 1, "max_steps": -1, "max_grad_norm": 0}
    for name, (processes, split) in splits.items():
        how = {"trains": "every_target"}
        launch(processes, start, folder / "data.json", folder / name, how=how, **flags, **split)
    return {name: folder / name for name in splits}


@pytest.mark.parametrize("split", ["8 x 1", "2 processes x 4"])
def test_the_gradient_does_not_depend_on_how_a_step_is_divided(divided, split):
    one, other = (torch.load(divided[name] / GRADIENTS) for name in ("1 x 8", split))
    assert len(one) == len(other) == 2
    for ours, theirs in zip(other, one, strict=True):
        assert sum(value.abs().max() > 1e-4 for value in theirs.values()) > 10
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=0, atol=float(1e-6 * value.abs().max()), msg=name)
    logs = [[row for row in read_metrics(divided[name]) if "loss" in row] for name in ("1 x 8", split)]
    for ours, theirs in zip(logs[1], logs[0], strict=True):
        for name in ("loss", "target/loss", "target/tokens", "prompt/tokens"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
        assert ours["loss"] == pytest.approx(ours["target/loss"], rel=1e-5)


def test_an_adapter_learns_alone_and_is_saved_as_a_whole_model(make_warmup, tmp_path):
    trainer = make_warmup(
        lora_enable=True, lora_r=4, lora_alpha=8, learning_rate=0.1, save_strategy="steps", save_steps=2
    )
    before = {n: p.clone() for n, p in trainer.model.named_parameters() if "lora_" not in n}
    trainer.train()
    trainer.save_model()
    assert all(torch.equal(p, before[n]) for n, p in trainer.model.named_parameters() if "lora_" not in n)
    assert (tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors").is_file()
    assert not list((tmp_path / "run").glob("adapter*"))
    AutoProcessor.from_pretrained(tmp_path / "run")
    assert ", trained by a supervised warm-up\n" in (tmp_path / "run" / "README.md").read_text()
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "run", dtype=torch.float32)
    assert whole.state_dict().keys() == AutoModelForImageTextToText.from_config(whole.config).state_dict().keys()
    inputs = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        taught = logprobs_of(trainer, trainer.model.eval(), inputs)
        with trainer.model.disable_adapter():
            untaught = logprobs_of(trainer, trainer.model, inputs)
        again = logprobs_of(make_warmup(whole.eval()), whole, inputs)
    assert (taught - untaught).abs().max() > 0.1
    torch.testing.assert_close(again, taught, rtol=0, atol=1e-4)


def test_the_loss_of_an_evaluation_is_the_mean_over_its_tokens(make_warmup, sop_data):
    trainer = make_warmup(eval_dataset_use=str(sop_data), per_device_eval_batch_size=3)
    trainer.data_collator.targets = Several()
    metrics = trainer.evaluate()
    inputs = trainer.data_collator([trainer.eval_dataset[n] for n in range(8)])
    with torch.no_grad():
        losses = stock_losses(unwrap(trainer.model).eval(), trainer, inputs)
    by_hand = sum(total.item() for total, _, _ in losses) / sum(tokens for _, tokens, _ in losses)
    assert metrics["eval_loss"] == pytest.approx(by_hand, rel=1e-4)
    assert metrics["eval_loss_n"] == 8
    assert trainer.evaluate(str(sop_data))["eval_loss"] == metrics["eval_loss"], "of a file that is given"


def test_a_record_that_is_left_out_leaves_a_step_without_targets(make_warmup, sop_data, tmp_path):
    rows = json.loads(sop_data.read_text())[:1]
    (tmp_path / "clip-0.mp4").write_bytes(b"no video")
    (tmp_path / "some.json").write_text(json.dumps([*rows, json.loads(sop_data.read_text())[6]]))
    trainer = make_warmup(dataset_use=str(tmp_path / "some.json"), on_bad_sample="skip")
    trainer.train()
    rows = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert sum(row["data/bad_samples"] for row in rows) == 1
    assert sorted(row["loss"] == 0 for row in rows) == [False, True]


def test_the_mean_of_the_last_ten_losses_is_compared():
    stop, control = StopBelow(0.5), TrainerControl()
    for losses, ends in (([0.4] * 9, False), ([0.4] * 10, True), ([9, *[0.4] * 10], True), ([0.4] * 9 + [1.4], False)):
        state, control.should_training_stop = TrainerState(), False
        state.log_history = [{"loss": loss} for loss in losses] + [{"eval_loss": 0.0}]
        stop.on_log(SimpleNamespace(save_strategy="no"), state, control, logs={"loss": losses[-1]})
        assert control.should_training_stop is ends, losses


def test_steps_that_were_left_out_have_no_loss():
    """The Trainer logs 0 for a step whose loss was NaN and that ``--on_nonfinite skip`` has left out."""
    stop = StopBelow(0.5)
    state = TrainerState()
    state.log_history = [{"loss": 0.0, SKIPPED: 1.0}] * 5 + [{"loss": 0.6, SKIPPED: 0.0}] * 9
    assert not stop._reached(state)
    state.log_history += [{"loss": 0.0, SKIPPED: 1.0}, {"loss": 0.6, SKIPPED: 0.0}]
    assert not stop._reached(state)
    state.log_history += [{"loss": 0.1, SKIPPED: 0.0}] * 10
    assert stop._reached(state)


def test_the_card_of_a_warm_up_has_its_held_out_loss_and_its_settings(make_warmup, sop_data, tmp_path):
    settings = {"target_template": "<answer>{solution}</answer>", "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_warmup(eval_dataset_use=str(sop_data), **settings)
    trainer.train()
    trainer.save_model()
    card = (tmp_path / "run" / "README.md").read_text()
    [*_, loss] = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert f"Mean loss of the held-out targets (`eval`) at step 2: {loss:.3f} nats per token." in card
    assert "not evaluated" not in card and "target_template: <answer>{solution}</answer>" in card
    assert "bf16:" not in card and "dataloader_num_workers:" not in card  # nobody has set them


def test_a_warm_up_ends_with_a_checkpoint_once_the_loss_is_low_enough(make_warmup, tmp_path):
    settings = {"max_steps": 60, "stop_below_loss": 1e6, "save_strategy": "steps", "save_steps": 40}
    make_warmup(**settings).train()
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "loss" in row] == list(range(1, 11))
    again = make_warmup(**settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-10"))
    assert again.steps_trained == 0
