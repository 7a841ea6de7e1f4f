"""Training with tools: sampled tokens are trained, in several groupings and by both paths; looks are written down."""

import json
from dataclasses import replace

import pytest
import torch

from qwenvl.demo.tiny import make_processor
from qwenvl.own_code import OwnCodeError
from qwenvl.rollout import background, next_token
from qwenvl.run_log.log import read_rollouts
from qwenvl.step import encode as encode_stage
from qwenvl.step import kernels
from tests.train.conftest import caught_gradients, logged
from tests.train.copying_engine import CopyingEngine, with_copying_engine

CALL = '<tool_call>{"name": "look", "arguments": {"start": 0.5, "end": 1.5}}</tool_call><|im_end|>'


@pytest.fixture
def calls_first(monkeypatch):
    """Every other completion begins with a call of ``look``: what is sampled is forced, its log-probs are not."""
    tokens = make_processor("qwen2_5_vl").tokenizer(CALL)["input_ids"]

    def processors(*args, made=next_token.logits_processors):
        chosen, starts = made(*args), []

        def forced(ids, scores):
            starts.append(ids.shape[1])
            if (t := ids.shape[1] - starts[0]) >= len(tokens):
                return scores
            follows = torch.arange(len(ids)) % 2 == 0 if t == 0 else ids[:, starts[0]] == tokens[0]
            only = torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor(tokens[t]), 0.0)
            return torch.where(follows[:, None], only, scores.index_fill(1, torch.tensor(tokens[:1]), -torch.inf))

        chosen.insert(0, forced)
        return chosen

    monkeypatch.setattr(next_token, "logits_processors", processors)


LOOKS = {"tools": ["look"], "look_frames": 4, "generation_max_length": 120, "max_turns": 2, "check_parity": "every"}
LOOKS |= {"generation_temperature": 1.0, "generation_top_p": 1.0, "max_steps": 1, "per_device_train_batch_size": 2}


@pytest.mark.parametrize("sharing", ["auto", "off"])
def test_looks_are_in_rewards_rollouts_and_metrics(make_trainer, calls_first, sop_data, tmp_path, sharing):
    records = json.loads(sop_data.read_text())
    for each in records:
        each |= {name: str(sop_data.parent / each[name]) for name in ("video", "image") if name in each}
        each |= {"evidence": [[1.0, 2.0]]} if "video" in each else {"evidence": "a field of another kind"}
    (tmp_path / "data.json").write_text(json.dumps(records))
    data = {"dataset_use": str(tmp_path / "data.json"), "allow_outside_media": True}
    seen = []

    def looks(completions, turns, **columns):
        seen.extend(turns)
        return [float(sum(len(turn.calls) for turn in each)) for each in turns]

    trainer = make_trainer(**LOOKS, **data, shared_prefix=sharing, functions=(looks,))
    trainer.train()
    assert len(seen) == 6 and json.loads(json.dumps(seen[0][0].calls[0].arguments)) == {"start": 0.5, "end": 1.5}
    rows = list(read_rollouts(trainer.args.output_dir))
    asked = [row for row in rows if any(turn.calls for turn in row.turns)]
    assert len(asked) == 3 and len(rows) == 6
    for row in asked:
        first, second = row.turns
        [call] = first.calls
        assert first.text in CALL and second.calls == ()
        assert row.completion == first.text + second.text and row.tokens <= 120
        assert row.evidence == (((1.0, 2.0),) if row.clips else ())
        if row.clips:
            [clip] = call.clips
            assert call.error is None and clip.path == row.clips[0].path
            assert all(0.5 <= time <= 1.5 for time in clip.times) and len(clip.indices) == 4
        else:
            assert call.error == "there is no video"
    [logs] = logged(trainer)
    ious = [(row in asked) / 3 for row in rows if row.clips]  # 0.5 to 1.5 s and 1 to 2 s
    assert logs.get("look/evidence_iou") == (pytest.approx(sum(ious) / len(ious)) if ious else None)
    assert logs["look/calls"] == logs["reward/looks"] == 0.5 and logs["parity/max"] < 1e-4
    assert logs["look/looked_frac"] <= 0.5 and logs["look/tokens"] > 0
    assert trainer.pipeline.sample.toolbox.on_answer == trainer.meter.call_answered


@pytest.mark.parametrize(
    "more",
    [{}, {"teacher": "self", "teacher_sees": "frames(8)", "distill_on": "vision"}],
    ids=["no teacher", "a teacher"],
)
def test_the_update_does_not_depend_on_how_prompts_are_grouped(make_trainer, calls_first, tmp_path, more):
    """Of rollouts that are given, since draws depend on what is sampled together."""
    steps = []
    for batch, accumulation in ((4, 1), (1, 4)):
        grouping = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(**LOOKS | grouping | more, output_dir=str(tmp_path / f"{batch}"), grpo_beta=0.1)
        steps.append(caught_gradients(trainer))
        trainer.train()
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-7)


def test_an_evaluation_encodes_looks_by_the_tower_of_now(make_trainer, calls_first, sop_data):
    """A script may load other weights between two of them."""
    trainer = make_trainer(**LOOKS, eval_dataset_use=str(sop_data))
    trainer.evaluate()
    known = trainer.answer.sample.looks.known
    before = {key: look.pixel_values_videos.clone() for key, look in known.items()}
    with torch.no_grad():
        for weight in trainer.model.model.visual.parameters():
            weight.mul_(1.5)
    trainer.evaluate()
    shared = before.keys() & known.keys()  # the calls are forced, so these looks are asked for again
    assert shared and not any(torch.equal(known[key].pixel_values_videos, before[key]) for key in shared)


TWICE = {"per_device_train_batch_size": 4}


@pytest.mark.parametrize(
    "more",
    [{"num_iterations": 2}, {"async_rollouts": 3}, TWICE],
    ids=["num_iterations", "async_rollouts", "two epochs"],
)
def test_a_killed_and_resumed_run_is_the_same_run(whole_and_resumed, calls_first, monkeypatch, more):
    """Of a second epoch a whole run has the looks of the first, a resumed one encodes them again."""
    encoded = []

    def encode(model, prompts, scales, plain=kernels.encode_vision):
        encoded.append(prompts.videos_per_prompt)
        return plain(model, prompts, scales)

    monkeypatch.setattr(kernels, "encode_vision", encode)
    if "async_rollouts" in more:
        with_copying_engine(monkeypatch)
        monkeypatch.setattr(encode_stage, "LOOKS_BYTES", 0)
    settings = {**LOOKS, **more, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = whole_and_resumed(killed=3, resumed_from=2, **settings)
    assert_same_run(whole, resumed)
    if more is TWICE:
        assert encoded.count([1]) == 3 * 6, "each of three runs encodes the look at each of six clips once"


HOSTILE = (
    '<tool_call>{"name":"<|video_pad|><|im_end|>"}</tool_call>',
    '<tool_call>{"name":"look","arguments":{"start":-1e308,"end":1e308}}</tool_call>',
    '<tool_call>{"name":"zoom","arguments":{"time":1,"x1":0,"y1":0,"x2":5e-324,"y2":1e-9}}</tool_call>',
    "<tool_call>" + "[" * 60,
    "<tool_call>" * 9,
    '<tool_call>{"name":"look","arguments":{"start":"\\ud800","end":[1]}}</tool_call>',
)


@pytest.fixture
def says(monkeypatch):
    """The completion n says ``HOSTILE[n]`` in ordinary tokens and ends its turn, in each of its turns."""
    tokenizer = make_processor("qwen2_5_vl").tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    scripts = [[*tokenizer(text, split_special_tokens=True)["input_ids"], end] for text in HOSTILE]

    def processors(*args, made=next_token.logits_processors):
        chosen, starts = made(*args), []

        def forced(ids, scores):
            starts.append(ids.shape[1])
            t = ids.shape[1] - starts[0]
            only = torch.full_like(scores, -torch.inf)
            for row in range(len(ids)):
                script = scripts[row % len(scripts)]
                only[row, script[t] if t < len(script) else end] = 0.0
            return only

        chosen.insert(0, forced)
        return chosen

    monkeypatch.setattr(next_token, "logits_processors", processors)


def test_a_run_trains_on_completions_with_hostile_calls(make_trainer, says, tmp_path):
    settings = {**LOOKS, "tools": ["look", "zoom"], "look_fps": 2.0, "grpo_sample_size": 6, "max_turns": 3}
    trainer = make_trainer(**settings | {"generation_max_length": 400, "per_device_train_batch_size": 1})
    trainer.train()
    rows = list(read_rollouts(trainer.args.output_dir))
    calls = [[call for turn in row.turns for call in turn.calls] for row in rows]
    assert len(rows) == 6 and all(len(each) >= 2 for each in calls)
    assert all(call.error or call.clips or call.pictures for each in calls for call in each)
    [logs] = logged(trainer)
    assert logs["parity/max"] < 1e-4 and logs["look/tokens"] > 0


@pytest.mark.parametrize("more", [{}, {"async_rollouts": 2, "max_steps": 4}], ids=["in turn", "ahead"])
def test_an_own_tool_that_fails_ends_the_run_in_one_line(make_trainer, calls_first, tmp_path, monkeypatch, more):
    plugin = tmp_path / "own_tools.py"
    plugin.write_text(
        "from qwenvl import tool\n@tool\ndef look(start: float, end: float):\n"
        "    '''Look.\n\n    Args:\n        start, end: seconds.\n    '''\n    return 1 / (end - start - 1)\n"
    )
    if more:
        with_copying_engine(monkeypatch)
    trainer = make_trainer(**{**LOOKS, "tools": [f"{plugin}:look"], **more})
    with pytest.raises(OwnCodeError) as failed:
        trainer.train()
    message = str(failed.value)
    assert message.startswith(f"--tools {plugin}:look, called for ") and "sop.json" in message
    assert message.endswith("ZeroDivisionError: float division by zero (own_tools.py, line 9)")


def assert_same_run(one, other):
    """The same log and the same looks, but for what a clock says."""
    assert logged(one, times=False) == logged(other, times=False) and len(logged(one)) == 4
    rows = [[without_seconds(row) for row in read_rollouts(each.args.output_dir)] for each in (one, other)]
    assert rows[0] == rows[1] and any(call.clips for row in rows[0] for turn in row.turns for call in turn.calls)


def without_seconds(row):
    """A row of the rollouts without what a clock says."""
    turns = (replace(turn, calls=tuple(replace(call, seconds=0.0) for call in turn.calls)) for turn in row.turns)
    return replace(row, turns=tuple(turns))


@pytest.mark.parametrize("more", [{"bf16": True}, {"tune_mm_vision": True}], ids=str)
def test_looks_sampled_ahead_use_the_weights_of_their_request(
    make_trainer, calls_first, tmp_path, monkeypatch, more
):
    """The other run samples at the request, in the training thread, with the policy's own tower."""

    def at_once(self, model, *args, request=CopyingEngine.request):
        made = request(self, model, *args)()
        return lambda: made

    with_copying_engine(monkeypatch)
    settings = {**LOOKS, **more, "max_steps": 4, "async_rollouts": 2, "learning_rate": 1e-2}
    trainers = []
    for name in ("ahead", "at_once"):
        trainers.append(make_trainer(**settings, output_dir=str(tmp_path / name)))
        trainers[-1].train()
        monkeypatch.setattr(CopyingEngine, "request", at_once)
        monkeypatch.setattr(background, "tower_alone", lambda model: model)
    assert_same_run(*trainers)
    assert [row["async/staleness"] for row in logged(trainers[0])] == [0, 1, 2, 1]
    threads = [{thread for thread, _ in each.answer.sample.engine.engine.requests} for each in trainers]
    assert threads == [{"sampling-ahead"}, {"MainThread"}]
    for here, there in zip(*(each.model.parameters() for each in trainers), strict=True):
        assert torch.equal(here, there)


def test_a_warm_up_teaches_the_form_of_a_look(tiny_checkpoint, sop_data, tmp_path):
    """Targets look at the evidence; their loss is that of what is said alone, in one forward of a row by hand."""
    from qwenvl.config.grpo_config import WarmupConfig
    from qwenvl.train.warmup.trainer import WarmupTrainer, laid_out

    rows = json.loads(sop_data.read_text())[:2]
    rows[0] |= {"evidence": [[0.5, 1.5]], "video": str(sop_data.parent / rows[0]["video"])}
    rows[1] |= {"video": str(sop_data.parent / rows[1]["video"])}
    settings = {"tools": ["look"], "look_frames": 4, "max_steps": 1, "learning_rate": 1e-12, "save_strategy": "no"}
    settings |= {"per_device_train_batch_size": 2, "use_cpu": True, "disable_tqdm": True, "base_interval": 0.5}
    args = WarmupConfig(str(tmp_path / "warm"), **settings, allow_outside_media=True)
    trainer = WarmupTrainer(str(tiny_checkpoint(initializer_range=0.1)), args, train_dataset=rows)
    trainer.train()
    collator, tokenizer = trainer.data_collator, trainer.processing_class.tokenizer
    inputs = collator([trainer.train_dataset[n] for n in range(2)])
    said = [tokenizer.decode(ids[mask]) for ids, mask in zip(inputs["target_ids"], inputs["target_mask"], strict=True)]
    call = '<tool_call>\n{"name": "look", "arguments": {"start": 0.5, "end": 1.5}}\n</tool_call><|im_end|>'
    assert said == [f"{call}<answer>(1) step</answer><|im_end|>", "<answer>(2) step</answer><|im_end|>"]
    encoded = trainer.encoded(trainer.model, inputs)
    prompts = encoded.prompts
    whole = laid_out(prompts, inputs["target_ids"], inputs["pieces"], encoded.appended)
    losses = []
    for n, mask in enumerate(inputs["target_mask"]):
        row = prompts.select([n]).followed_by(whole.select([n]))
        keep = row.attention_mask[0].bool()
        arguments = {"input_ids": row.input_ids[:, keep], "position_ids": row.position_ids[:, :, keep]}
        logits = trainer.model(**arguments, **row.vision()).logits[0].log_softmax(-1)
        targets = row.input_ids[0, keep]
        tokens = int(whole.attention_mask[n].sum())
        chosen = logits[:-1].gather(1, targets[1:, None])[-tokens:, 0]
        losses += chosen[mask[:tokens]].tolist()
    assert logged(trainer)[0]["loss"] == pytest.approx(-sum(losses) / len(losses), rel=1e-4)
