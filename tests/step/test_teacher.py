"""A teacher in training: its log-probs by hand, each of its options once, and runs that it must not change."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForImageTextToText

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.views import (
    VIEWS,
    evidence,
    feedback,
    frames,
    reads_completions,
    solution,
    view_named,
)
from qwenvl.demo.tiny import DEFAULT_TEXTS, make_model, make_processor
from qwenvl.grpo.options import VIEW_ROWS
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.step.assemble import check_view
from qwenvl.step.teacher import Teacher, with_sentence
from qwenvl.train import assemble
from qwenvl.train.assemble import _running
from qwenvl.types import Message, Record
from tests.train.conftest import PROMPT, caught_gradients, logged, turns

SEES_MORE = {"teacher": "self", "teacher_sees": "frames(12)"}


def trained(trainer) -> list[dict[str, torch.Tensor]]:
    steps = caught_gradients(trainer, lr=0.1)
    trainer.train()
    return steps


@pytest.fixture(scope="module")
def evident_data(sop_data):
    """The videos of ``sop_data`` with the span of their evidence, an image and a text. Read it, never write to it."""
    rows = json.loads(sop_data.read_text())
    rows = [{**row, "evidence": [[0.25, 1.0]]} if "video" in row else row for row in rows]
    path = sop_data.with_name("evident.json")
    path.write_text(json.dumps(rows[::2] + rows[7:]))
    return path


@pytest.mark.parametrize("served", [False, True])
def test_token_advantages_add_the_clipped_gap_between_teacher_and_policy(make_trainer, sop_data, fake, served):
    """A + weight x clip(log p of the teacher - log p of the policy), from forwards of the plain path.

    Completions of a server are taught by the trainer's weights too.
    """
    settings = {**SEES_MORE, "distill_weight": 0.7, "distill_kl": "sampled(clip=0.1)"}
    if served:
        server = fake(initializer_range=0.1)
        settings |= {"rollout_engine": "vllm_server", "vllm_server": [server.address], "vllm_patience": 20.0}
    trainer = make_trainer(**settings, per_device_train_batch_size=4, dataset_use=str(sop_data))
    inputs = next(iter(trainer.get_train_dataloader()))
    trainer.compute_loss(trainer.model, inputs)
    [experience], [fixed] = trainer.step.experiences, trainer.step.fixed
    assert not served or sum(len(each.prompts) for each in server.asked) == 4
    batch, rollout = experience.batch, experience.rollout
    data = load_dataset(str(sop_data), base_interval=0.5, seed=3)
    samples = [data.load(frames(record, 12), epoch) for record, epoch in zip(batch.records, batch.epochs, strict=True)]
    assert {len(clip.frames) for sample in samples for clip in sample.videos} == {12}
    longer = trainer.answer.sample.encode.build_inputs(GRPOCollator(trainer.processing_class)(samples)["prompts"])
    given = (rollout.completion_ids, rollout.completion_mask)
    settings = {"temperature": 0.7, "logit_chunk_tokens": 64}
    with torch.no_grad():
        theirs = completion_logprobs(trainer.model, longer, *given, **settings)
        own = completion_logprobs(trainer.model, experience.prompts, *given, **settings)
    torch.testing.assert_close(fixed.teacher.logprobs, theirs, rtol=0, atol=2e-5)
    gap = theirs - own
    assert (gap.abs() > 0.1).any() and ((gap.abs() < 0.1) & given[1]).any()
    policy = trainer.logprobs.of_policy(trainer.model, experience)
    used = trainer.step.loss_inputs(experience, policy, fixed).advantages
    expected = experience.advantages[:, None] + 0.7 * gap.clamp(-0.1, 0.1)
    torch.testing.assert_close(used[given[1]], expected[given[1]], rtol=0, atol=3e-5)
    assert any(batch.frames)
    for n, clips in enumerate(batch.frames):  # without a clip the teacher sees no more
        assert clips or gap[3 * n : 3 * n + 3].abs().max() < 2e-5


OPTIONS = {
    "more frames": SEES_MORE,
    "evidence, no KL": {"teacher": "reference", "teacher_sees": "evidence(6)", "grpo_beta": 0.0},
    "another checkpoint, exact": {"teacher": "PATH", "teacher_sees": "solution", "distill_kl": "full"},
    "feedback, on vision": {"teacher": "self", "teacher_sees": "feedback", "distill_on": "vision"},
    "another checkpoint, feedback": {"teacher": "PATH", "teacher_sees": "feedback", "distill_on": "vision"},
    "exact, on vision": {**SEES_MORE, "distill_kl": "full", "distill_on": "vision", "num_iterations": 2},
    "adapter": {"teacher": "reference", "teacher_sees": "solution", "lora_enable": True, "lora_r": 4},
    "adapter, exact": {**SEES_MORE, "distill_kl": "full", "lora_enable": True, "lora_r": 4},
    "tower learns": {**SEES_MORE, "tune_mm_vision": True, "distill_on": "vision"},
    "other groups": {**SEES_MORE, "filter_groups": True, "distill_kl": "full"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_gives_the_same_gradients_by_both_paths_and_in_parts(
    make_trainer, evident_data, tiny_checkpoint, tmp_path, name
):
    """Micro-batches of 3 x 1 with a prompt for all its completions, 1 x 3 with one for each: the same gradients."""
    larger = str(tiny_checkpoint(initializer_range=0.1, num_layers=3, seed=4))
    settings = {key: larger if value == "PATH" else value for key, value in OPTIONS[name].items()}
    steps, rows = [], []
    for n, (size, sharing) in enumerate(((3, "auto"), (1, "off"))):
        trainer = make_trainer(
            dataset_use=str(evident_data),
            output_dir=str(tmp_path / str(n)),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=3 // size,
            shared_prefix=sharing,
            generation_top_p=1.0,
            max_steps=settings.get("num_iterations", 1),
            max_grad_norm=0.0,
            **settings,
        )
        steps.append(trained(trainer))
        rows.append(logged(trainer, times=False))
    for one, other in zip(*steps, strict=True):
        assert other.keys() == one.keys()
        for key, gradient in other.items():
            torch.testing.assert_close(gradient, one[key], rtol=1e-3, atol=2e-6, msg=key)
    first, second = (each[0] for each in rows)
    names = ["teacher/kl", "teacher/agree_frac", *(["loss/distill"] if trainer.objective.distill else [])]
    names += ["teacher/vision_frac"] if "distill_on" in settings else []
    assert [second[key] for key in names] == pytest.approx([first[key] for key in names], rel=1e-3, abs=1e-5)
    assert ("teacher/clipped_frac" in first) == (not trainer.objective.distill)
    assert first["teacher/kl"] != 0 and 0 <= first["teacher/agree_frac"] <= 1


@pytest.mark.parametrize("kl", ["sampled(clip=1000)", "full"])
def test_gradients_equal_those_of_trl(make_trainer, tiny_checkpoint, kl):
    """Of its DistillationTrainer with the reverse KL, and of its importance-weighted one with weights of 1.

    TRL lacks prompts with video: the prompt is text.
    """
    trl = pytest.importorskip("trl", reason="TRL comes with the extra bench")
    sampled_by_trl = pytest.importorskip("trl.experimental.iw_opd").IWOPDTrainer
    rows = [{"id": "one", "conversations": turns("What comes after (1) pick?", "(2)")}]
    larger = str(tiny_checkpoint(initializer_range=0.1, num_layers=3, seed=4))
    settings = {"teacher": larger, "distill_kl": kl, "loss_type": "dapo", "grpo_alpha": 1.0, "grpo_beta": 0.0}
    trainer = make_trainer(functions=None, datasets=(rows,), dataset_use=None, **settings)
    loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
    loss.backward()

    [experience] = trainer.step.experiences
    ids, mask = experience.rollout.completion_ids, experience.rollout.completion_mask
    prompt = experience.prompts.input_ids.expand(len(ids), -1)
    model, teacher = (
        AutoModelForImageTextToText.from_pretrained(each, dtype=torch.float32)
        for each in (trainer.model.name_or_path, larger)
    )
    theirs = SimpleNamespace(
        model=model,
        teacher_model=teacher,
        beta=1.0,  # the reverse KL
        temperature=0.7,
        iw_opd_gamma=0.0,
        iw_opd_epsilon=1e-8,
        model_kwarg_keys=(),
        _is_vlm=True,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _forward_redirection=lambda wrapped, own, method, *args, **more: method(*args, **more),
        accelerator=trainer.accelerator,
    )
    if kl == "full":
        theirs._get_last_hidden_state = partial(trl.DistillationTrainer._get_last_hidden_state, theirs)
        inputs = {"prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt)}
        inputs |= {"completion_ids": ids, "completion_mask": mask.long()}
        their_loss, *_ = trl.DistillationTrainer._compute_loss(theirs, model, inputs, None)
        torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=0)
    else:
        whole = {"input_ids": torch.cat([prompt, ids], 1)}
        whole["attention_mask"] = torch.cat([torch.ones_like(prompt), mask.long()], 1)
        own, other = (each(**whole).logits[:, prompt.shape[1] - 1 : -1] for each in (model, teacher))
        taught = (other / 0.7).log_softmax(-1).gather(-1, ids[..., None])[..., 0].detach()
        their_loss = sampled_by_trl._compute_iw_opd_loss(theirs, own, ids, ids.where(mask, -100), taught)
    their_loss.backward()
    gradients = {name: each.grad for name, each in model.named_parameters()}
    for name, each in trainer.model.named_parameters():
        if each.grad is not None and each.grad.any():
            torch.testing.assert_close(each.grad, gradients[name], rtol=1e-3, atol=2e-6, msg=name)


def test_a_teacher_of_weight_0_changes_no_weight(make_trainer, tmp_path):
    """Bit by bit. The teacher is only compared with, and the log says so."""
    plain = make_trainer(output_dir=str(tmp_path / "plain"))
    plain.train()
    taught = make_trainer(output_dir=str(tmp_path / "taught"), **SEES_MORE, distill_weight=0.0)
    taught.train()
    weights = dict(taught.model.named_parameters())
    assert all(torch.equal(each, weights[name]) for name, each in plain.model.named_parameters())
    for ours, theirs in zip(logged(taught, times=False), logged(plain, times=False), strict=True):
        more = ours.keys() - theirs.keys()
        assert more == {"teacher/kl", "teacher/agree_frac", "teacher/clipped_frac"}
        assert {name: ours[name] for name in theirs} == theirs


@pytest.mark.parametrize("teacher", ["reference", "self"])
def test_states_of_a_teacher_that_moves_meet_the_head_of_the_same_weights(make_trainer, monkeypatch, teacher):
    """Its weights change before each iteration on the same completions. The states are those of a forward just then."""
    moves = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.9}
    trainer = make_trainer(
        teacher=teacher, teacher_sees="frames(12)", distill_kl="full", num_iterations=2, learning_rate=1e-2,
        grpo_beta=0.1, **(moves if teacher == "reference" else {}),
    )  # fmt: skip
    states, gaps = [], []

    def scored(self, experience, known, step, plain=Teacher.scores):
        found = plain(self, experience, known, step)
        just_then = plain(self, experience, None, step)
        states.append(found.states)
        gaps.append((just_then.states - found.states).abs().max().item())
        return found

    monkeypatch.setattr(Teacher, "scores", scored)
    trainer.train()
    assert len(states) == 2 and gaps == [0.0, 0.0]
    assert (states[0] - states[1]).abs().max() > 1e-3, "the teacher has moved"


def test_without_named_rewards_only_the_teacher_is_trained_on(make_trainer, tmp_path):
    trainer = make_trainer(functions=None, **SEES_MORE, max_steps=1)
    steps = trained(trainer)
    [row] = logged(trainer)
    assert row["reward/total"] == 0 and max(each.abs().max() for each in steps[0].values()) > 1e-4
    with pytest.raises(ValueError, match="--grpo_epsilon has no effect where the teacher alone"):
        full = {"distill_kl": "full", "grpo_epsilon": 0.1, "num_iterations": 2, "output_dir": str(tmp_path / "full")}
        make_trainer(functions=None, **SEES_MORE, **full)
    with pytest.raises(ValueError, match="--scale_rewards has no effect where the teacher alone"):
        make_trainer(functions=None, **SEES_MORE, scale_rewards="batch", output_dir=str(tmp_path / "other"))
    make_trainer(**SEES_MORE, scale_rewards="batch", output_dir=str(tmp_path / "named"))


def test_a_view_from_a_file_of_the_user_is_taught_from(make_trainer, tmp_path):
    plugin = tmp_path / "views_of_the_test.py"
    plugin.write_text(
        "from dataclasses import replace\n"
        "def hint(record):\n"
        "    return replace(record, messages=(replace(record.messages[-1], text=record.messages[-1].text + ' Hm?'),))\n"
        "def told(record, completion, rewards):\n"
        "    return f'{completion} got {rewards}'\n"
    )
    for name in ("hint", "told"):
        view = {"teacher": "reference", "teacher_sees": f"{plugin}:{name}"}
        trainer = make_trainer(**view, max_steps=1, output_dir=str(tmp_path / name))
        trainer.train()
        assert logged(trainer)[0]["teacher/kl"] != 0
    with pytest.raises(ValueError, match="has no function other"):
        make_trainer(teacher="reference", teacher_sees=f"{plugin}:other", output_dir=str(tmp_path / "none"))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_prompt_with_a_sentence_is_that_of_the_processor(sop_data, family):
    """Ids and positions of a prompt with a sentence, against those of the record with the sentence.

    In this vocabulary the end of a question and a new line are one token.
    """
    texts = [*DEFAULT_TEXTS, *["Which?\nMore words.", "fasten\nMore"] * 20]
    processor = make_processor(family, texts)
    assert len(processor.tokenizer("?\n")["input_ids"]) == 1
    collator, data = GRPOCollator(processor), load_dataset(str(sop_data), base_interval=0.5)
    model = make_model(family, processor)
    build = InputBuilder.of(position_rule(model.config), processor)
    records = [data.record(n) for n in (0, 6, 7)]
    records.append(replace(records[0], messages=(replace(records[0].messages[-1], text="Which?\n<video>"),)))
    told = [replace(each.messages[-1], text=f"{each.messages[-1].text}\nMore words.") for each in records]
    for record, longer in zip(records, told, strict=True):
        both = (record, replace(record, messages=(longer,)))
        before, expected = (collator([data.load(each)])["prompts"] for each in both)
        got = with_sentence(build(before), record, "More words.", collator)
        assert got.input_ids.tolist() == expected.input_ids.tolist()
        grids = (expected.image_grid_thw, expected.video_grid_thw, expected.seconds_per_grid)
        rule = position_rule(model.config)
        assert torch.equal(
            got.position_ids, prompt_positions(rule, expected.input_ids, expected.attention_mask, *grids)
        )


def test_a_sentence_may_spell_a_media_tag(sop_data):
    processor = make_processor()
    collator, data = GRPOCollator(processor), load_dataset(str(sop_data), base_interval=0.5)
    build = InputBuilder.of(position_rule(make_model("qwen2_5_vl", processor).config), processor)
    prompt = build(collator([data.load(data.record(0))])["prompts"])
    got = with_sentence(prompt, data.record(0), "Not <video> again.", collator)
    video = processor.video_token_id
    assert (got.input_ids == video).sum() == (prompt.input_ids == video).sum()
    assert "\nNot <video> again.<|im_end|>" in processor.tokenizer.decode(got.input_ids[0])


@pytest.mark.parametrize("sees", ["evidence", "evidence(4)", "solution", "frames(4)"])
def test_a_teacher_with_nothing_to_teach_is_refused(sees):
    records = [Record("a", (Message("user", "Which?"),), " ", (), (), (), {}, "data.json[0]")]
    args = SimpleNamespace(teacher_sees=sees)
    with pytest.raises(ValueError, match=f"--teacher_sees {re.escape(sees)} has no effect: none of 1 record has"):
        check_view(args, view_named(sees), records)


def test_records_that_a_teacher_sees_no_more_of_are_counted(evident_data, capsys):
    records = load_dataset(str(evident_data)).records
    check_view(SimpleNamespace(teacher_sees="solution"), view_named("solution"), records)
    assert capsys.readouterr().err == ""
    check_view(SimpleNamespace(teacher_sees="evidence"), view_named("evidence"), records)
    assert "--teacher_sees evidence: 2 of 5 records lack a clip with `evidence`" in capsys.readouterr().err


def test_a_view_of_the_user_is_asked_until_it_changes_a_record(evident_data):
    asked = []

    def second(record):
        asked.append(record)
        if len(asked) < 2:
            return record
        question = record.messages[-1]
        return replace(record, messages=(replace(question, text=question.text + " Hm?"),))

    args = SimpleNamespace(teacher_sees="file.py:second")
    records = load_dataset(str(evident_data)).records
    check_view(args, second, records)
    assert len(asked) == 2
    with pytest.raises(ValueError, match=r"--teacher_sees file\.py:second has no effect: none of 5 records"):
        check_view(args, lambda record: record, records)


def test_views_show_frames_evidence_solution_or_feedback(evident_data):
    data = load_dataset(str(evident_data), base_interval=0.5)
    record = data.record(0)
    assert len(data.load(frames(record, 6)).videos[0].frames) == 6
    times = data.load(evidence(record, 4)).videos[0].info.times
    assert len(times) == 4 and times[0] >= 0.25 and times[-1] <= 1.0
    assert solution(record).messages[-1].text == f"{PROMPT}\nThe right answer is: (1) step"
    sentence = feedback(record, "so", {"accuracy": 0.0, "format": 1.0, "none": None})
    assert sentence == "An earlier answer was scored: accuracy 0, format 1. Do better."
    assert [reads_completions(view) for view in VIEWS.values()] == [False, False, False, True]
    assert {*VIEWS, None} == set(VIEW_ROWS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"teacher": "self"}, "--teacher self has no effect where it sees what the policy sees"),
        ({"teacher_sees": "solution"}, "--teacher_sees has no effect without --teacher"),
        ({"distill_weight": 0.5}, "--distill_weight has no effect without --teacher"),
        ({"teacher": "reference", "teacher_sees": "frame"}, "--teacher_sees frame: did you mean frames"),
        ({"teacher": "reference", "teacher_sees": "frames(1)"}, "--teacher_sees: count must be at least 2"),
        ({**SEES_MORE, "distill_kl": "full(clip=3)"}, "--distill_kl full has no argument 'clip'"),
        ({**SEES_MORE, "distill_weight": 0.0, "distill_on": "vision"}, "cannot be used with --distill_weight 0"),
        ({**SEES_MORE, "loss_type": "gspo"}, "one ratio for a completion"),
        ({**SEES_MORE, "loss_type": "grpo(ratio=sequence)", "num_iterations": 2}, "one ratio for a completion"),
        ({"teacher": "self()"}, "--teacher self has no effect where it sees what the policy sees"),
        ({"teacher": "some/model(offload=True)", "use_cpu": True}, "offload of --teacher some/model cannot be used"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flags_without_effect_are_refused(flags, message):
    with pytest.raises(ValueError) as refused:
        GRPOConfig("runs/none", **{"use_cpu": True, **flags})
    assert message in str(refused.value)


def test_an_offloaded_teacher_is_in_cpu_memory_between_its_passes():
    class Moved(torch.nn.Linear):
        def to(self, device):
            places.append(device)
            return self

    places = []
    with _running(Moved(2, 2), "cuda", offload=True) as model:
        assert places == ["cuda"] and not model.training and not torch.is_grad_enabled()
    assert places == ["cuda", "cpu"]


def test_a_checkpoint_that_cannot_teach_is_refused(make_trainer, tiny_checkpoint, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="qwen2_5_vl, got qwen2_vl"):
        make_trainer(teacher=str(tiny_checkpoint("qwen2_vl")))
    rows = [{"id": "one", "conversations": turns("What?", "(1)")}]
    with pytest.raises(ValueError, match="--shared_prefix off"):
        make_trainer(
            teacher=str(tiny_checkpoint(num_layers=3)), tools=["look"], output_dir=str(tmp_path / "looks"),
            datasets=(rows,), dataset_use=None,
        )  # fmt: skip
    monkeypatch.setattr(assemble, "is_fsdp_enabled", lambda: True)
    with pytest.raises(ValueError, match="fsdp_cpu_ram_efficient_loading"):
        make_trainer(teacher=str(tiny_checkpoint(num_layers=3)), output_dir=str(tmp_path / "fsdp"))
