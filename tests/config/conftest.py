"""Settings made from a few, and what is said where they are refused."""

import pytest

from qwenvl.config.grpo_config import GRPOConfig


@pytest.fixture
def make(tmp_path):
    """``make(**settings)`` -> GRPOConfig on a CPU, in a folder of the test's own."""
    return lambda **settings: GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **settings)


def refusal(make, **settings) -> str:
    """What the ValueError says that ``make`` raises."""
    with pytest.raises(ValueError) as error:
        make(**settings)
    return str(error.value)
