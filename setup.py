"""Packaging. Ranges begin with the oldest versions that the tests were run with."""

from setuptools import find_packages, setup

# What some functions of the reward table are computed with.
REWARDS = ["math-verify>=0.9", "rapidfuzz>=3.9", "jiwer>=4", "rouge-score>=0.1.2", "scipy>=1.11"]

# What data sets in parquet, saved to disk or on the hub are read with.
FORMATS = ["datasets>=4"]

DEEPSPEED = ["deepspeed>=0.19"]

setup(
    name="qwenvl",
    version="0.1.0",
    description="GRPO for Qwen-VL on video, on the Hugging Face Trainer",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["qwenvl", "qwenvl.*"]),
    package_data={"qwenvl": ["page/*.html", "doctor/*.html"]},
    install_requires=[
        "torch>=2.13",
        "torchvision>=0.28",
        "transformers>=5.17,<6",
        "tokenizers>=0.22",
        "safetensors>=0.8",
        "tqdm>=4.67",
        "accelerate>=1.15,<2",
        "peft>=0.21",
        "qwen-vl-utils>=0.0.14",
        "decord>=0.6.0; platform_machine == 'x86_64'",
        "av>=17",
        "pillow>=12",
        "pyyaml>=6",
        "numpy>=2.2",
        "jinja2>=3.1",
    ],
    extras_require={
        "deepspeed": DEEPSPEED,
        "flash-attn": ["flash-attn>=2.7"],
        "torchcodec": ["torchcodec>=0.17"],
        "rewards": REWARDS,
        "formats": FORMATS,
        "bench": ["trl>=1.16"],
        "dev": ["hypothesis>=6.100", *DEEPSPEED, *REWARDS, *FORMATS, "pytest>=8", "ruff>=0.9"],
    },
    entry_points={"console_scripts": ["qwenvl=qwenvl.cli:main"]},
)
