"""Tiny Qwen-VL checkpoints with random weights, made on the spot: real model classes, real processors, one megabyte.

They load with ``AutoProcessor.from_pretrained`` and the family's ``from_pretrained`` like a checkpoint of full size, so
whatever runs on them runs on a real one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from qwenvl.model.families import FamilyName

FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)

# Same names and same order as in the real vocabularies, where they follow the ordinary tokens.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# ChatML. Unlike the real checkpoints' template it adds no system turn of its own, and of tools it names the arguments
# alone: prompts of the tiny model stay short.
CHAT_TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{% for tool in tools -%}
{{ tool['function']['name'] }}({{ tool['function']['parameters']['required'] | join(', ') }})
{% endfor -%}
<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}
{% if message['role'] == 'tool' %}<tool_response>
{% endif -%}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{% if message['role'] == 'tool' %}
</tool_response>{% endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

DEFAULT_TEXTS = (
    "system user assistant You are a helpful assistant. How many parts are on the table?",
    "Which of these steps does the video show? (1) pick the screw (2) insert the fan (3) fasten the screw",
    "<think> The fan is inserted first, then the screw is fastened. </think>",
    "<answer>(2) insert the fan (3) fasten the screw</answer>",
)


def make_tokenizer(texts: Iterable[str] = DEFAULT_TEXTS, vocab_size: int = 400) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer on ``texts`` and give it the special tokens and end token of Qwen-VL.

    Any text can be encoded. Text that resembles ``texts`` takes few tokens. ``vocab_size`` bounds the ordinary tokens
    (256 bytes included). The special tokens come after them.
    """
    qwen = Qwen2Tokenizer().backend_tokenizer
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = qwen.normalizer
    bpe.pre_tokenizer = qwen.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    learned = json.loads(bpe.to_str())["model"]
    first = len(learned["vocab"])
    special = {token: first + i for i, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"] | special,
        merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.add_special_tokens(
        {"extra_special_tokens": [AddedToken(token, special=True, normalized=False) for token in special]}
    )
    return tokenizer


def make_processor(
    family: FamilyName = "qwen2_5_vl", texts: Iterable[str] = DEFAULT_TEXTS, vocab_size: int = 400
) -> ProcessorMixin:
    """The family's own processor class (patch 14, from Qwen3 on 16, and merge 2) around ``make_tokenizer(texts)``."""
    tokenizer = make_tokenizer(texts, vocab_size)
    if family.startswith("qwen3"):
        # As its checkpoints have it: other patches, other normalisation, and pixels bounded over the whole clip.
        vision: dict[str, Any] = {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        image_processor = Qwen2VLImageProcessor(size={"shortest_edge": 64 * 64, "longest_edge": 4096 * 4096}, **vision)
        video_processor = Qwen3VLVideoProcessor(
            size={"shortest_edge": 64 * 64, "longest_edge": 16 * 4096 * 4096}, cap_pixels_per_frame=False, **vision
        )
        return Qwen3VLProcessor(image_processor, tokenizer, video_processor, chat_template=CHAT_TEMPLATE)
    processors = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}
    video_processor = Qwen2VLVideoProcessor(cap_pixels_per_frame=False)
    return processors[family](Qwen2VLImageProcessor(), tokenizer, video_processor, chat_template=CHAT_TEMPLATE)


def make_model(
    family: FamilyName,
    processor: ProcessorMixin,
    seed: int = 0,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    vision_hidden_size: int = 32,
    vision_depth: int = 2,
    tie_word_embeddings: bool = True,
    initializer_range: float = 0.02,
    vocabulary: int = 0,
) -> PreTrainedModel:
    """A float32 model of ``family`` with random weights that fits ``processor``. The same seed gives the same weights.

    Text heads are 16 wide up to ``hidden_size`` 64 and 32 wide above, two of them sharing one key-value head. Those of
    Qwen3 are wider: queries and keys are normalised there, which bounds scores by the root of the width. With
    ``vision_depth`` 2 or more, Qwen2.5-VL's first blocks attend within windows and its last to everything. Linear
    attention begins with a memory that lasts. ``vocabulary``: rows of embedding and head, if more than the tokens of
    the processor; a token without a text is sampled like any other.
    """
    ids = {token: processor.tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    head_dim = 16 if hidden_size <= 64 else 32
    text = {
        "vocab_size": max(vocabulary, len(processor.tokenizer)),
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 2,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // head_dim,
        "num_key_value_heads": max(1, hidden_size // head_dim // 2),
        "max_position_embeddings": 32768,
        "initializer_range": initializer_range,
        "rope_parameters": _rope_parameters(family, head_dim),
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    if family.startswith("qwen3_vl"):
        text |= {"head_dim": 2 * head_dim, "rope_parameters": _rope_parameters(family, 2 * head_dim)}
    if family.startswith("qwen3_5"):
        text |= _linear_attention(hidden_size, num_layers, 16 if hidden_size <= 64 else 32)
    if family.endswith("_moe"):
        text |= _experts(hidden_size)
    config = CONFIG_MAPPING[family](
        text_config=text,
        vision_config=_vision_config(family, vision_hidden_size, vision_depth, hidden_size, initializer_range),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tie_word_embeddings,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        _make_states_last(model)
    model.generation_config = GenerationConfig(
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
    )
    return model.eval()


def save_tiny(
    folder: str | Path,
    family: FamilyName = "qwen2_5_vl",
    seed: int = 0,
    *,
    texts: Iterable[str] = DEFAULT_TEXTS,
    vocab_size: int = 400,
    **model_options: Any,
) -> Path:
    """Write a checkpoint folder that ``AutoProcessor`` and the model class load. ``model_options`` go to `make_model`.

    Example:
        >>> folder = save_tiny("out/tiny", family="qwen3_vl", tie_word_embeddings=False)
    """
    folder = Path(folder)
    processor = make_processor(family, texts, vocab_size)
    make_model(family, processor, seed, **model_options).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _make_states_last(model: PreTrainedModel) -> None:
    """Initialize layers of linear attention as for training (arXiv:2412.06464, code of its authors).

    The random weights of transformers forget nearly all of a state within a token, and their convolutions let little
    through. Time steps are log-uniform between 0.001 and 0.1, as in Mamba-2.
    """
    for module in model.modules():
        if hasattr(module, "dt_bias"):
            steps = torch.empty_like(module.dt_bias).uniform_(math.log(0.001), math.log(0.1)).exp()
            module.dt_bias.data = steps + (-torch.expm1(-steps)).log()  # inverse of softplus
            module.conv1d.reset_parameters()


def _linear_attention(hidden_size: int, num_layers: int, width: int) -> dict[str, Any]:
    """Gated DeltaNet in three of four layers, and in between full attention whose heads rotate by a quarter."""
    layer_types = []
    for number in range(1, num_layers + 1):
        is_full = number % min(4, num_layers) == 0
        layer_types.append("full_attention" if is_full else "linear_attention")
    return {
        "layer_types": layer_types,
        "num_attention_heads": hidden_size // 32,
        "num_key_value_heads": max(1, hidden_size // 64),
        "head_dim": 64,
        "linear_num_key_heads": hidden_size // (2 * width),
        "linear_num_value_heads": hidden_size // width,
        "linear_key_head_dim": width,
        "linear_value_head_dim": width,
    }


def _experts(hidden_size: int) -> dict[str, Any]:
    """Four experts in each layer, two of them for a token, and in Qwen3.5 one more for all tokens."""
    width = hidden_size * 3 // 4  # so that no matrix is square, and one that is turned by mistake does not fit
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width}
    return sizes | {"shared_expert_intermediate_size": width}


def _rope_parameters(family: FamilyName, head_dim: int) -> dict[str, Any]:
    """Halves of a head shared among time, height and width in the proportions of the real checkpoints."""
    half = head_dim // 2
    if family.startswith("qwen3_5"):
        own = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True}
        return {"rope_type": "default", "mrope_section": [3, 3, 2], **own}  # halves of the 16 numbers that are rotated
    interleaved = family.startswith("qwen3_vl")
    space = half * 5 // 16 if interleaved else half * 3 // 8
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 5e6 if interleaved else 1e6}
    rope["mrope_section"] = [half - 2 * space, space, space]
    return rope | {"mrope_interleaved": True} if interleaved else rope


def _vision_config(family: FamilyName, hidden_size: int, depth: int, out_size: int, init: float) -> dict[str, Any]:
    shared = {"depth": depth, "num_heads": hidden_size // 16, "initializer_range": init}
    if family == "qwen2_vl":
        return shared | {"embed_dim": hidden_size, "hidden_size": out_size, "mlp_ratio": 2}
    shared |= {"hidden_size": hidden_size, "intermediate_size": hidden_size * 2, "out_hidden_size": out_size}
    if family == "qwen2_5_vl":
        return shared | {"window_size": 56, "fullatt_block_indexes": [depth - 1], "tokens_per_second": 2}
    shared |= {"num_position_embeddings": 64}
    return shared if family.startswith("qwen3_5") else shared | {"deepstack_visual_indexes": list(range(min(depth, 2)))}
