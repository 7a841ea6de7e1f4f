"""Samples of an evaluation, made by hand, and reward functions of which a tiny model gets some reward."""

from collections import Counter

from qwenvl.run_log.log import AS_IT_IS, EvaluationSample
from qwenvl.types import FrameInfo


def sample(doc_id: int = 0, control: str = AS_IT_IS, n: int = 0, model: str = "base", **changes) -> EvaluationSample:
    return EvaluationSample(
        **{
            "model": model,
            "control": control,
            "doc_id": doc_id,
            "sample": n,
            "record_id": f"r{doc_id}",
            "where": f"data.json[{doc_id}]",
            "dataset": "",
            "cluster": f"clips/{doc_id}.mp4",
            "prompt": ({"role": "user", "text": "<video>\nWhich?"},),
            "target": "<answer>(1) lid</answer>",
            "completion": "so <answer>(1) lid</answer>",
            "answer": "(1) lid",
            "tokens": 7,
            "prompt_tokens": 90,
            "finish_reason": "stop",
            "rewards": {"format": 1.0, "accuracy": None},
            "total": 0.3,
            "clips": (FrameInfo("clips/0.mp4", (0, 4), (0.0, 0.5), (0, 1)),),
            "images": ("a.png",),
            "fitted": {"frames": [[8, 4]]},
            "doc_hash": "abc",
            "doc": {"id": doc_id},
        }
        | changes
    )


def letters(completions, **columns):
    return [sum(c.isalpha() for c in text) / max(1, len(text)) for text in completions]


def some(completions, id, **columns):
    """Right are the first completions of each group: none, one, ... or four of them, by the length of the id."""
    seen = Counter()
    return [None if own == "silent" else float(seen.update([own]) or seen[own] <= len(own) % 5) for own in id]


LETTERS, SOME = f"{__name__}:letters", f"{__name__}:some"
