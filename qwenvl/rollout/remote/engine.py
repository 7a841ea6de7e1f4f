"""Sampling by vLLM servers: from prompts to requests, and from answers to completions as the local engine has them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qwenvl.data.seeds import stable_random
from qwenvl.model.families import family_of
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import evaluating, unwrap
from qwenvl.rollout.engine import EnginePrompts, SamplingParams, no_completions, on_device, split_rollouts
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.remote.link import Links
from qwenvl.rollout.remote.server import Server, ServerRefusedError
from qwenvl.rollout.remote.servers import Hands, Servers
from qwenvl.rollout.remote.weights import Handover
from qwenvl.types import RolloutBatch
from qwenvl.vllm_server.wire.health import Health, sizes_of
from qwenvl.vllm_server.wire.sampling import Draw, Medium, Prompt, SampleAnswer, SampleRequest

_COUNT_BITS = 24  # of a version on the wire. Above them stands the number of the run


@dataclass(frozen=True)
class Asked:
    """A request for completions, which needs no model any more.

    Attributes:
        sizes: completions of each micro-batch.
    """

    version: int
    prompts: tuple[Prompt, ...]
    group_size: int
    params: SamplingParams
    sizes: tuple[int, ...]


class VllmEngine:
    """Samples at servers that have copies of the language model. See ``EngineWithWeights``.

    The vision tower runs in the trainer alone: a server gets the features that the policy makes of a prompt.

    Args:
        local: the engine that samples from the policy itself. It says which tokens end completions and which are never
            sampled, and decodes.
        servers: the same in all processes of the run, or those of this process alone.
        deadline: seconds that an answer may take.
        own: the servers are those of this process alone, which gives them their weights.
        links: for weights that go from device to device.
    """

    def __init__(
        self,
        local: LocalEngine,
        servers: Servers,
        *,
        deadline: float,
        own: bool = False,
        links: Links | None = None,
    ):
        self._local, self._servers, self._deadline, self._own = local, servers, deadline, own
        self._links = links
        self._run: int | None = None  # the same in all processes
        self._given = 0
        self._version: int | None = None
        self._fitting: set[str] = set()  # processes that were compared with the model

    def sync(self, model: nn.Module, version: int | None) -> None:
        """See ``EngineWithWeights.sync``.

        Raises:
            EngineLostError: there is no server.
            ServerRefusedError: a server has another model, or does not take the weights.
        """
        if version is not None and version == self._version:
            return
        if self._run is None:
            number = [secrets.randbits(31)]
            broadcast_object_list(number)
            self._run = number[0]
        self._given, self._version = self._given + 1, version
        if self._own or PartialState().is_main_process:
            with self._handover(model) as give:
                self._servers.ready(self._on_the_wire, self._to_fitting(model, give))

    def sample(
        self, model: nn.Module, prompts: Sequence[EnginePrompts], group_size: int, params: SamplingParams, seed: int
    ) -> list[RolloutBatch]:
        """See ``RolloutEngine.sample``. A server that was started again is given all weights of ``model`` first.

        Raises:
            EngineLostError: no server answers.
            ServerRefusedError: one refuses to, or its answer is wrong.
        """
        asked = self._asked(model, prompts, group_size, params, seed)
        with self._handover(model) as give:
            rollouts = self._answered(asked, self._to_fitting(model, give))
        devices = [each.inputs.input_ids.device for each in prompts]
        return [on_device(each, device) for device, each in zip(devices, rollouts, strict=True)]

    def request(
        self, model: nn.Module, prompts: Sequence[EnginePrompts], group_size: int, params: SamplingParams, seed: int
    ) -> Callable[[], list[RolloutBatch]]:
        """See ``EngineAskedAhead.request``. The completions that the callable returns are in the memory of the CPU.

        It raises ``WeightsLostError`` where the servers were started again: a thread has no weights to give.
        """
        asked = self._asked(model, prompts, group_size, params, seed)
        return lambda: self._answered(asked, None)

    def forget(self) -> None:
        """See ``EngineWithWeights.forget``."""
        self._version = None

    def rest(self) -> None:
        """See ``EngineWithWeights.rest``."""
        self._servers.sleep()

    def _asked(
        self, model: nn.Module, prompts: Sequence[EnginePrompts], group_size: int, params: SamplingParams, seed: int
    ) -> Asked:
        if params.entropies:
            raise ValueError("a vLLM server gives no entropies of its distributions")
        some = [each.inputs for each in prompts if len(each.batch)]
        ready = prompts_for_server(model, PromptInputs.join(some), seed) if some else ()
        return Asked(
            self._on_the_wire, ready, group_size, params, tuple(len(each.batch) * group_size for each in prompts)
        )

    def _answered(self, asked: Asked, give: Hands | None) -> list[RolloutBatch]:
        if not asked.prompts:
            return [no_completions() for _ in asked.sizes]
        draw = Draw(**{name: value for name, value in asdict(asked.params).items() if name != "entropies"})

        def ask(server: Server, share: Sequence[int]) -> SampleAnswer:
            prompts = tuple(asked.prompts[number] for number in share)
            request = SampleRequest(
                version=asked.version,
                group_size=asked.group_size,
                draw=draw,
                banned_ids=tuple(self._local.vision_ids),
                end_ids=tuple(self._local.end_ids),
                deadline_s=self._deadline,
                prompts=prompts,
            )
            answer = server.sample(request)
            self._check(server, request, answer)
            return answer

        answers = self._servers.sample(len(asked.prompts), ask, asked.version, give)
        return split_rollouts(self._joined(asked, answers), asked.sizes)

    def _joined(self, asked: Asked, answers: Sequence[tuple[Sequence[int], SampleAnswer]]) -> RolloutBatch:
        """The completions in the order of the prompts."""
        size = asked.group_size
        rows: dict[int, tuple[Tensor, Tensor, str]] = {}
        for share, answer in answers:
            drawn = zip(answer.ids, answer.logprobs, answer.finish_reasons, strict=True)
            for n, row in enumerate(drawn):
                rows[share[n // size] * size + n % size] = row
        ids, logprobs, reasons = zip(*(rows[n] for n in range(len(asked.prompts) * size)), strict=True)
        lengths = torch.tensor([len(each) for each in ids])
        return RolloutBatch(
            completion_ids=pad_sequence(ids, True, self._local.tokenizer.pad_token_id),
            completion_mask=torch.arange(int(lengths.max())) < lengths[:, None],
            texts=self._local.tokenizer.batch_decode([each.tolist() for each in ids], skip_special_tokens=True),
            finish_reasons=list(reasons),
            logprobs=pad_sequence(logprobs, True, 0.0),
            boots=frozenset(answer.boot for _, answer in answers),
        )

    def _check(self, server: Server, request: SampleRequest, answer: SampleAnswer) -> None:
        """Refuses an answer that is not what was asked for: it must not become an experience."""
        wrong = _wrong(request, answer)
        if wrong is not None:
            raise ServerRefusedError(f"{server.address}: its answer is wrong: {wrong}")

    @property
    def _on_the_wire(self) -> int:
        """The version as servers know it: of this run alone, and another one for all weights that were ever given."""
        if self._run is None:
            raise RuntimeError("the servers have no weights yet: call sync before sample")
        return (self._run << _COUNT_BITS) + self._given

    def _handover(self, model: nn.Module) -> Handover:
        name = f"{self._on_the_wire}-{PartialState().process_index}-{os.getpid()}"
        return Handover(model, self._on_the_wire, name, self._deadline, self._links)

    def _to_fitting(self, model: nn.Module, give: Handover) -> Hands:
        """Gives weights to servers that were started with this kind of model."""

        def give_if_it_fits(server: Server, health: Health, base: int | None) -> None:
            if health.boot not in self._fitting and (misfit := _misfit(health, unwrap(model))):
                raise ServerRefusedError(f"{server.address}: {misfit}")
            self._fitting.add(health.boot)
            give(server, health, base)

        return give_if_it_fits


def _misfit(health: Health, bare: nn.Module) -> str | None:
    """How the model of a server differs from the policy."""
    tied = "lm_head.weight" not in dict(bare.named_parameters())  # which lists a tensor once
    here = {"model type": bare.config.model_type, **sizes_of(bare.config), "head tied to the embeddings": tied}
    there = {"model type": health.model_type, **health.sizes, "head tied to the embeddings": health.tied}
    for what, own in here.items():
        if there.get(what) != own:
            return (
                f"it was started with {health.model}: its {what} is {there.get(what)}, the policy's {own}; start it "
                "with the checkpoint that the run starts from"
            )
    return None


def _wrong(request: SampleRequest, answer: SampleAnswer) -> str | None:
    """What is wrong with an answer, or None."""
    expected = len(request.prompts) * request.group_size
    if answer.version != request.version:
        return f"sampled by weights of version {answer.version}, asked of version {request.version}"
    if not len(answer.ids) == len(answer.logprobs) == len(answer.finish_reasons) == expected:
        return f"{len(answer.ids)} completions, {expected} were asked for"
    banned, ends = set(request.banned_ids), set(request.end_ids)
    most, stops = request.draw.max_new_tokens, request.draw.stop_strings
    for n, (ids, logprobs, reason) in enumerate(zip(answer.ids, answer.logprobs, answer.finish_reasons, strict=True)):
        where, tokens = f"completion {n}", ids.tolist()
        if not 1 <= len(tokens) <= most or len(logprobs) != len(tokens):
            return f"{where}: {len(tokens)} tokens and {len(logprobs)} log-probs, expected 1 to {most} of both"
        if not logprobs.isfinite().all() or logprobs.max() > 1e-3:
            return f"{where}: a log-prob that is none: {logprobs.tolist()}"
        if found := banned & set(tokens):
            return f"{where}: token {min(found)}, which must not be sampled"
        if ends & set(tokens[:-1]):
            return f"{where}: it goes on after a token that ends it"
        if reason not in ("stop", "length"):
            return f"{where}: finish reason {reason!r}, expected stop or length"
        if not stops and (reason == "stop") != (tokens[-1] in ends):
            return f"{where}: finish reason {reason} after token {tokens[-1]}"
        if reason == "length" and len(tokens) != most:
            return f"{where}: cut after {len(tokens)} tokens, not after {most}"
    return None


Grid = tuple[int, int, int]
SEED_BITS, CHILD_BITS = 44, 16  # a prompt's completions have its seed and the numbers after it


@torch.no_grad()
def prompts_for_server(model: nn.Module, inputs: PromptInputs, seed: int) -> tuple[Prompt, ...]:
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
        prompts.append(Prompt(ids, positions, seed_of(seed, p), tuple(media)))
    return tuple(prompts)


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
