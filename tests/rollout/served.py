"""An engine in front of fake servers, and the completions of the local engine with the seeds that servers get."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.servers import Server, Servers
from qwenvl.rollout.vllm import VllmEngine, seed_of_prompt

WORDS = ["tvt", "t", "tivv", "tiit"]
WAYS = {
    "greedy": SamplingParams(6, temperature=0.0),
    "sampled": SamplingParams(8, temperature=0.8, top_p=0.95),
    "all settings": SamplingParams(8, 1.2, 40, 0.9, 0.01, 1.1, ("a", "e")),
}


class Scripted:
    """Appends the same things to the same completions, whatever they say, unless a turn has fewer tokens."""

    most_tokens = 100

    def __init__(self, looks: list[list[PromptInputs]], least: int = 2):
        self.looks, self.least = [[*own] for own in looks], least
        self.each = [SimpleNamespace(calls=[]) for _ in looks]

    def select(self, rows):
        return Scripted([self.looks[row] for row in rows], self.least)

    def answer(self, turns):
        rows = [row for row, ids in turns.items() if len(ids) >= self.least and self.looks[row]]
        return {row: self.looks[row].pop(0) for row in rows}


def engine_of(model, processor, fakes, *, patience: float = 0.3) -> VllmEngine:
    servers = Servers([Server(each.address) for each in fakes], patience=patience)
    return VllmEngine(LocalEngine(processor.tokenizer, model), servers)


def local_completions(model, processor, inputs, size, params, seed):
    engine = LocalEngine(processor.tokenizer, model)
    return [engine.draw(model, inputs.select([p]), size, params, seed_of_prompt(seed, p)) for p in range(len(inputs))]


def assert_same(rollout, expected, size):
    for p, own in enumerate(expected):
        rows = slice(p * size, (p + 1) * size)
        width = own.completion_ids.shape[1]
        mask = rollout.completion_mask[rows]
        assert torch.equal(mask[:, :width], own.completion_mask) and not mask[:, width:].any()
        assert torch.equal(rollout.completion_ids[rows][mask], own.completion_ids[own.completion_mask])
        torch.testing.assert_close(rollout.logprobs[rows][mask], own.logprobs[own.completion_mask], rtol=0, atol=1e-5)
        assert rollout.texts[rows] == own.texts and rollout.finish_reasons[rows] == own.finish_reasons
