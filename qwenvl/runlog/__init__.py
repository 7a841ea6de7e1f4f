"""What runs and evaluations write down of themselves, and how to read it back. Standard library only."""

from qwenvl.runlog.run import (
    Parity,
    Rollout,
    RunLog,
    RunLogError,
    SeenClip,
    installed_versions,
    read_config,
    read_metrics,
    read_parity,
    read_rollouts,
)

__all__ = [
    "Parity",
    "Rollout",
    "RunLog",
    "RunLogError",
    "SeenClip",
    "installed_versions",
    "read_config",
    "read_metrics",
    "read_parity",
    "read_rollouts",
]
