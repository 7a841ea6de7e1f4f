"""vLLM's engine in this process: prompts to completions, files to weights, and what is changed in vLLM's worker.

vLLM sees no pixels: it gets the rows that enter the language model, and the positions of all tokens. Its own processor,
vision tower and rule of positions are not used. Private functions of vLLM are, which is why its version is pinned.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm import LLM, RequestOutput, SamplingParams
from vllm.inputs.engine import mm_input, tokens_input
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from qwenvl.types import Speculation
from qwenvl.vllm_server.server import NEEDS_TOWER
from qwenvl.vllm_server.wire import Medium, Prompt, SampleAnswer, SampleRequest, architecture

GIB = 2**30
SHORTEST_MATCH = 2  # newest tokens that must have stood together before, for a draft
LONGEST_MATCH = 5  # and most of them that are looked for
POSITIONS = "positions_of_prompt"  # a field of each medium: the worker reads all positions of the prompt from it
CPU = {"keep_on_cpu": True}


class Engine:
    """A model in vLLM. All calls come from one thread.

    Attributes:
        architecture: see ``wire.architecture``.
        max_model_len: most tokens of a prompt and a completion together.
        dtype: of its weights.
    """

    def __init__(self, settings: argparse.Namespace, config: Any):
        """Loads the model, which takes from seconds to minutes.

        Args:
            settings: the server's command line.
            config: the checkpoint's configuration, of transformers.
        """
        on_cpu = not torch.cuda.is_available()
        cache_gb = settings.cache_gb if settings.cache_gb is not None or not on_cpu else 1.0
        most = min(settings.max_model_len, config.get_text_config().max_position_embeddings)
        tied = {"tie_word_embeddings": architecture(config)["head tied to the embeddings"]}  # vLLM reads one of two
        limits: dict[str, Any] = {}
        if not NEEDS_TOWER[config.model_type]:  # with these limits vLLM does not load the tower
            limits["limit_mm_per_prompt"] = {"image": 0, "video": 0}
        self.llm = LLM(
            settings.model,
            dtype=settings.dtype,
            hf_overrides={**tied, "text_config": tied},
            max_model_len=most,
            max_num_seqs=settings.max_num_seqs,
            kv_cache_memory_bytes=None if cache_gb is None else int(cache_gb * GIB),
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size,
            enforce_eager=on_cpu or not settings.compiled,
            enable_sleep_mode=settings.sleeps,
            seed=0,
            generation_config="vllm",  # else the checkpoint's top-k and penalty are in every request that has none
            logprobs_mode="raw_logprobs",
            enable_mm_embeds=True,
            skip_mm_profiling=True,
            mm_processor_cache_gb=0,  # across processes it would give a prompt the positions of another with its video
            worker_extension_cls="qwenvl.vllm_server.engine.WorkerExtension",
            max_num_batched_tokens=max(most, 4096),  # a video with more rows than that would be refused by vLLM
            # A prompt that is cut has its generator set back, which those of a CPU cannot be.
            enable_chunked_prefill=not on_cpu,
            enable_prefix_caching=not (on_cpu and config.model_type == "qwen3_5"),  # it needs chunked prefill
            speculative_config=speculative_config(settings.speculative),
            per_request_spec_decode_metrics="none" if settings.speculative is None else "summary",
            **limits,
        )
        self.architecture = architecture(config)
        self.max_model_len = most
        self.dtype = str(self.llm.llm_engine.model_config.dtype).removeprefix("torch.")
        self.llm.collective_rpc("install_hooks")

    def sample(self, request: SampleRequest, salt: str) -> SampleAnswer:
        """The completions of a request that was checked. Nothing cached under another ``salt`` is used.

        Raises:
            RuntimeError: vLLM returned something else than requested.
        """
        params = request.params
        greedy = params.temperature == 0
        self.llm.collective_rpc(
            "set_sampling",
            kwargs={
                "temperature": 1.0 if greedy else params.temperature,
                "min_p": 0.0 if greedy else params.min_p,
                "banned": list(request.banned_ids),
            },
        )
        for prompt in request.prompts:
            self.llm._add_request(engine_input(prompt, salt), sampling_params(request, prompt))
        done = self.llm._run_engine(RequestOutput, use_tqdm=False)
        rows = []  # in the order of the prompts, and of the completions of each
        for output in done:
            rows += sorted(output.outputs, key=lambda completion: completion.index)
        if len(rows) != len(request.prompts) * request.group_size:
            raise RuntimeError(f"{len(rows)} completions for {len(request.prompts)} x {request.group_size}")
        reasons = [str(row.finish_reason) for row in rows]
        if set(reasons) - {"stop", "length"}:
            raise RuntimeError(f"completions ended for other reasons than stop and length: {set(reasons)}")
        logprobs = []
        for row in rows:
            # Each position has a mapping, from the sampled token to its log-prob.
            positions = zip(row.logprobs, row.token_ids, strict=True)
            logprobs.append([at_position[token].logprob for at_position, token in positions])
        drafted = 0
        accepted = 0
        for row in rows:
            drafts = row.spec_decode_metrics
            if drafts is not None:
                drafted += drafts.num_draft_tokens
                # histogram[n]: the drafts of which n tokens were right.
                accepted += sum(number * times for number, times in enumerate(drafts.histogram))
        return SampleAnswer(
            version=request.version,
            boot="",
            ids=[list(row.token_ids) for row in rows],
            logprobs=logprobs,
            finish_reasons=reasons,
            cached_tokens=sum(output.num_cached_tokens or 0 for output in done),
            drafted_tokens=drafted,
            accepted_tokens=accepted,
        )

    def load(self, path: str, *, first: bool, last: bool) -> list[str]:
        """Takes the weights of a file, a part of all. With the last part the caches are emptied.

        Returns:
            With the last part: the parameters and layers that were not sent, or sent in part.
        """
        of_workers = self.llm.collective_rpc("load_weights_file", args=(path, first, last))
        missing = of_workers[0]
        if last:
            self._empty_caches()
        return missing

    def sleep(self) -> None:
        """Releases the memory of weights and cache. The weights are copied to the host's memory."""
        self.llm.sleep(level=1)

    def wake(self) -> None:
        """Takes the memory of weights and cache again. The weights come back, and the caches are empty."""
        self.llm.wake_up()
        self._empty_caches()

    def _empty_caches(self) -> None:
        """Keys and values, media, and their features: vLLM empties none of them by itself."""
        engine = self.llm.llm_engine
        if not engine.reset_prefix_cache():
            raise RuntimeError("the cache of keys and values could not be emptied: is a request under way?")
        engine.reset_mm_cache()
        engine.reset_encoder_cache()


def speculative_config(speculation: Speculation | None) -> dict[str, Any] | None:
    """vLLM's own settings of drafts. None: a forward for each token."""
    if speculation is None:
        return None
    return {
        "method": "ngram",
        "num_speculative_tokens": speculation.tokens,
        "prompt_lookup_min": SHORTEST_MATCH,
        "prompt_lookup_max": LONGEST_MATCH,
    }


def sampling_params(request: SampleRequest, prompt: Prompt) -> SamplingParams:
    """The settings of one prompt's completions. Completion k of the group has the prompt's ``seed + k``.

    Temperature, min-p and banned tokens are not among them: the worker has them, see ``WorkerExtension.set_sampling``.
    So log-probs are those of softmax(logits / T), a temperature above 2 is possible, and top-k, top-p and the penalty
    are the same as on undivided logits.
    """
    params = request.params
    greedy = params.temperature == 0
    truncation = {} if greedy else {"top_k": params.top_k, "top_p": params.top_p}
    return SamplingParams(
        n=request.group_size,
        seed=prompt.seed,
        temperature=0.0 if greedy else 1.0,
        repetition_penalty=params.repetition_penalty,
        max_tokens=request.room_of(prompt),
        stop=list(params.stop_strings),
        include_stop_str_in_output=True,
        stop_token_ids=list(request.end_ids),
        ignore_eos=True,  # the end tokens are those of the request, and no others
        logprobs=0,  # of the sampled token alone
        detokenize=bool(params.stop_strings),
        skip_special_tokens=False,  # a stop string is not found across a token that is left out
        **truncation,
    )


def engine_input(prompt: Prompt, salt: str) -> Any:
    """A prompt as ``LLMEngine.add_request`` takes it.

    Args:
        salt: prompts of another salt share no cached keys and values with this one.
    """
    ids = prompt.ids.tolist()
    if not prompt.media:
        return tokens_input(ids, cache_salt=salt)
    items: dict[str, list[MultiModalKwargsItem]] = {}
    hashes: dict[str, list[str]] = {}
    ranges: dict[str, list[PlaceholderRange]] = {}
    for medium in prompt.media:
        items.setdefault(medium.kind, []).append(_item(medium, prompt.positions))
        hashes.setdefault(medium.kind, []).append(_hash(medium, prompt.positions))
        # A mask only where there are other tokens between: one that is True throughout is the same as none.
        mask = None if bool(medium.embedded.all()) else medium.embedded
        ranges.setdefault(medium.kind, []).append(PlaceholderRange(medium.offset, len(medium.embedded), mask))
    return mm_input(ids, MultiModalKwargsItems(items), hashes, ranges, cache_salt=salt)


def _item(medium: Medium, positions: Tensor) -> MultiModalKwargsItem:
    kind = medium.kind
    fields = {
        f"{kind}_embeds": (medium.features, MultiModalFieldConfig.flat(kind, [slice(len(medium.features))])),
        f"{kind}_grid_thw": (torch.tensor([medium.grid]), MultiModalFieldConfig.batched(kind, **CPU)),
        POSITIONS: (positions[None], MultiModalFieldConfig.batched(kind, **CPU)),
    }
    return MultiModalKwargsItem(
        {name: config.build_elems(name, values)[0] for name, (values, config) in fields.items()}
    )


def _hash(medium: Medium, positions: Tensor) -> str:
    """Names the keys and values of the range in vLLM's caches by all that they depend on, positions included.

    The same frames at another rate have the same features and other positions. With the same name they would be taken
    from the cache. Tokens before and after the range are named by vLLM.
    """
    digest = hashlib.sha256(f"{medium.kind} {medium.grid} {medium.features.dtype}".encode())
    own = positions[:, medium.offset : medium.offset + len(medium.embedded)]
    for part in (medium.features, medium.embedded, own):
        digest.update(str(tuple(part.shape)).encode())
        digest.update(part.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


class WorkerExtension:
    """Methods that vLLM adds to its worker class. ``LLM.collective_rpc`` calls them in all workers."""

    model_runner: Any  # the worker's own
    _written: set[str]  # parameters, by the parts of weights so far
    _temperature: float
    _min_p: float
    _banned: Tensor

    def install_hooks(self) -> None:
        """Has the model take positions from the request, and the sampler the settings of ``set_sampling``."""
        model = self.model_runner.get_model()
        self.set_sampling(temperature=1.0, min_p=0.0, banned=[])
        stock_positions = model.get_mrope_input_positions
        stock_logits = model.compute_logits

        def positions(input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
            if not mm_features:
                return stock_positions(input_tokens, mm_features)
            given = mm_features[0].data[POSITIONS].data
            assert given.shape[1] == len(input_tokens), "positions of another prompt"
            return given, int(given.max()) + 1 - len(input_tokens)

        def logits(*args: Any, **kwargs: Any) -> Tensor | None:
            given = stock_logits(*args, **kwargs)  # None in workers that hold no part of the head
            return None if given is None else given.float() / self._temperature

        model.get_mrope_input_positions = positions
        model.compute_logits = logits
        if self.model_runner.device.type == "cpu":
            rejection_sampler.apply_sampling_constraints = truncated_drafts
        for sampler in _samplers_of(self.model_runner):
            sampler.apply_logits_processors = self._with_own_settings(sampler.apply_logits_processors)

    def set_sampling(self, temperature: float, min_p: float, banned: list[int]) -> None:
        """Sets how tokens are drawn from now on. vLLM refuses min-p and bans beside drafts, and its bans hold no -1e9.

        Args:
            temperature: logits are divided by it.
            min_p: tokens below this share of the likeliest token's probability are not sampled.
            banned: tokens that are never sampled.
        """
        self._temperature = temperature
        self._min_p = min_p
        self._banned = torch.tensor(banned, dtype=torch.long, device=self.model_runner.device)

    def _with_own_settings(self, stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The processors of one of vLLM's samplers, with bans before them and min-p behind them.

        The samplers have taken the logits for their log-probs before, and truncate by top-k and top-p after.
        """

        def processed(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            logits = stock(logits.index_fill_(1, self._banned, -torch.inf), *args, **kwargs)
            if self._min_p:
                least = logits.amax(-1, keepdim=True) + math.log(self._min_p)
                logits = logits.masked_fill(logits < least, -torch.inf)
            return logits

        return processed

    def load_weights_file(self, path: str, first: bool, last: bool) -> list[str]:
        """Takes the weights of a file of safetensors, a part of all. With the last part the new ones are used.

        The steps of vLLM's ``reload_weights``, which would fill up a layer that was sent in part with whatever is in
        memory.

        Returns:
            With the last part: the parameters and layers that were not sent, or sent in part.
        """
        runner = self.model_runner
        model = runner.get_model()
        if first:
            finalize_layerwise_reload(model, runner.model_config)  # of parts whose last one never came
            initialize_layerwise_reload(model)
            self._written = set()
        self._written |= model.load_weights(_tensors_of(path))
        if not last:
            return []
        partial = [name for name, layer in model.named_modules() if _written_in_part(layer)]
        finalize_layerwise_reload(model, runner.model_config)
        runner.reset_lora_state()
        runner.reset_encoder_cache()
        runner.reset_mm_cache()
        _repack_tied_head(model)
        names = (name for name, _ in model.named_parameters() if "visual" not in name.split("."))
        return [*partial, *sorted(set(names) - self._written)]


def truncated_drafts(logits: Tensor, ends: Tensor, settings: Any) -> Tensor:
    """Top-k and top-p of the tokens of drafts, K x V, in the place of vLLM's function for the CPU.

    That one reads temperature, top-k and top-p of each token from memory that nothing has written, and fails where
    there are no drafts. The temperature here is 1, see ``set_sampling``.

    Args:
        ends: where the draft of each completion ends in K.
        settings: vLLM's ``SamplingMetadata``, of the completions.
    """
    if settings.all_greedy or not len(logits):
        return logits
    lengths = ends.diff(prepend=ends.new_zeros(1))
    # From one for each completion to one for each token of its draft, K.
    top_k = None if settings.top_k is None else settings.top_k.repeat_interleave(lengths)
    top_p = None if settings.top_p is None else settings.top_p.repeat_interleave(lengths)
    return apply_top_k_top_p(logits, top_k, top_p)


def _samplers_of(runner: Any) -> list[Any]:
    """The sampler of the next token, and the one that verifies drafts, if there is one."""
    return [each for each in (runner.sampler, getattr(runner, "rejection_sampler", None)) if each is not None]


def _tensors_of(path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, one in memory at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            yield name, file.get_tensor(name)


def _written_in_part(layer: nn.Module) -> bool:
    info = get_layerwise_info(layer)
    if isinstance(layer, VocabParallelEmbedding):  # one weight, padded: what is not written is padding
        return False
    return info.can_load() and 0 < info.load_numel < info.load_numel_total


def _repack_tied_head(model: nn.Module) -> None:
    """Packs the weights of a tied head again, which vLLM does not do after new weights.

    On a CPU each linear layer holds a packed copy of its weights.
    """
    language = model.language_model
    head = language.lm_head
    if head.weight is language.model.embed_tokens.weight:
        head.quant_method.process_weights_after_loading(head)
