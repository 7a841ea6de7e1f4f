"""Packaging. Ranges begin with the oldest versions that the tests were run with.

They end below the next minor version where the package overrides private methods of a library or reads its internals
(`qwenvl/versions.py` lists them). The exact versions that the tests of the README ran with are in
`scripts/constraints.txt`.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithExample(build_py):
    """A wheel carries the example records, which the repository keeps outside of the package."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copytree(ROOT / "data", Path(self.build_lib) / "qwenvl" / "shipped_data", dirs_exist_ok=True)


# What some functions of the reward table are computed with.
REWARDS = ["math-verify>=0.9", "rapidfuzz>=3.10", "jiwer>=4", "rouge-score>=0.1.2", "scipy>=1.14"]

# What data sets in parquet, saved to disk or on the hub are read with.
FORMATS = ["datasets>=5.2"]

# What the reward judge asks a server with.
JUDGE = ["openai>=2"]

# What qwenvl serve answers requests with.
SERVE = ["fastapi>=0.115", "uvicorn>=0.34"]

# What --report_to shows runs in, on the machine itself. Who uses wandb or mlflow has it.
TRACKERS = ["tensorboard>=2.20", "trackio>=0.43"]

DEEPSPEED = ["deepspeed>=0.19.8,<0.20"]

# What --video_backend decord decodes with. No default: it gives other frames, or hangs, on clips that PyAV reads. Its
# wheels are of one architecture.
DECORD = ["decord>=0.6.0; platform_machine == 'x86_64'"]

# What scripts/train_grpo_ray.py starts workers with. Not in dev: it is 250 MB, and its tests are skipped without it.
RAY = ["ray[default,train]>=2.60"]

# What the site of the documentation is built with, without a network, and what its notebook is run by.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6", "nbclient>=0.10", "ipykernel>=6.29"]

setup(
    name="qwenvl",
    version="0.1.0",
    description="GRPO for Qwen-VL on video, on the Hugging Face Trainer",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    cmdclass={"build_py": BuildWithExample},
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["qwenvl", "qwenvl.*"]),
    package_data={
        "qwenvl": ["py.typed", "inspection/*.html", "run_log/report/*.html", "run_log/report/app/*", "train/*.jinja"]
    },
    install_requires=[
        "torch>=2.13,<2.16",
        "torchvision>=0.28,<0.31",
        "transformers>=5.23,<5.25",
        "tokenizers>=0.23.1",
        "safetensors>=0.8",
        "tqdm>=4.67",
        "accelerate>=1.15,<1.16",
        "psutil>=6",  # which accelerate needs too
        "huggingface_hub>=1.31",
        "peft>=0.21,<0.22",
        "qwen-vl-utils>=0.0.14",
        "av>=18.1",  # which says in which order fields are shown
        "pillow>=12",
        "pyyaml>=6.0.2",
        "numpy>=2.2",
        "jinja2>=3.1.6",
        "rich>=13.9",
    ],
    extras_require={
        "deepspeed": DEEPSPEED,
        "decord": DECORD,
        "ray": RAY,
        "flash-attn": ["flash-attn>=2.7"],
        "qlora": ["bitsandbytes>=0.49"],
        "rewards": REWARDS,
        "judge": JUDGE,
        "serve": SERVE,
        "formats": FORMATS,
        "docs": DOCS,
        "trackers": TRACKERS,
        "bench": ["trl>=1.16"],
        "dev": [
            *DEEPSPEED,
            *DECORD,
            *REWARDS,
            *JUDGE,
            *SERVE,
            *FORMATS,
            *TRACKERS,
            *DOCS,
            "hypothesis>=6.170",
            "pytest>=9.2",
            "pytest-timeout>=2.4",
            "pytest-xdist>=3.8",
            "ruff>=0.17.6",
            "mypy>=2.4",
            "setuptools>=77.0.3",
            "markdown-it-py>=3",  # reads pages as GitHub does
        ],
    },
    entry_points={"console_scripts": ["qwenvl=qwenvl.cli:main"]},
)
