"""Runs made by hand: two steps of two records, and an evaluation before and after."""

from qwenvl.run_log.log import Rollout
from qwenvl.types import FrameInfo, ToolCall, Turn


def rollout(**values):
    """One completion, right and in form unless said otherwise."""
    fields = {
        "step": 1,
        "record_id": "17",
        "sample": 0,
        "prompt": ({"role": "user", "text": "<video>\nWhich steps?"},),
        "solution": "<answer>(2) insert the fan</answer>",
        "completion": "<think>so</think><answer>(2) insert the fan</answer>",
        "tokens": 12,
        "finish_reason": "stop",
        "rewards": {"format": 1.0, "accuracy": 1.0},
        "total": 1.0,
        "advantage": 0.0,
        "where": "data/sop.json[17]",
    }
    return Rollout(**fields | values)


LOOK = ToolCall(
    "look",
    {"start": 12.0, "end": 15.0},
    clips=(FrameInfo("/gone/17.mp4", (96, 104, 112, 120), (12.0, 13.0, 14.0, 15.0), None, 1.0, duration=60.0),),
    text="12.0 to 15.0 seconds:",
    tokens=88,
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"start": 12.0, "end": 15.0}}\n</tool_call>'
LOOKED = (Turn(f"Let me see. {CALL}", (LOOK,)), Turn("<answer>(2) insert the fan</answer>"))
REFUSED = ToolCall("look", {"start": "x"}, error="look lacks end", tokens=9)
"""A completion that looked, and a call that got no frames."""


def group(totals, texts=None, **values):
    """Completions of one prompt: ``totals`` are both their accuracy and their total."""
    texts = texts or [f"<answer>({n})</answer>" for n in range(len(totals))]
    return [
        rollout(
            sample=n,
            completion=text,
            total=total,
            advantage=total - sum(totals) / len(totals),
            rewards={"format": 1.0, "accuracy": total},
            **values,
        )
        for n, (total, text) in enumerate(zip(totals, texts, strict=True))
    ]


TIMES = {"time/step_s": 9.0}
METRICS = [
    (0, {"eval_total_reward": 0.4, "eval_total_reward_ci95": 0.1, "eval_total_reward_n": 30}),
    (1, TIMES | {"loss": 0.0, "reward/total": 0.25, "reward/accuracy": 0.25, "kl": 0.0, "time/sample_s": 2.0}),
    (2, TIMES | {"loss": 0.1, "reward/total": 0.75, "reward/accuracy": 0.75, "kl": 0.01, "time/sample_s": 4.0}),
    (2, {"eval_total_reward": 0.6, "eval_total_reward_ci95": 0.1, "eval_total_reward_n": 30}),
    (2, {"train_runtime": 9.0, "train_loss": 0.05}),
]

SCAN = {"record_id": "18", "where": "data/more.jsonl:3", "solution": "<answer>(5) scan</answer>"}
CLIP = FrameInfo("/gone/17.mp4", (0, 8, 16), (0.0, 1.0, 2.0), (0, 0, 1))

ROLLOUTS = [
    rollout(step=0, split="eval", record_id="held", total=0.4, advantage=None, where="data/held.json[0]"),
    *group([0.0, 0.0, 0.5, 0.5], clips=(CLIP,)),
    *group([0.0] * 4, **SCAN),
    *group([1.0, 0.5, 1.0, 1.0], step=2, epoch=1, clips=(CLIP,)),
    *group([1.0] * 4, ["<answer>(5) scan</answer>"] * 4, step=2, epoch=1, **SCAN),
    rollout(step=2, split="eval", record_id="held", total=0.6, advantage=None, where="data/held.json[0]"),
]
