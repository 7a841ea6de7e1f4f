"""How completions are drawn, in vLLM's words."""

from __future__ import annotations

from vllm import SamplingParams

from qwenvl.vllm_server.wire.sampling import SampleRequest

NEVER = -1e9  # added to the logit of a token that is not to be drawn. -100 does not hold at high temperatures


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
