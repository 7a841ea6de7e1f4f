"""Trainers over the tiny model, for stages that are tested in a run."""

from tests.train.conftest import make_trainer, sop_data, whole_and_resumed  # noqa: F401 (fixtures)
