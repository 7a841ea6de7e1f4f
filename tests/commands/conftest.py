"""The data set and the trainer of the tests of training, for the commands around it."""

from tests.train.conftest import make_trainer as make_trainer
from tests.train.conftest import sop_data as sop_data
