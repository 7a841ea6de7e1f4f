"""Libraries that only some reward functions need."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def optional(module: str, extra: str = "rewards") -> ModuleType:
    """Import ``module`` of the extra ``extra``.

    Raises:
        ImportError: it is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(_missing(module, extra)) from error


def require(module: str, extra: str = "rewards") -> None:
    """Make sure that ``module`` is installed, without importing it.

    Raises:
        ImportError: it is not; the message says what to install.
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(_missing(module, extra))


def _missing(module: str, extra: str) -> str:
    return f"this reward needs the package {module.split('.')[0]}: pip install 'qwenvl[{extra}]'"
