"""A run as a job of Ray Train, on a cluster that stands or on one that is started on this machine.

    python scripts/train_grpo_ray.py --workers 2 run.yaml --learning_rate 1e-6
    python scripts/train_grpo_ray.py --address auto --workers 16 --max_failures 5 run.yaml --output_dir /shared/runs/sop

It is qwenvl train in Ray's workers, one for each GPU: all arguments besides the options below go to it. Ray places and
watches the workers, and starts all of them again if one or its machine dies; they then resume from the newest whole
checkpoint (--resume auto). So all machines must see output_dir, data and model, and have this package. Ray's workers
take no signals: a stopped job resumes from its last checkpoint. Numbers and checkpoints are in output_dir, as of every
run; Ray gets none. docs/scaling.md has more.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Behind the line above: the script works without an installed package.
from qwenvl.config.command_line import parsed, split_file  # noqa: E402
from qwenvl.config.settings import TrainingSettings  # noqa: E402
from qwenvl.files import require  # noqa: E402


def main(argv: list[str] | None = None) -> None:
    """Starts the workers and waits for them. Ends with status 1 where they cannot start, or failed too often."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--address", help="of the cluster: auto, or HOST:PORT [one is started on this machine]")
    parser.add_argument("--workers", type=int, default=1, help="processes, one for each GPU [%(default)s]")
    parser.add_argument("--cpus", type=float, default=1, help="cores that each worker is given [%(default)s]")
    parser.add_argument("--max_failures", type=int, default=3, help="times that all may be started again [%(default)s]")
    parser.add_argument("--storage", type=Path, default=Path("runs/ray"), help="what Ray writes down [%(default)s]")
    options, flags = parser.parse_known_args(argv)
    try:
        ray = require("ray", "ray")
        require("ray.train", "ray")
    except ImportError as error:
        raise SystemExit(f"train_grpo_ray.py: {error}") from None
    try:
        on_cpu = runs_on_cpu(flags)
    except (ValueError, OSError) as error:
        raise SystemExit(f"train_grpo_ray.py: {error}") from None
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    passed_on = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    ray.init(
        address=options.address,
        runtime_env={"env_vars": {"PYTHONPATH": path, **passed_on}},
        **({} if options.address else {"num_cpus": max(os.cpu_count() or 1, int(options.workers * options.cpus) + 1)}),
    )
    found = int(ray.cluster_resources().get("GPU", 0))
    # A cluster of others may grow. On this machine Ray would wait for GPUs without end.
    if not on_cpu and options.address is None and found < options.workers:
        ray.shutdown()
        raise SystemExit(
            f"train_grpo_ray.py: {options.workers} workers with a GPU each, and this machine has {found}: give fewer "
            "--workers, the --address of a cluster, or --use_cpu"
        )
    trainer = TorchTrainer(
        work,
        train_loop_config={"flags": resuming(flags), "folder": os.getcwd()},
        torch_config=TorchConfig(backend="gloo" if on_cpu else "nccl"),
        scaling_config=ScalingConfig(
            num_workers=options.workers, use_gpu=not on_cpu, resources_per_worker={"CPU": options.cpus}
        ),
        run_config=RunConfig(
            storage_path=str(options.storage.resolve()),
            failure_config=FailureConfig(max_failures=options.max_failures),
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise SystemExit(f"train_grpo_ray.py: the run failed more than {options.max_failures} times: {first}") from None
    finally:
        ray.shutdown()


def resuming(flags: list[str]) -> list[str]:
    """The flags with ``--resume auto``, unless they say otherwise. A settings file that stands first is named."""
    file, rest = split_file(flags)
    named = [] if file is None else ["--config", str(file)]
    return [*named, "--resume", "auto", *rest]


def runs_on_cpu(flags: list[str]) -> bool:
    """Whether a settings file or the flags say ``use_cpu``.

    Raises:
        ValueError, OSError: the file cannot be read, or one of them has an unknown setting or an unfit value.
    """
    file, rest = split_file(flags)
    return bool(parsed(file, rest, TrainingSettings).get("use_cpu"))


def work(config: dict[str, Any]) -> None:
    """The work of each worker: the command, from the folder that the job was started in.

    Raises:
        RuntimeError: the command ended with an error, which it has told.
    """
    from qwenvl.commands.train import main as train

    os.chdir(config["folder"])
    try:
        train(config["flags"])
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"qwenvl train ended with status {ended.code}") from None


if __name__ == "__main__":
    main()
