"""GRPO for Qwen-VL on video, on the Hugging Face Trainer. The public names are loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig as GRPOConfig
    from qwenvl.config.grpo_config import WarmupConfig as WarmupConfig
    from qwenvl.data.saved_processor import read_clip as read_clip
    from qwenvl.tools.functions import Video as Video
    from qwenvl.tools.functions import tool as tool
    from qwenvl.train.grpo_trainer import GRPOTrainer as GRPOTrainer
    from qwenvl.train.warmup.trainer import WarmupTrainer as WarmupTrainer

_HOMES = {
    "GRPOConfig": "qwenvl.config.grpo_config",
    "GRPOTrainer": "qwenvl.train.grpo_trainer",
    "Video": "qwenvl.tools.functions",
    "WarmupConfig": "qwenvl.config.grpo_config",
    "WarmupTrainer": "qwenvl.train.warmup.trainer",
    "read_clip": "qwenvl.data.saved_processor",
    "tool": "qwenvl.tools.functions",
}

__all__ = ["GRPOConfig", "GRPOTrainer", "Video", "WarmupConfig", "WarmupTrainer", "read_clip", "tool"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
