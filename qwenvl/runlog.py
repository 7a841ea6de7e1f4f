"""The readers of a run's and an evaluation's files, by the name that the documentation and users' scripts import."""

from qwenvl.run_log.log import EvaluationSample as EvaluationSample
from qwenvl.run_log.log import Rollout as Rollout
from qwenvl.run_log.log import RunLogError as RunLogError
from qwenvl.run_log.log import read_config as read_config
from qwenvl.run_log.log import read_evaluation as read_evaluation
from qwenvl.run_log.log import read_metrics as read_metrics
from qwenvl.run_log.log import read_rollouts as read_rollouts
from qwenvl.run_log.log import read_samples as read_samples
