"""vLLM's engine, in this process: prompts to completions, files to weights.

All calls come from one thread. What is private in vLLM and used here is why its version is pinned.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import LLM, CompletionOutput, RequestOutput, SamplingParams

from qwenvl.vllm_server.family import Shape, family_of
from qwenvl.vllm_server.prompts import check_prompt, engine_input
from qwenvl.vllm_server.settings import Settings
from qwenvl.vllm_server.wire.body import require
from qwenvl.vllm_server.wire.link import LinkRequest, nccl_version
from qwenvl.vllm_server.wire.sampling import SampleAnswer, SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsRequest

GIB = 2**30
NEVER = -1e9  # added to the logit of a token that is not to be drawn. -100 does not hold at high temperatures


class Engine:
    """A model in vLLM.

    Attributes:
        shape: what a request must fit.
        dtype: of its weights.
        workers: processes that the model is split over.
        nccl: the version of NCCL. 0: it computes on a CPU.
    """

    def __init__(self, settings: Settings, config: Any):
        """Loads the model, which takes from seconds to minutes.

        Args:
            config: the checkpoint's configuration, of transformers.
        """
        on_cpu = not torch.cuda.is_available()
        cache_gb = settings.cache_gb if settings.cache_gb is not None or not on_cpu else 1.0
        most = min(settings.max_model_len, config.get_text_config().max_position_embeddings)
        limits: dict[str, Any] = (
            {} if family_of(config.model_type).tower else {"limit_mm_per_prompt": {"image": 0, "video": 0}}
        )
        self.llm = LLM(
            settings.model,
            dtype=settings.dtype,
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
            worker_extension_cls="qwenvl.vllm_server.worker.WorkerExtension",
            max_num_batched_tokens=max(most, 4096),  # a video with more rows than that would be refused by vLLM
            # A prompt that is cut has its generator set back, which those of a CPU cannot be.
            enable_chunked_prefill=not on_cpu,
            **limits,
        )
        self.shape = Shape.of(config, most)
        self.dtype = str(self.llm.llm_engine.model_config.dtype).removeprefix("torch.")
        self.workers = settings.tensor_parallel_size
        self.nccl = nccl_version()
        self.llm.collective_rpc("install_hooks")

    def check(self, request: SampleRequest) -> None:
        """Refuses what the model cannot take, before anything is sampled."""
        for number, prompt in enumerate(request.prompts):
            check_prompt(prompt, self.shape, request.draw.max_new_tokens, f"prompts[{number}]")
        for name in ("banned_ids", "end_ids"):
            ids = getattr(request, name)
            require(all(0 <= each < self.shape.vocab_size for each in ids), f"{name}: ids above the vocabulary: {ids}")

    def sample(self, request: SampleRequest, salt: str) -> SampleAnswer:
        """The completions of a request that was checked. Nothing computed under another ``salt`` is used again.

        Raises:
            RuntimeError: vLLM gave something else than what was asked for.
        """
        self.llm.collective_rpc("set_temperature", args=(request.draw.temperature or 1.0,))
        for prompt in request.prompts:
            self.llm._add_request(engine_input(prompt, salt), sampling_params(request, prompt.seed))
        done = self.llm._run_engine(RequestOutput, use_tqdm=False)
        rows = [row for output in done for row in sorted(output.outputs, key=lambda one: one.index)]
        if len(rows) != len(request.prompts) * request.group_size:
            raise RuntimeError(f"{len(rows)} completions for {len(request.prompts)} x {request.group_size}")
        reasons = tuple(str(row.finish_reason) for row in rows)
        if set(reasons) - {"stop", "length"}:
            raise RuntimeError(f"completions ended for other reasons than stop and length: {set(reasons)}")
        return SampleAnswer(
            version=request.version,
            boot="",
            ids=tuple(torch.tensor(list(row.token_ids)) for row in rows),
            logprobs=tuple(torch.tensor(_logprobs(row)) for row in rows),
            finish_reasons=reasons,
            prompt_tokens=sum(len(each.ids) for each in request.prompts),
            cached_tokens=sum(output.num_cached_tokens or 0 for output in done),
        )

    def load(self, path: str) -> set[str]:
        """Takes the weights of a file, forgets all that was computed with others, and says what was written."""
        return self._taken("load_weights_file", path)

    def join(self, request: LinkRequest) -> None:
        """Has the workers take part in a link."""
        settings = {name: getattr(request, name) for name in ("kind", "store", "size", "seconds")}
        self.llm.collective_rpc("join_link", args=(settings,))

    def receive(self, request: WeightsRequest) -> set[str]:
        """Takes weights that come along the link, and does as ``load``."""
        shapes = {name: list(shape) for name, shape in request.shapes.items()}
        return self._taken("receive_weights", shapes, self.dtype)

    def _taken(self, method: str, *args: Any) -> set[str]:
        (written, *_) = self.llm.collective_rpc(method, args=args)
        self.forget()
        return set(written)

    def forget(self) -> None:
        """Empties the caches: keys and values, media, and their features. Each must be, by hand."""
        engine = self.llm.llm_engine
        if not engine.reset_prefix_cache():
            raise RuntimeError("the cache of keys and values could not be emptied: is a request under way?")
        engine.reset_mm_cache()
        engine.reset_encoder_cache()

    def language_parameters(self) -> set[str]:
        """The parameters that a sync of all weights must write."""
        (names, *_) = self.llm.collective_rpc("language_parameters")
        return set(names)

    def sleep(self) -> None:
        """Gives the memory of weights and cache back. The weights wait in the host's memory."""
        self.llm.sleep(level=1)

    def wake(self) -> None:
        self.llm.wake_up()
        self.forget()


def _logprobs(row: CompletionOutput) -> list[float]:
    """Of the tokens that were drawn."""
    return [each[token].logprob for each, token in zip(row.logprobs, row.token_ids, strict=True)]


def sampling_params(request: SampleRequest, seed: int) -> SamplingParams:
    """The settings of one prompt's completions. Completion k of the group has the seed ``seed + k``.

    The temperature is none of them: the worker divides the logits by it, see `WorkerExtension.set_temperature`. So
    log-probs are those of softmax(logits / T), a temperature above 2 is possible, and top-k, top-p, min-p and the
    penalty are the same as on undivided logits.
    """
    draw = request.draw
    greedy = draw.temperature == 0
    truncated = {} if greedy else {"top_k": draw.top_k, "top_p": draw.top_p, "min_p": draw.min_p}
    return SamplingParams(
        n=request.group_size,
        seed=seed,
        temperature=0.0 if greedy else 1.0,
        repetition_penalty=draw.repetition_penalty,
        max_tokens=draw.max_new_tokens,
        stop=list(draw.stop_strings),
        include_stop_str_in_output=True,
        stop_token_ids=list(request.end_ids),
        ignore_eos=True,  # the end tokens are those of the request, and no others
        logit_bias=dict.fromkeys(request.banned_ids, NEVER),
        logprobs=0,  # of the drawn token alone
        detokenize=bool(draw.stop_strings),
        skip_special_tokens=False,  # a stop string is not found across a token that is left out
        **truncated,
    )
