"""What the environment of the tests does to them, and to the processes that they start."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

SPLIT = """
import os, sys
import tests.environment
assert os.environ["PYTHONPATH"].startswith(sys.argv[1]) and "torch" not in sys.modules
import torch
layer, x = torch.nn.Linear(64, 8), torch.randn(5, 64)
parts = [torch._C._nn.linear(x[:, :16], layer.weight[:, :16], layer.bias), x[:, 16:] @ layer.weight[:, 16:].T]
assert torch.equal(layer(x), sum(parts))
assert torch.equal(layer.double()(x.double()), torch._C._nn.linear(x.double(), layer.weight, layer.bias))
"""


def test_linear_layers_of_all_processes_are_summed_in_two_parts():
    folder = str(HERE / "split_sums")
    environment = os.environ | {"QWENVL_TEST_SPLIT": "0.25", "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", SPLIT, folder], cwd=HERE.parent, env=environment, check=True)
