"""Another machine: every linear layer in float32 is summed in two parts. Their border is a share of its inner size.

What comes out is deterministic and as right as before. Its last bits are others, as on a processor with other
instructions. Python imports this file at the start of each process that has its folder on ``PYTHONPATH``, where
``tests/environment.py`` puts it if ``QWENVL_TEST_SPLIT`` is set to the share. ZeRO-3 has a linear layer of its own.
"""

import os
import sys
from importlib.util import find_spec
from types import SimpleNamespace


def split_sums(functional, share: float) -> None:
    """Put the linear layer in two parts in the place of ``functional.linear``."""
    import torch

    plain = functional.linear
    if plain.__module__.endswith("sitecustomize"):  # it is in its place already
        return

    def linear(input, weight, bias=None):
        size = weight.shape[-1]
        single = input.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled(input.device.type)
        if not single or size < 2:
            return plain(input, weight, bias)
        at = min(size - 1, max(1, round(share * size)))
        return plain(input[..., :at], weight[..., :at], bias) + plain(input[..., at:], weight[..., at:])

    functional.linear = linear


def install(share: float) -> None:
    """Split now, or as soon as torch is imported: a process that needs no torch does not wait for it."""
    name = "torch.nn.functional"
    if name in sys.modules:
        split_sums(sys.modules[name], share)
        return

    def find(asked, path=None, target=None):
        if asked != name:
            return None
        sys.meta_path.remove(finder)
        spec = find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), split_sums(module, share))
        return spec

    finder = SimpleNamespace(find_spec=find)
    sys.meta_path.insert(0, finder)


if share := os.environ.get("QWENVL_TEST_SPLIT"):
    install(float(share))
