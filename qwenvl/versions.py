"""The versions of libraries that the tests ran with, and what of these libraries is used beyond their public interface.

A release may rename an internal without notice. `tests/test_versions.py` looks each of them up in the installed
libraries, and names the one that is gone.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from importlib import import_module

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tested:
    """The oldest and the newest minor version of a library that the tests ran with, such as ``5.23`` and ``5.24``."""

    library: str
    oldest: str
    newest: str


TESTED = (
    Tested("torch", "2.13", "2.15"),
    Tested("transformers", "5.23", "5.24"),
    Tested("accelerate", "1.15", "1.15"),
    Tested("peft", "0.21", "0.21"),
    Tested("deepspeed", "0.19", "0.19"),
)
"""The ranges of setup.py end below the minor version after the newest one here."""


@dataclass(frozen=True)
class Internal:
    """A name of another library that its documentation does not promise.

    Attributes:
        module: where it is.
        name: of a function or class, or ``Class.attribute``.
        used_in: files of this package that use it, below ``qwenvl/``.
    """

    module: str
    name: str
    used_in: tuple[str, ...]

    def find(self) -> object:
        """The object itself.

        Raises:
            ImportError, AttributeError: the installed version has no such name.
        """
        found: object = import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


_TRAINER = "train/policy_trainer.py"

# Attributes that only instances have cannot be looked up here: the hooks of a module (`_forward_pre_hooks`), the
# conversions of a loaded model (`_weight_conversions`), the number of GPUs of a run (`_n_gpu`).
INTERNALS = (
    # Hooks of the Trainer that are overridden, and called by it.
    Internal("transformers.trainer", "Trainer.get_batch_samples", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._save_checkpoint", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._save_optimizer_and_scheduler", (_TRAINER, "train/grpo_trainer.py")),
    Internal("transformers.trainer", "Trainer._load_optimizer_and_scheduler", (_TRAINER, "train/grpo_trainer.py")),
    Internal("transformers.trainer", "Trainer._load_from_checkpoint", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._load_best_model", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._save", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._push_from_checkpoint", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._track_num_input_tokens", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._get_dataloader", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._get_train_sampler", (_TRAINER,)),
    Internal("transformers.trainer", "Trainer._get_eval_sampler", (_TRAINER,)),
    # The hub: the switch that its own environment variable sets, for the process that runs already.
    Internal("huggingface_hub.constants", "HF_HUB_OFFLINE", ("model/hub.py",)),
    # Models: how layers look up their attention, the order of Qwen2.5-VL's windows, the state of linear attention.
    Internal("transformers", "PreTrainedConfig._attn_implementation", ("model/vision_tower.py",)),
    Internal("transformers.vision_utils", "get_vision_window_index", ("model/vision_tower.py",)),
    Internal("transformers.cache_utils", "Cache.update_conv_state", ("model/sharing/linear_attention.py",)),
    Internal("transformers.cache_utils", "Cache.update_recurrent_state", ("model/sharing/linear_attention.py",)),
    Internal("transformers.cache_utils", "Cache.get_conv_state", ("model/sharing/linear_attention.py",)),
    Internal("transformers.cache_utils", "Cache.get_recurrent_state", ("model/sharing/linear_attention.py",)),
    # Prompts: the template as transformers compiles it, the sizes that processors choose.
    Internal("transformers.utils.chat_template_utils", "_compile_jinja_template", ("data/prompt_length.py",)),
    Internal(
        "transformers.models.qwen2_vl.image_processing_qwen2_vl",
        "smart_resize",
        ("data/prompt_length.py", "data/hints.py"),
    ),
    Internal("transformers.image_utils", "pil_torch_interpolation_mapping", ("data/media/resize.py",)),
    Internal(
        "transformers.video_processing_utils", "BaseVideoProcessor.fetch_videos", ("rewards/functions/models.py",)
    ),
    # Trackers, and the schema of tools.
    Internal("transformers.integrations.integration_utils", "INTEGRATION_TO_CALLBACK", ("train/callbacks.py",)),
    Internal("transformers.utils.chat_template_utils", "DocstringParsingException", ("tools/functions.py",)),
    Internal("transformers.utils.chat_template_utils", "TypeHintParsingException", ("tools/functions.py",)),
    # Adapters, which are merged without wrappers.
    Internal("peft.tuners.lora", "Linear.get_delta_weight", ("model/loading.py",)),
    Internal("peft.tuners.tuners_utils", "BaseTunerLayer.active_adapters", ("model/loading.py",)),
    # Engines that split the model.
    Internal("torch.distributed.fsdp", "FSDPModule.unshard", ("model/sharding.py",)),
    Internal("deepspeed.runtime.zero.partition_parameters", "GatheredParameters", ("model/sharding.py",)),
    Internal("deepspeed.runtime.zero.partition_parameters", "ZeroParamStatus.AVAILABLE", ("model/sharding.py",)),
    Internal(
        "deepspeed.runtime.zero.parameter_offload",
        "DeepSpeedZeRoOffload._register_deepspeed_module",
        ("model/sharding.py",),
    ),
    # The compiler of a step of sampling, and the processes of torchrun.
    Internal("torch._dynamo", "mark_static", ("rollout/shared_sampling.py",)),
    Internal("torch.distributed.elastic.multiprocessing.api", "SignalException", ("train/run/launch.py",)),
    # The sampling server, in an environment of its own with an exact version of vLLM.
    Internal("vllm.inputs.engine", "mm_input", ("vllm_server/engine.py",)),
    Internal("vllm.inputs.engine", "tokens_input", ("vllm_server/engine.py",)),
    Internal(
        "vllm.model_executor.layers.vocab_parallel_embedding", "VocabParallelEmbedding", ("vllm_server/engine.py",)
    ),
    Internal(
        "vllm.model_executor.model_loader.reload.layerwise", "initialize_layerwise_reload", ("vllm_server/engine.py",)
    ),
    Internal(
        "vllm.model_executor.model_loader.reload.layerwise", "finalize_layerwise_reload", ("vllm_server/engine.py",)
    ),
    Internal("vllm.model_executor.model_loader.reload.layerwise", "get_layerwise_info", ("vllm_server/engine.py",)),
    Internal("vllm.multimodal.inputs", "MultiModalKwargsItems", ("vllm_server/engine.py",)),
)


def missing_internals(library: str) -> list[str]:
    """Internals of libraries that the installed version lacks, each with the files here that use it."""
    missing = []
    for internal in INTERNALS:
        if internal.module.split(".")[0] != library:
            continue
        try:
            internal.find()
        except (ImportError, AttributeError):
            missing.append(f"{internal.module}.{internal.name}, used in {', '.join(internal.used_in)}")
    return missing


def untested(library: str, version: str) -> str | None:
    """A sentence about a version that the tests did not run with, or None.

    Example:
        >>> untested("transformers", "5.26.1")
        'qwenvl was tested with transformers 5.23 to 5.24; this is 5.26: the parity check of the first step will tell'
        >>> untested("transformers", "5.24.0")
    """
    for tested in TESTED:
        if tested.library != library:
            continue
        found = _minor(version)
        if _minor(tested.oldest) <= found <= _minor(tested.newest):
            return None
        span = tested.oldest if tested.oldest == tested.newest else f"{tested.oldest} to {tested.newest}"
        return (
            f"qwenvl was tested with {library} {span}; this is {found[0]}.{found[1]}: the parity check of the first "
            "step will tell"
        )
    return None


def warn_of_untested_versions() -> None:
    """Log a sentence for each installed library that is outside of the tested range, in the first process alone."""
    from importlib import metadata

    if os.environ.get("RANK", "0") != "0":
        return
    for tested in TESTED:
        try:
            version = metadata.version(tested.library)
        except metadata.PackageNotFoundError:
            continue  # DeepSpeed is optional
        sentence = untested(tested.library, version)
        if sentence is not None:
            logger.warning(sentence)


def _minor(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as ``2.14.1+cpu``. (0, 0) where it begins otherwise."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
