"""The model, the prompt and the two paths that the benchmarks measure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import GenerationConfig

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model import logprobs
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import apply_tuning, unwrap
from qwenvl.model.options import TuneOptions
from qwenvl.model.positions import position_rule, prompt_positions
from qwenvl.model.reference import Reference
from qwenvl.model.sharing import shared_prefix
from qwenvl.model.vision_tower import accept_features, encode_vision
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import sample_shared

LOGPROB_SETTINGS = {"temperature": 1.0, "logit_chunk_tokens": 512}
FRAME = (10, 20)  # merged patches: 200 tokens per pair of frames


@dataclass(frozen=True)
class Case:
    """Sizes of a step: about how many prompt tokens, completions, tokens of each."""

    prompt: int
    group: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """From ``P,G,C``."""
        return cls(*(int(part) for part in text.split(",")))

    def __str__(self) -> str:
        return f"{self.prompt},{self.group},{self.length}"


class Step:
    """One prompt with a video, and what a GRPO step does with it by either path. Every token is sampled (no end token).

    The tower is frozen. The reference is a copy of the rest, or with LoRA the model with its adapter off. By the shared
    path the tower runs once for sampling and training, and its time is counted in training.
    """

    def __init__(self, model: torch.nn.Module, prompts: PromptInputs, case: Case):
        self.model, self.prompts, self.case = model, prompts, case
        self.reference = Reference(model)
        with self.reference.model() as frozen:
            accept_features(frozen)
        self.encoded = self.tower()
        generator, device = torch.Generator().manual_seed(1), prompts.input_ids.device
        self.completion_ids = torch.randint(0, 250, (case.group, case.length), generator=generator).to(device)
        self.mask = torch.ones_like(self.completion_ids, dtype=torch.bool)
        self.weights = torch.randn(self.mask.shape, generator=generator).to(device)

    @classmethod
    def of(cls, case: Case, family: str) -> Step:
        """For the bench model: text 256 wide with 8 layers, vision 128 wide with 4 layers, random weights, float32."""
        processor = make_processor(family)
        sizes = {"hidden_size": 256, "num_layers": 8, "vision_hidden_size": 128, "vision_depth": 4}
        model = make_model(family, processor, **sizes)
        apply_tuning(model, TuneOptions())
        return cls(model, video_prompt(model, case.prompt), case)

    @property
    def prompt_tokens(self) -> int:
        """Those of the prompt as it is."""
        return self.prompts.input_ids.shape[1]

    @property
    def patches(self) -> int:
        """Patches of its video."""
        return int(self.prompts.video_grid_thw.prod())

    def tower(self) -> PromptInputs:
        """The prompt with the tower's features in the place of its pixels."""
        return encode_vision(self.model, self.prompts)

    def plain_train(self) -> None:
        """Reference forward, policy forward and backward on repeated prompts, pixels and all."""
        self._train(logprobs.completion_logprobs, self.prompts)

    def shared_train(self) -> None:
        """The same numbers: tower once, prompt once in either pass."""
        self._train(shared_prefix.completion_logprobs, self.tower())

    def plain_sample(self) -> None:
        """``generate`` on repeated prompts, pixels and all."""
        rows = self.prompts.repeat(self.case.group)
        positions = torch.cat([rows.attention_mask.cumsum(1)[None] - 1, rows.position_ids])
        bare = unwrap(self.model)
        bare.generation_config = GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=self.case.length, pad_token_id=0
        )
        bare.generate(
            input_ids=rows.input_ids, attention_mask=rows.attention_mask, position_ids=positions, **rows.vision()
        )

    def shared_sample(self) -> None:
        """Prefill once, keys and values of the prompt once. The tower has run before."""
        self.sample(self.case.length)

    def compiled_sample(self) -> None:
        """The same with ``--compile_decoding``. Its first call waits for the compiler."""
        self.sample(self.case.length, compiled=True)

    def sample(self, length: int, compiled: bool = False, cuda_graph: bool | None = None) -> None:
        """The shared sampling, ``length`` tokens for each completion. On a GPU it is a CUDA graph by default."""
        cuda_graph = self.completion_ids.is_cuda if cuda_graph is None else cuda_graph
        sample_shared(
            unwrap(self.model),
            self.encoded,
            self.case.group,
            SamplingParams(length),
            suppress=[],
            end_ids=[],
            pad_id=0,
            compiled=compiled,
            cuda_graph=cuda_graph,
        )

    def _train(self, completion_logprobs, prompts: PromptInputs) -> None:
        self.update(completion_logprobs, prompts, self.reference_logprobs(completion_logprobs, prompts))

    def reference_logprobs(self, completion_logprobs, prompts: PromptInputs) -> torch.Tensor:
        """The reference pass by ``completion_logprobs``, one of the two paths."""
        with self.reference.model() as frozen:
            return completion_logprobs(frozen, prompts, self.completion_ids, self.mask, **LOGPROB_SETTINGS)

    def update(self, completion_logprobs, prompts: PromptInputs, of_reference: torch.Tensor) -> None:
        """The policy's forward and backward. The gradient is dropped."""
        of_policy = completion_logprobs(self.model, prompts, self.completion_ids, self.mask, **LOGPROB_SETTINGS)
        difference = of_reference - of_policy
        (self.weights * of_policy + difference.exp() - difference).mean().backward()
        self.model.zero_grad(set_to_none=True)


def video_prompt(model: torch.nn.Module, tokens: int) -> PromptInputs:
    """A question about a video of random pixels, about ``tokens`` tokens in all."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    frame = FRAME[0] * FRAME[1]
    grid = [max(1, round(tokens / frame)), 2 * FRAME[0], 2 * FRAME[1]]
    pictures, pads = (grid[0], frame) if family_of(config).time == "timestamp" else (1, frame * grid[0])
    video = [config.vision_start_token_id, *[config.video_token_id] * pads, config.vision_end_token_id] * pictures
    ids = torch.tensor([[*range(20, 30), *video, *range(30, 40)]])
    mask, grids = torch.ones_like(ids), torch.tensor([grid])
    vision = config.vision_config
    values = 3 * vision.temporal_patch_size * vision.patch_size**2
    return PromptInputs(
        input_ids=ids,
        attention_mask=mask,
        position_ids=prompt_positions(position_rule(config), ids, mask, None, grids, torch.ones(1)),
        pixel_values=None,
        image_grid_thw=None,
        pixel_values_videos=torch.randn(int(grids.prod()), values, generator=generator),
        video_grid_thw=grids,
        images_per_prompt=[0],
        videos_per_prompt=[1],
    )
