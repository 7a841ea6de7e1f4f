"""Loading: model and processor, 4-bit weights, trained parts, LoRA and its merging, the model inside its wrappers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qwenvl.files import require
from qwenvl.model.families import MERGERS, family_of
from qwenvl.model.hub import require_model, require_weights
from qwenvl.model.options import LoraOptions, Part, TuneOptions
from qwenvl.model.weight_files import base_of_adapter, weights_problem
from qwenvl.option import did_you_mean
from qwenvl.versions import warn_of_untested_versions

# Whatever computes with a model imports this module, and nothing that only reads files or shows help does.
warn_of_untested_versions()

UNPACKED_EXPERTS = (
    "--load_in_4bit cannot be used on a mixture of experts: it packs linear layers, and experts, which are most of the "
    "weights, are no layers but one parameter, which would stay as it is; leave it out"
)


_WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel", "DeepSpeedEngine")


class MisfitError(ValueError):
    """Weights of a checkpoint do not fit the model. The message names the folder and the first of them."""


def load_model(
    path: str | Path,
    *,
    attn_implementation: str = "sdpa",
    dtype: torch.dtype | str = "auto",
    quantization: Any = None,
) -> nn.Module:
    """Load a Qwen-VL model for conditional generation, from a folder or a hub name.

    It takes safetensors alone and runs no code of the checkpoint.

    Args:
        quantization: settings of transformers for weights in fewer bits. None keeps them in ``dtype``.

    Raises:
        ValueError: if the checkpoint is not of a supported family, a weight file is cut short, or it can't be kept in
            fewer bits.
        MisfitError: if weights are missing or have other shapes.
        OSError: if there is no checkpoint at ``path``.
    """
    from transformers import AutoModelForImageTextToText

    config = _read_config(path)
    require_weights(path)
    if quantization is not None and has_experts(config):
        raise ValueError(UNPACKED_EXPERTS)
    leave_out_router_loss(config)
    how: dict[str, Any] = {"dtype": dtype, "attn_implementation": attn_implementation}
    if quantization is not None:
        how["quantization_config"] = quantization
    model = load_whole(AutoModelForImageTextToText, path, config=config, **how)
    # With ZeRO-3 transformers keeps all conversions of names it knows, and reverses them in ``save_pretrained``.
    model._weight_conversions = [each for each in model._weight_conversions if each.was_used()]
    return model


def load_whole(model_class: Any, path: str | Path, **how: Any) -> nn.Module:
    """``model_class.from_pretrained``, which alone would leave missing weights at random values with a warning.

    Raises:
        MisfitError: weights are missing or have other shapes.
    """
    try:
        model, found = model_class.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    except RuntimeError as error:  # with ZeRO-3, which names other shapes nowhere else
        if "size mismatch" not in str(error):
            raise
        misfits = [line.strip().rstrip(".") for line in str(error).splitlines() if "size mismatch" in line]
        # The check for transposed expert weights reads shapes, which are 0 then.
        advice = "; or use --fsdp or ZeRO-2: with ZeRO-3 experts of Qwen3-VL-MoE are read only as they were published"
    else:
        advice = ""
        misfits = [f"{name} is missing" for name in sorted(found["missing_keys"])]
        for name, in_file, in_model in sorted(found["mismatched_keys"]):
            misfits.append(f"{name} is {tuple(in_file)}, expected {tuple(in_model)}")
    if misfits:
        more = f", and {len(misfits) - 3} more" if len(misfits) > 3 else ""
        raise MisfitError(
            f"{path}: its weight files do not fit the model: {', '.join(misfits[:3])}{more}; copy the checkpoint again "
            f"from where it came from{advice}"
        )
    return model


def load_without_weights(path: str | Path) -> nn.Module:
    """The model of a checkpoint on the meta device: its modules and shapes, and no numbers.

    Raises:
        ValueError: if the checkpoint is not of a supported family.
        OSError: if there is no checkpoint at ``path``.
    """
    from transformers import AutoModelForImageTextToText

    config = _read_config(path)
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def _read_config(path: str | Path):
    """The configuration of a checkpoint. See ``load_model`` for the errors."""
    from transformers import AutoConfig, PreTrainedConfig

    require_model(path)
    problem = weights_problem(path)
    if problem:
        raise ValueError(f"{problem}; copy the file again from where it came from")
    base = base_of_adapter(path)
    has_config = (Path(path) / "config.json").is_file()
    if base is not None and not has_config:
        raise ValueError(
            f"{path}: holds an adapter and no model; to train it on, give --model_name_or_path {base} --lora_enable "
            f"--start_from_weights {path}"
        )
    if Path(path).is_dir() and not has_config:
        raise FileNotFoundError(f"{path}: no config.json in it; expected a folder that holds a checkpoint")
    with _with_path(path):
        # First: the error of transformers for an unknown model only advises a newer version.
        family_of(PreTrainedConfig.get_config_dict(path)[0].get("model_type"))
        return AutoConfig.from_pretrained(path)


@contextmanager
def _with_path(path: str | Path) -> Iterator[None]:
    """Adds the path to the error of transformers for a checkpoint that is not there."""
    try:
        yield
    except OSError as error:
        if Path(path).is_dir():
            raise
        raise OSError(
            f"{path}: no such folder, and no model of this name in the cache or on the hub: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error


def load_processor(path: str | Path):
    """The processor beside a checkpoint: tokenizer, chat template, image and video processors.

    Raises:
        ValueError: it can't write a prompt with an image, a video and a question, as files of it are missing or others.
        OSError: there is no checkpoint at ``path``.
    """
    from transformers import AutoProcessor

    require_model(path)
    with _with_path(path):
        processor = AutoProcessor.from_pretrained(path)
    problem = _prompt_problem(processor)
    if problem:
        raise ValueError(
            f"{path}: its processor {problem}; copy the tokenizer's files, preprocessor_config.json and "
            "chat_template.jinja of the base model into the folder"
        )
    return processor


def _prompt_problem(processor) -> str | None:
    """The reason why a processor can't write a prompt with an image, a video and a question. None: it can."""
    question = "Which steps?"
    content = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": question}]
    chat = [{"role": "user", "content": content}]
    try:
        media = processor.image_token, processor.video_token
        # transformers makes an empty tokenizer where it finds no files of one.
        unknown = set(media) - set(processor.tokenizer.get_vocab())
        prompt = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        if prompt == processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=False):
            return "writes no assistant header: add_generation_prompt changes nothing"
    except Exception as error:  # a template may raise anything, and a tokenizer alone has no such methods
        return f"fails: {type(error).__name__}: {' '.join(str(error).split())}"
    if unknown:
        return f"has a tokenizer without {' and '.join(sorted(unknown))}"
    lost = [each for each in (*media, question) if each not in prompt]
    if lost:
        return f"leaves {' and '.join(lost)} out of a prompt with an image, a video and {question!r}"
    return None


def resolve_attention(name: str, device: torch.device, half: bool) -> str:
    """``auto`` becomes flash_attention_2 where flash-attn is installed and can run, else sdpa.

    Args:
        half: products are in bfloat16 or float16.

    Raises:
        ValueError: flash_attention_2 is requested and cannot run. Where its package is missing, transformers raises.
    """
    from transformers.utils import is_flash_attn_2_available

    lacks = _flash_attention_lacks(device, half)
    if name == "flash_attention_2" and lacks is not None:
        raise ValueError(f"--attn_implementation flash_attention_2 needs {lacks}; or leave it out, which takes sdpa")
    if name != "auto":
        return name
    return "flash_attention_2" if lacks is None and is_flash_attn_2_available() else "sdpa"


def _flash_attention_lacks(device: torch.device, half: bool) -> str | None:
    """The need of flash_attention_2 that this run does not meet. None: it can run, if its package is installed."""
    if device.type != "cuda":
        return "a CUDA device"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 0):
        return f"a device of compute capability 8.0 or more, got {major}.{minor}"
    if not half:
        return "products in half precision: set --bf16 True or --fp16 True"
    return None


def unwrap(model: nn.Module) -> nn.Module:
    """The transformers model inside data-parallel, compile and PEFT wrappers.

    That of accelerate looks for installed packages in each call, which takes milliseconds, and a step has dozens.
    """
    while type(model).__name__ in _WRAPPERS:
        model = model._orig_mod if type(model).__name__ == "OptimizedModule" else model.module
    if hasattr(model, "get_base_model"):  # of PEFT
        return model.get_base_model()
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The unwrapped model in eval mode. Afterwards each module is in the mode that it was in.

    Eval mode matters beyond dropout: with gradient checkpointing, layers in train mode drop the cache without a word.
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield unwrap(model)
    finally:
        for module, was_training in training.items():
            module.training = was_training


def part_of(name: str) -> Part:
    """The part that a parameter or module of an unwrapped model belongs to, by its name."""
    if ".visual." not in f".{name}":
        return "llm"
    below = name.split("visual.", 1)[1].split(".", 1)[0]
    return "mlp" if below in MERGERS else "vision"


def apply_tuning(model: nn.Module, tune: TuneOptions) -> None:
    """Sets ``requires_grad`` of every parameter of a full fine-tune.

    Raises:
        ValueError: if nothing would learn.
    """
    if not tune.parts():
        raise ValueError(
            "tune_mm_llm, tune_mm_vision and tune_mm_mlp are all False and there is no LoRA: nothing would learn; "
            "set one of them or lora_enable"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in tune.parts())


def linear_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Weights and biases of the linear layers, which autocast rounds for every product, but no head that is tied.

    Autocast caches the rounded copies of weights that require gradients alone, so frozen ones are best kept rounded.
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if not isinstance(module, nn.Linear):
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in embedded:
                yield parameter


def lora_config(model: nn.Module, tune: TuneOptions, lora: LoraOptions):
    """A LoRA configuration for the linear layers of the parts of ``tune``, or of the language model if it names none.

    Modules are named in full, never by suffix: ``down_proj`` alone would also match the vision blocks. The experts of a
    layer are one parameter with a matrix for each, which PEFT adapts as such.

    Raises:
        ValueError: a name of ``lora_targets`` is none of a layer of these parts, or experts would have dropout or be
            kept in 4 bits.
    """
    from peft import LoraConfig

    parts = tune.parts() or {"llm"}
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    experts = [name for name, _ in model.named_parameters() if ".experts." in name]
    if lora.load_in_4bit and experts:
        raise ValueError(UNPACKED_EXPERTS)
    may_learn = [name for name in (*linear, *experts) if part_of(name) in parts]
    wanted = _chosen(may_learn, lora.lora_targets)
    if lora.lora_dropout and not wanted.isdisjoint(experts):
        raise ValueError(
            f"--lora_dropout {lora.lora_dropout} cannot be used on experts: leave it out, or name other layers by "
            "--lora_targets"
        )
    return LoraConfig(
        r=lora.lora_r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=[name for name in linear if name in wanted],
        target_parameters=[name for name in experts if name in wanted] or None,
        task_type="CAUSAL_LM",
    )


def _chosen(layers: list[str], targets: list[str] | None) -> set[str]:
    """The layers that a target names by consecutive parts of their dotted names. All of them without targets."""
    if targets is None:
        return set(layers)
    chosen: set[str] = set()
    for target in targets:
        named = {layer for layer in layers if f".{target}." in f".{layer}."}
        if not named:
            known = sorted({".".join(layer.split(".")[-2:]) for layer in layers})  # such as self_attn.q_proj
            spellings = set(known)
            for each in known:
                spellings.update(each.split("."))
            near = did_you_mean(target, sorted(spellings))
            expected = f"expected {', '.join(known)}{near}"
            raise ValueError(f"--lora_targets {target}: no layer that may learn bears it; {expected}")
        chosen |= named
    return chosen


# Names of weights that plain LoRA does not have. The last is the bias that LoraConfig(lora_bias=True) adds.
_OF_OTHER_KINDS = re.compile(r"modules_to_save|lora_magnitude|lora_embedding|lm_head\.lora_|\.lora_B\..*bias\Z")


@torch.no_grad()
def merged_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The weights of the model under LoRA adapters, by the names they have without them: W + scale x B A each.

    The policy stays as it is. Where an engine splits it, call this within ``whole_weights``.

    Args:
        policy: as ``get_peft_model`` makes it of a ``LoraConfig`` for linear layers and experts.

    Raises:
        ValueError: an adapter is of another kind, or its weights are not finite.
    """
    bare = unwrap(policy)
    own = {name: value.detach() for name, value in bare.state_dict().items() if ".lora_" not in name}
    weights = {without_wrappers(name): value for name, value in own.items()}
    changed = {name: with_adapters(weights[name], layers) for name, layers in adapters_of(bare).items()}
    for name, value in changed.items():
        if not value.isfinite().all():
            raise ValueError(f"{name}: NaN or infinite with the adapter merged")
    return weights | changed


def adapters_of(bare: nn.Module) -> dict[str, list[nn.Module]]:
    """The LoRA layers that change a weight, by the name that the weight has without them.

    Raises:
        ValueError: an adapter of another kind.
    """
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    found: dict[str, list[nn.Module]] = {}
    others = [name for name, _ in bare.named_parameters() if _OF_OTHER_KINDS.search(name)]
    for name, layer in bare.named_modules():
        if isinstance(layer, LoraLayer):
            # Experts are parameters with names of their own. Adapters on several of a module are nested wrappers.
            adapted = without_wrappers(f"{name}.{getattr(layer, 'parameter_name', 'weight')}")
            found.setdefault(adapted, []).append(layer)
            if getattr(layer, "lora_variant", None):  # it computes otherwise, as activated LoRA does
                others.append(name)
        elif isinstance(layer, BaseTunerLayer):
            others.append(name)
    if others:
        raise ValueError(
            f"{others[0]}: only LoRA adapters of linear layers and experts are merged, no DoRA or other variant, no "
            "biases, no modules_to_save and none of embeddings or head; merge_and_unload of peft merges others"
        )
    return found


@torch.no_grad()
def with_adapters(weight: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """A weight with LoRA layers merged: W + scale x B A, summed in float32, in the dtype of the weight.

    Weight and adapters stay as they are. Where an engine splits them, call this within ``whole_weights``.
    """
    changes = []
    for layer in layers:
        for adapter in layer.active_adapters:
            changes.append(layer.get_delta_weight(adapter))
    if not changes:
        return weight
    return sum(changes, weight.float()).to(weight.dtype)


def without_wrappers(name: str) -> str:
    """The name of a weight without PEFT's wrappers in it."""
    return name.replace(".base_layer", "")


def has_experts(config) -> bool:
    """Whether a model is a mixture of experts."""
    return bool(getattr(config.get_text_config(), "num_experts", 0))


def leave_out_router_loss(config) -> None:
    """Keep the forwards of a mixture of experts from collecting their router's logits, tokens x experts of each layer.

    They are for a load-balancing loss, which is no part of the losses here.
    """
    if has_experts(config):
        config.get_text_config().output_router_logits = False


def router_note(config) -> str | None:
    """A warning that the load-balancing loss of a mixture of experts is left out. None for a model without experts."""
    if not has_experts(config):
        return None
    weight = config.get_text_config().router_aux_loss_coef
    return (
        f"the router's load-balancing loss is not part of the loss: router_aux_loss_coef {weight} of the checkpoint "
        "has no effect"
    )


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decayed: set[str], learning_rates: Mapping[str, float]
) -> list[dict]:
    """Optimizer groups of the parameters that learn.

    There is one group for each part with a learning rate of its own and one for the other parts. Each is split by
    weight decay. The other parts come first, because the Trainer logs the learning rate of the first group.

    Args:
        decayed: names of the parameters that weight decay applies to.
        learning_rates: of parts that differ from the optimizer's default.
    """
    # By the part, if it has a rate of its own, and by whether weight decay applies.
    members: dict[tuple[Part | None, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = part_of(name)
            key = (part if part in learning_rates else None, name in decayed)
            members.setdefault(key, []).append(parameter)
    groups: list[dict] = []
    for key in sorted(members, key=lambda key: key[0] is not None):
        with_own_rate, decays = key
        group: dict[str, Any] = {
            "params": members[key],
            "weight_decay": weight_decay if decays else 0.0,
        }
        if with_own_rate is not None:
            group["lr"] = learning_rates[with_own_rate]
        groups.append(group)
    return groups


FOUR_BIT_SKIPS = ["model.visual", "lm_head"]
"""Modules that stay as they are: the vision tower, whose features all passes share, and the head, which is exact."""
FOUR_BIT_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: half a byte, and of each block of 64 a scale, which is kept in 8 bits with a float32 for
256 of them (double quantization, QLoRA, arXiv:2305.14314, section 3)."""


def require_four_bit(device: torch.device | str) -> None:
    """Raise where weights cannot be kept in 4 bits.

    Raises:
        ValueError: the device is no CUDA device.
        ImportError: bitsandbytes is not installed.
    """
    if torch.device(device).type != "cuda":
        raise ValueError(
            "--load_in_4bit needs a CUDA device: the 4-bit products of bitsandbytes are kernels of a GPU; leave it out"
        )
    require("bitsandbytes", "qlora")


def four_bit_settings(compute: torch.dtype) -> Any:
    """The settings of transformers for NF4 weights with double quantization, in the layers of the language model.

    Args:
        compute: the type of products, to which weights are unpacked.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
        llm_int8_skip_modules=FOUR_BIT_SKIPS,
    )
