"""What runs and evaluations write down of themselves, and how to read it back. Standard library only."""

from qwenvl.runlog.run import (
    Parity,
    Rollout,
    RunLog,
    RunLogError,
    SeenClip,
    read_config,
    read_metrics,
    read_parity,
    read_rollouts,
)
from qwenvl.runlog.versions import installed_versions

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
