"""The random prompts of the model tests, for samplers too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("model_conftest", Path(__file__).parents[1] / "model" / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
random_prompts = _module.random_prompts
