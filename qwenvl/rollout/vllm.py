"""Sampling by vLLM servers: prompts to requests, answers to completions as the local engine has them, and weights."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from threading import Lock
from typing import cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qwenvl.data.seeds import stable_random
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import adapters_of, evaluating, part_of, unwrap, with_adapters, without_wrappers
from qwenvl.rollout.drafts import DraftCounts
from qwenvl.rollout.engine import SamplingRequest, end_token, no_completions, on_device, split_rollouts
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import EngineOptions
from qwenvl.rollout.servers import (
    ColocatedServer,
    GivesWeights,
    Server,
    ServerLostError,
    ServerRefusedError,
    Servers,
    in_parallel,
)
from qwenvl.rollout.turns import GrowingCompletion, behind_prompts, sample_turns
from qwenvl.types import FinishReason, RolloutBatch
from qwenvl.vllm_server.wire import (
    Health,
    Medium,
    Prompt,
    SampleRequest,
    WeightsRequest,
    architecture,
    memory_file,
)

Grid = tuple[int, int, int]
# A prompt's completions have its seed and the numbers after it.
SEED_BITS = 44
CHILD_BITS = 16
PART_BYTES = 2**30  # of weights in one message or file


def vllm_engine(
    options: EngineOptions,
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
    deadline = options.vllm_deadline
    patience = options.vllm_patience
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
    if options.vllm_speculative is not None:
        arguments += ["--speculative", options.vllm_speculative]
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
        self._local = local
        self._servers = servers
        self._own = own
        self._version: int | None = None
        self._wire_version: int | None = None  # of the same weights: a random number, the same in all processes
        self._counts = DraftCounts()
        self._counting = Lock()  # with async_rollouts another thread samples than takes the counts

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
        self._version = version
        self._wire_version = number[0]
        if self._own or PartialState().is_main_process:
            self._servers.ready(number[0], partial(give_weights, model, number[0]))

    def sample(self, model: nn.Module, request: SamplingRequest) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. A server that was started again is given the weights of ``model`` first.

        A further turn is a prompt with all tokens so far behind it, whose only completion is sampled.

        Raises:
            EngineLostError: no server answers.
            ServerRefusedError: one refuses to.
        """
        message = self._message(model, request)
        give = partial(give_weights, model, message.version)
        rollouts = self._in_turns(message, model, request, give)
        return [on_device(each, request.prompts[0].input_ids.device) for each in rollouts]

    def request(self, model: nn.Module, request: SamplingRequest) -> Callable[[], list[RolloutBatch]]:
        """See ``EngineWithWeights.request``. The completions that the callable returns are on the CPU.

        It raises ``WeightsLostError`` where a server was started again: a thread has no weights to give.
        """
        message = self._message(model, request)
        kind = request.prompts[0].input_ids.device.type  # each thread has an autocast of its own
        precision = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def made() -> list[RolloutBatch]:
            with precision:
                rollouts = self._in_turns(message, model, request, None)
            return [on_device(each, "cpu") for each in rollouts]

        return made

    def forget(self) -> None:
        """See ``EngineWithWeights.forget``."""
        self._version = None

    def rest(self) -> None:
        """See ``EngineWithWeights.rest``."""
        self._servers.sleep()

    def take_counts(self) -> DraftCounts:
        """See ``CountsDrafts``. A server does not say how many forwards there were."""
        with self._counting:
            counts = self._counts
            self._counts = DraftCounts()
        return counts

    def _message(self, model: nn.Module, request: SamplingRequest) -> SampleRequest:
        """The request as servers read it. It needs no model any more."""
        if request.params.entropies:
            raise ValueError("a vLLM server gives no entropies of its distributions")
        if self._wire_version is None:
            raise RuntimeError("the servers have no weights yet: call sync before sample")
        inputs = request.joined()
        return SampleRequest(
            version=self._wire_version,
            group_size=request.group_size,
            params=request.params,
            banned_ids=self._local.vision_ids,
            end_ids=self._local.end_ids,
            prompts=[] if inputs is None else prompts_for_server(model, inputs, request.seed),
        )

    def _in_turns(
        self, message: SampleRequest, model: nn.Module, request: SamplingRequest, give: GivesWeights | None
    ) -> list[RolloutBatch]:
        """The completions of a request, and of those for their further turns."""
        inputs = request.joined()
        conversations = request.conversations
        if inputs is None or conversations is None:
            return self._sampled(message, request.sizes, give)
        turns = count(1)

        def turn(message: SampleRequest) -> RolloutBatch:
            completions = len(message.prompts) * message.group_size
            [rollout] = self._sampled(message, [completions], give)
            return on_device(rollout, inputs.input_ids.device)

        def resume(rows: list[int], completions: list[GrowingCompletion], room: list[int]) -> RolloutBatch:
            behind = behind_prompts(inputs, request.group_size, rows, completions)
            again = prompts_for_server(model, behind, request.seed + next(turns))
            # Each its own: a long completion with the room of a short one would exceed the server's --max_model_len.
            bounded = [replace(prompt, room=own) for prompt, own in zip(again, room, strict=True)]
            return turn(replace(message, group_size=1, prompts=bounded))

        tokenizer = self._local.tokenizer
        rollout = sample_turns(turn(message), inputs, request.params, conversations, resume, tokenizer)
        return split_rollouts(rollout, request.sizes)

    def _sampled(self, message: SampleRequest, sizes: Sequence[int], give: GivesWeights | None) -> list[RolloutBatch]:
        """Batches of ``sizes`` completions, on the CPU."""
        if not message.prompts:
            return [no_completions() for _ in sizes]
        size = message.group_size
        tokenizer = self._local.tokenizer
        rows: dict[int, tuple[list[int], list[float], str]] = {}  # by the number of the completion
        answers = self._servers.sample(message, give)
        for share, answer in answers:
            with self._counting:
                self._counts.drafted += answer.drafted_tokens
                self._counts.accepted += answer.accepted_tokens
            sampled = zip(answer.ids, answer.logprobs, answer.finish_reasons, strict=True)
            for n, row in enumerate(sampled):
                prompt = share[n // size]
                rows[prompt * size + n % size] = row
        ids: list[list[int]] = []
        logprobs: list[Tensor] = []
        reasons: list[FinishReason] = []
        for n in range(len(rows)):
            own_ids, own_logprobs, reason = rows[n]
            ids.append(own_ids)
            logprobs.append(torch.tensor(own_logprobs))
            reasons.append(cast(FinishReason, reason))
        padded_ids = pad_sequence(
            [torch.tensor(each) for each in ids], batch_first=True, padding_value=tokenizer.pad_token_id
        )
        lengths = torch.tensor([len(each) for each in ids])
        joined = RolloutBatch(
            completion_ids=padded_ids,
            completion_mask=torch.arange(int(lengths.max())) < lengths[:, None],
            texts=tokenizer.batch_decode(ids, skip_special_tokens=True),
            finish_reasons=reasons,
            ended_by=[end_token(each, message.end_ids, tokenizer) for each in ids],
            logprobs=pad_sequence(logprobs, batch_first=True),
            boots=frozenset(answer.boot for _, answer in answers),
        )
        return split_rollouts(joined, sizes)


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
        ids = inputs.input_ids[p][own].cpu()
        positions = inputs.position_ids[:, p, own].cpu()
        own_images = [next(images) for _ in range(n_images)]
        own_videos = [next(videos) for _ in range(n_videos)]
        media = [
            *_placed("image", ids == config.image_token_id, own_images, framed=False),
            *_placed("video", ids == config.video_token_id, own_videos, framed=framed),
        ]
        media.sort(key=lambda medium: medium.offset)
        prompts.append(Prompt(ids, positions, seed_of_prompt(seed, p), media))
    return prompts


def seed_of_prompt(seed: int, prompt: int) -> int:
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
    media: list[tuple[Tensor, Grid]] = []
    for own, (t, h, w) in zip(features.split(rows), grids.tolist(), strict=True):
        media.append((own, (t, h, w)))
    return iter(media)


def _placed(kind: str, placeholders: Tensor, media: Sequence[tuple[Tensor, Grid]], framed: bool) -> Iterator[Medium]:
    """Each image or video in its range of the prompt.

    Args:
        placeholders: L bool, the prompt's tokens of this kind.
        framed: a range begins with the token before its first placeholder and ends with the one after its last.
    """
    places = placeholders.nonzero()[:, 0]
    own_places = places.split([len(features) for features, _ in media])  # a token for each row of features
    for own, (features, grid) in zip(own_places, media, strict=True):
        start = int(own[0]) - framed
        end = int(own[-1]) + 1 + framed
        yield Medium(kind, start, placeholders[start:end], features, grid)


def policy_weights(policy: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The names and values of the language model's weights, adapters merged. The vision tower is the trainer's alone.

    Weights that are one tensor are listed once. Each value is computed when it is reached, on the CPU, in memory of its
    own: FSDP could not free what numpy has seen. Call it within ``whole_weights``.

    Raises:
        ValueError: an adapter is of a kind that can't be merged.
    """
    bare = unwrap(policy)
    adapters = adapters_of(bare)
    for full, parameter in bare.named_parameters():
        name = without_wrappers(full)
        if part_of(name) != "llm" or ".lora_" in name:
            continue
        value = with_adapters(parameter.detach(), adapters.get(name, []))
        yield name, value.to("cpu", dtype, copy=True).contiguous()


def in_parts(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[dict[str, Tensor], bool]]:
    """The weights in parts of at most ``PART_BYTES``, or of one weight, and whether a part is the last."""
    part: dict[str, Tensor] = {}
    for name, value in weights:
        if part and sum(each.nbytes for each in part.values()) + value.nbytes > PART_BYTES:
            yield part, False
            part = {}
        part[name] = value
    yield part, True


def give_weights(policy: nn.Module, version: int, servers: Sequence[tuple[Server, Health]]) -> list[ServerLostError]:
    """Gives servers all weights of the policy, part by part: a file in memory on this machine, messages to others.

    Call it within ``whole_weights``.

    Returns:
        The errors of servers that were lost meanwhile. The others have the version.

    Raises:
        ServerRefusedError: a server was started with another model, or does not take the weights.
    """
    bare = unwrap(policy)
    tied = "lm_head.weight" not in dict(bare.named_parameters())  # which lists a tensor once
    for server, health in servers:
        for name, own in architecture(bare.config, tied).items():
            if (found := health.architecture.get(name)) != own:
                raise ServerRefusedError(
                    f"{server.address}: it was started with {health.model}: its {name} is {found}, the policy's {own}; "
                    "start it with the checkpoint that the run starts from"
                )
    lost: list[ServerLostError] = []
    for dtype in {health.dtype for _, health in servers}:
        left = [server for server, health in servers if health.dtype == dtype]
        for number, (tensors, last) in enumerate(in_parts(policy_weights(policy, getattr(torch, dtype)))):
            with memory_file(tensors) as path:
                request = WeightsRequest(version, number, last, path, tensors)
                outcomes = in_parallel(partial(_put, request), left)
            lost += [error for error in outcomes if error is not None]
            left = [server for server, error in zip(left, outcomes, strict=True) if error is None]
            if not left:
                break
    return lost


def _put(request: WeightsRequest, server: Server) -> None:
    server.put(replace(request, tensors={}) if server.shares_memory else replace(request, path=None))
