"""What runs and evaluations write down of themselves, and how to read it back. Standard library only."""

from qwenvl.runlog.run import (
    Rollout,
    RunLog,
    RunLogError,
    SeenClip,
    installed_versions,
    read_config,
    read_metrics,
    read_rollouts,
)

__all__ = [
    "Rollout",
    "RunLog",
    "RunLogError",
    "SeenClip",
    "installed_versions",
    "read_config",
    "read_metrics",
    "read_rollouts",
]
