"""Sampling by vLLM servers: from prompts to requests, and from answers to completions as the local engine has them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qwenvl.data.seeds import stable_random
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import evaluating
from qwenvl.rollout.engine import SamplingParams, no_completions, on_device, split_rollouts
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import SamplingOptions
from qwenvl.rollout.servers import ColocatedServer, GivesWeights, Server, Servers
from qwenvl.rollout.turns import GrowingCompletion, behind_prompts, sample_turns
from qwenvl.rollout.weights import give_weights
from qwenvl.tools.toolbox import Conversations
from qwenvl.types import RolloutBatch
from qwenvl.vllm_server.wire import Medium, Prompt, SampleAnswer, SampleRequest, require

Grid = tuple[int, int, int]
SEED_BITS, CHILD_BITS = 44, 16  # a prompt's completions have its seed and the numbers after it


def vllm_engine(
    options: SamplingOptions,
    local: LocalEngine,
    *,
    model: str,
    process: int,
    device: torch.device,
    dtype: torch.dtype,
    max_tokens: int | None,
) -> VllmEngine:
    """The engine of the servers that the options name, or of one that this process starts.

    Args:
        local: the engine that samples from the policy itself.
        model: the checkpoint that a server is started with.
        process: the number of this process. Its first prompt is dealt to the server of this number.
        device: of the policy. A server that this process starts shares it.
        dtype: that such a server computes in.
        max_tokens: of a prompt and its completion. None: not known.

    Raises:
        FileNotFoundError: there is no environment of vLLM to start one in.
        ValueError: there is no checkpoint to start one with.
    """
    deadline, patience = options.vllm_deadline, options.vllm_patience
    if options.rollout_engine == "vllm_server":
        servers = [Server(each, deadline) for each in options.vllm_server or []]
        return VllmEngine(local, Servers(servers, patience=patience, first=process))
    if not model:
        raise ValueError(
            "--rollout_engine vllm_colocate starts vLLM with the policy's checkpoint, and this model is of none: save "
            "it first, and give the folder as --model_name_or_path"
        )
    arguments = [model, "--dtype", str(dtype).removeprefix("torch.")]
    if device.type == "cuda":
        arguments += ["--gpu_memory_utilization", str(options.vllm_gpu_memory)]
    if max_tokens is not None:
        arguments += ["--max_model_len", str(max_tokens)]
    return VllmEngine(local, Servers([ColocatedServer(arguments, device, deadline)], patience=patience), own=True)


class VllmEngine:
    """Samples at servers that have copies of the language model. See ``EngineWithWeights``.

    The vision tower runs in the trainer alone: a server gets the features that the policy computes for a prompt.

    Args:
        local: the engine that samples from the policy itself. It has the tokens that end completions and those that are
            never sampled, and decodes.
        servers: the same in all processes of the run, or those of this process alone.
        own: the servers are those of this process alone, which gives them their weights.
    """

    def __init__(self, local: LocalEngine, servers: Servers, *, own: bool = False):
        self._local, self._servers, self._own = local, servers, own
        self._version: int | None = None
        self._wire_version: int | None = None  # of the same weights: a random number, the same in all processes

    def sync(self, model: nn.Module, version: int | None) -> None:
        """See ``EngineWithWeights.sync``.

        Raises:
            EngineLostError: there is no server.
            ServerRefusedError: a server has another model, or does not take the weights.
        """
        if version is not None and version == self._version:
            return
        number = [secrets.randbits(62)]
        broadcast_object_list(number)
        self._version, self._wire_version = version, number[0]
        if self._own or PartialState().is_main_process:
            self._servers.ready(number[0], partial(give_weights, model, number[0]))

    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[PromptInputs],
        group_size: int,
        params: SamplingParams,
        seed: int,
        conversations: Conversations | None = None,
    ) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. A server that was started again is given the weights of ``model`` first.

        A further turn is a prompt with all tokens so far behind it, whose only completion is sampled.

        Raises:
            EngineLostError: no server answers.
            ServerRefusedError: one refuses to, or its answer is wrong.
        """
        request = self._request(model, prompts, group_size, params, seed)
        give = partial(give_weights, model, request.version)
        device = prompts[0].input_ids.device
        if not request.prompts or conversations is None:
            rollouts = self._sampled(request, _sizes(prompts, group_size), give)
            return [on_device(each, device) for each in rollouts]
        inputs, turns = PromptInputs.join([each for each in prompts if len(each)]), count(1)

        def turn(request: SampleRequest) -> RolloutBatch:
            (rollout,) = self._sampled(request, [len(request.prompts) * request.group_size], give)
            return on_device(rollout, device)

        def resume(rows: list[int], completions: list[GrowingCompletion], most: int) -> RolloutBatch:
            again = prompts_for_server(model, behind_prompts(inputs, group_size, rows, completions), seed + next(turns))
            settings = replace(params, max_new_tokens=most)
            return turn(replace(request, group_size=1, params=settings, prompts=again))

        rollout = sample_turns(turn(request), inputs, params, conversations, resume, self._local.tokenizer)
        return split_rollouts(rollout, _sizes(prompts, group_size))

    def request(
        self, model: nn.Module, prompts: Sequence[PromptInputs], group_size: int, params: SamplingParams, seed: int
    ) -> Callable[[], list[RolloutBatch]]:
        """See ``EngineWithWeights.request``. The completions that the callable returns are on the CPU.

        It raises ``WeightsLostError`` where a server was started again: a thread has no weights to give.
        """
        request = self._request(model, prompts, group_size, params, seed)
        return partial(self._sampled, request, _sizes(prompts, group_size), None)

    def forget(self) -> None:
        """See ``EngineWithWeights.forget``."""
        self._version = None

    def rest(self) -> None:
        """See ``EngineWithWeights.rest``."""
        self._servers.sleep()

    def _request(
        self, model: nn.Module, prompts: Sequence[PromptInputs], group_size: int, params: SamplingParams, seed: int
    ) -> SampleRequest:
        """A request that needs no model any more."""
        if params.entropies:
            raise ValueError("a vLLM server gives no entropies of its distributions")
        if self._wire_version is None:
            raise RuntimeError("the servers have no weights yet: call sync before sample")
        inputs = [each for each in prompts if len(each)]
        return SampleRequest(
            version=self._wire_version,
            group_size=group_size,
            params=params,
            banned_ids=self._local.vision_ids,
            end_ids=self._local.end_ids,
            prompts=prompts_for_server(model, PromptInputs.join(inputs), seed) if inputs else [],
        )

    def _sampled(self, request: SampleRequest, sizes: Sequence[int], give: GivesWeights | None) -> list[RolloutBatch]:
        """Batches of ``sizes`` completions, on the CPU."""
        if not request.prompts:
            return [no_completions() for _ in sizes]
        size = request.group_size
        rows: dict[int, tuple[list[int], list[float], str]] = {}
        answers = self._servers.sample(request, give, check_answer)
        for share, answer in answers:
            sampled = zip(answer.ids, answer.logprobs, answer.finish_reasons, strict=True)
            rows |= {share[n // size] * size + n % size: row for n, row in enumerate(sampled)}
        ids, logprobs, reasons = zip(*(rows[n] for n in range(len(rows))), strict=True)
        lengths = torch.tensor([len(each) for each in ids])
        joined = RolloutBatch(
            completion_ids=pad_sequence([*map(torch.tensor, ids)], True, self._local.tokenizer.pad_token_id),
            completion_mask=torch.arange(int(lengths.max())) < lengths[:, None],
            texts=self._local.tokenizer.batch_decode(ids, skip_special_tokens=True),
            finish_reasons=list(reasons),
            logprobs=pad_sequence([*map(torch.tensor, logprobs)], True, 0.0),
            boots=frozenset(answer.boot for _, answer in answers),
        )
        return split_rollouts(joined, sizes)


def _sizes(prompts: Sequence[PromptInputs], group_size: int) -> list[int]:
    """Completions of each micro-batch."""
    return [len(each) * group_size for each in prompts]


def check_answer(request: SampleRequest, answer: SampleAnswer) -> None:
    """Refuses an answer that is not what was requested: it must not become an experience.

    Raises:
        Refusal: saying what is wrong.
    """
    expected, most = len(request.prompts) * request.group_size, request.params.max_new_tokens
    found = answer.version, len(answer.ids), len(answer.logprobs), len(answer.finish_reasons)
    require(
        found == (request.version, expected, expected, expected),
        f"{found[1]} completions of version {found[0]}, expected {expected} of version {request.version}",
    )
    for n, (ids, logprobs) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
        require(
            1 <= len(ids) <= most and len(logprobs) == len(ids),
            f"completion {n}: {len(ids)} tokens and {len(logprobs)} log-probs, expected 1 to {most} of both",
        )
        # Also for NaN, with which no comparison is true.
        require(
            all(-math.inf < each <= 1e-3 for each in logprobs),
            f"completion {n}: expected log-probs of at most 0, got {logprobs}",
        )
        banned = set(ids).intersection(request.banned_ids)
        require(not banned, f"completion {n}: tokens that must not be sampled: {sorted(banned)}")


@torch.no_grad()
def prompts_for_server(model: nn.Module, inputs: PromptInputs, seed: int) -> list[Prompt]:
    """P prompts with the features of ``model`` as it is now, in the memory of the CPU.

    The features are rows as they enter the language model: the merger's, those of the deepstack mergers beside them.

    Args:
        seed: of the draw. Each prompt has a seed of its own, by its number.
    """
    with evaluating(model) as bare:
        images = _media(bare, inputs.pixel_values, inputs.image_grid_thw, sum(inputs.images_per_prompt))
        videos = _media(bare, inputs.pixel_values_videos, inputs.video_grid_thw, sum(inputs.videos_per_prompt))
        config = bare.config
    framed = family_of(config).time == "timestamp"  # a video's frames then stand apart, with their times between
    prompts = []
    counts = zip(inputs.images_per_prompt, inputs.videos_per_prompt, strict=True)
    for p, (n_images, n_videos) in enumerate(counts):
        own = inputs.attention_mask[p].bool()
        ids, positions = inputs.input_ids[p][own].cpu(), inputs.position_ids[:, p, own].cpu()
        media = [
            *_placed("image", ids == config.image_token_id, [next(images) for _ in range(n_images)], False),
            *_placed("video", ids == config.video_token_id, [next(videos) for _ in range(n_videos)], framed),
        ]
        media.sort(key=lambda medium: medium.offset)
        prompts.append(Prompt(ids, positions, seed_of(seed, p), media))
    return prompts


def seed_of(seed: int, prompt: int) -> int:
    """The seed of a prompt's first completion. Those of its other completions, and of other prompts, are others."""
    return stable_random(seed, prompt).getrandbits(SEED_BITS) << CHILD_BITS


def _media(bare: nn.Module, values: Tensor | None, grids: Tensor | None, count: int) -> Iterator[tuple[Tensor, Grid]]:
    """The features and the grid of each image or video."""
    if values is None or grids is None or not count:
        return iter(())
    visual = bare.model.visual
    output = visual(values.to(grids.device, visual.dtype), grid_thw=grids)
    deepstack = getattr(output, "deepstack_features", None) or ()
    features = torch.cat([output.pooler_output, *deepstack], dim=-1).cpu()
    rows = (grids.prod(-1) // visual.spatial_merge_size**2).tolist()
    return iter([(own, (t, h, w)) for own, (t, h, w) in zip(features.split(rows), grids.tolist(), strict=True)])


def _placed(kind: str, placeholders: Tensor, media: Sequence[tuple[Tensor, Grid]], framed: bool) -> Iterator[Medium]:
    """Each image or video in its range of the prompt.

    Args:
        placeholders: L bool, the prompt's tokens of this kind.
        framed: a range begins with the token before its first placeholder and ends with the one after its last.
    """
    places = placeholders.nonzero()[:, 0]
    for own, (features, grid) in zip(places.split([len(rows) for rows, _ in media]), media, strict=True):
        start, end = int(own[0]) - framed, int(own[-1]) + 1 + framed
        yield Medium(kind, start, placeholders[start:end], features, grid)
