"""The trainer's side of the tests with real vLLM: a tiny policy, prompts made by hand, and what both make of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.logprobs import completion_likelihood
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.servers import Server
from qwenvl.rollout.vllm import prompts_for_server
from qwenvl.types import RolloutBatch
from qwenvl.vllm_server.wire import SampleAnswer, SampleRequest

# vLLM's attention on a CPU takes no heads of 16.
WIDE = {"hidden_size": 128, "initializer_range": 0.1}


@dataclass
class Policy:
    """A tiny model with the local engine."""

    model: torch.nn.Module
    local: LocalEngine

    @classmethod
    def load(cls, folder) -> Policy:
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model, LocalEngine(AutoProcessor.from_pretrained(folder).tokenizer, model))

    def prompt(self, *parts: int | tuple, words: int = 0) -> PromptInputs:
        """A prompt of texts, images and videos.

        Args:
            parts: tokens of a text, ``(h, w)`` patches of an image, or ``(t, h, w, seconds per temporal patch)`` of a
                video. The same grid has the same pixels.
            words: seed of the texts.
        """
        config = self.model.config
        generator = torch.Generator().manual_seed(words)
        ids: list[int] = []
        grids: dict[str, list[list[int]]] = {"image": [], "video": []}
        seconds = []
        for part in parts:
            if isinstance(part, int):
                ids += torch.randint(0, 250, (part,), generator=generator).tolist()
                continue
            kind = "image" if len(part) == 2 else "video"
            t, h, w = (1, *part) if kind == "image" else part[:3]
            pad = config.image_token_id if kind == "image" else config.video_token_id
            pictures = t if family_of(config).time == "timestamp" else 1
            for picture in range(pictures):
                ids += [9 + picture] if pictures > 1 else []  # the times of frames stand between them
                ids += [config.vision_start_token_id, *[pad] * (t * h * w // 4 // pictures), config.vision_end_token_id]
            grids[kind].append([t, h, w])
            if kind == "video":
                seconds.append(part[3])
        rows = torch.tensor([[*ids, 7, 8]])
        mask, media = torch.ones_like(rows), [torch.tensor(each) if each else None for each in grids.values()]
        rates = torch.tensor(seconds) if seconds else None
        positions = prompt_positions(position_rule(config), rows, mask, *media, rates)
        pixels = [[self._pixels(own), grid] for own, grid in zip(grids.values(), media, strict=True)]
        return PromptInputs(rows, mask, positions, *pixels[0], *pixels[1], *([len(own)] for own in grids.values()))

    def _pixels(self, grids: list[list[int]]) -> torch.Tensor | None:
        vision = self.model.config.vision_config
        width = 3 * vision.temporal_patch_size * vision.patch_size**2
        made = [torch.Generator().manual_seed(10_000 * t + 100 * h + w) for t, h, w in grids]
        pixels = [torch.randn(t * h * w, width, generator=own) for (t, h, w), own in zip(grids, made, strict=True)]
        return torch.cat(pixels) if pixels else None

    def request(
        self, inputs: PromptInputs, params: SamplingParams, *, group_size: int = 1, seed: int = 0, version: int = 0
    ) -> SampleRequest:
        """A request to a server, with the features of the model as it is now."""
        prompts = prompts_for_server(self.model, inputs, seed)
        return SampleRequest(version, group_size, params, self.local.vision_ids, self.local.end_ids, prompts)

    def likelihood(
        self, inputs: PromptInputs, answer: SampleAnswer, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The trainer's log-probs of the tokens of an answer, N x T, and where there are tokens."""
        ids = pad_sequence([*map(torch.tensor, answer.ids)], True)
        mask = torch.arange(ids.shape[1]) < torch.tensor([len(each) for each in answer.ids])[:, None]
        with torch.no_grad():
            found = completion_likelihood(
                self.model, inputs, ids, mask, temperature=temperature, logit_chunk_tokens=512
            ).logprobs
        return found.float(), mask

    def assert_logprobs(self, inputs: PromptInputs, answer: SampleAnswer, temperature: float) -> None:
        """The trainer's log-probs of the tokens of an answer are those of the answer."""
        found, mask = self.likelihood(inputs, answer, temperature)
        theirs = pad_sequence([*map(torch.tensor, answer.logprobs)], True)
        assert (found - theirs)[mask].abs().max() < 1e-4

    def change(self, *layers: str) -> dict[str, torch.Tensor]:
        """Other weights, as after a step of training. Gives those that changed, of the language model.

        Args:
            layers: words in the names of what changes. None: everything.
        """
        tied = self.model.config.tie_word_embeddings
        changed = {}
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                fits = not layers or any(each in name for each in layers)
                if fits and "visual" not in name and not (tied and name.startswith("lm_head")):
                    weight += 0.1 * weight.std().nan_to_num(1.0) * torch.randn_like(weight)
                    changed[name] = weight.detach().clone()
        return changed


def local_and_server(
    policy: Policy, client: Server, inputs: PromptInputs, params: SamplingParams, version: int = 0
) -> tuple[RolloutBatch, SampleAnswer]:
    """Greedy completions of both, which must be the same tokens with log-probs that differ by less than 1e-4."""
    local = policy.local.draw(policy.model, inputs, 1, params, seed=0)
    answer = client.sample(policy.request(inputs, params, version=version))
    assert answer.finish_reasons == local.finish_reasons
    for row, ids in enumerate(answer.ids):
        kept = local.completion_mask[row]
        assert ids == local.completion_ids[row][kept].tolist(), f"prompt {row}"
        assert (torch.tensor(answer.logprobs[row]) - local.logprobs[row][kept]).abs().max() < 1e-4, f"prompt {row}"
    return local, answer
