"""An engine with weights of its own is given the policy's wherever completions are sampled, and no more often."""

from __future__ import annotations

import copy
from dataclasses import replace

from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.runlog import read_metrics


class CopyingEngine:
    """Samples from a copy of the policy that is as old as the last sync."""

    def __init__(self, engine):
        self.engine, self.copy, self.versions = engine, None, []

    def sync(self, model, version):
        self.copy = copy.deepcopy(model)
        self.versions.append(version)

    def forget(self):
        pass

    def rest(self):
        assert self.versions

    def sample(self, model, *args):
        return self.engine.sample(self.copy, *args)


def test_an_engine_has_the_weights_of_each_step_and_of_evaluations(make_trainer, sop_data):
    trainer = make_trainer(
        max_steps=4,
        num_iterations=2,
        eval_strategy="steps",
        eval_steps=2,
        eval_dataset_use=str(sop_data),
        check_parity="every",
        logging_steps=1,
        report_to=[],
    )
    engine = CopyingEngine(trainer.paths.engine)
    assert isinstance(engine, EngineWithWeights) and not isinstance(trainer.paths.engine, EngineWithWeights)
    trainer.collector = replace(trainer.collector, engine=engine)
    trainer.train()
    # Before steps 1 and 3, which sample, after step 2 for its evaluation, and after step 4. The engine is to skip the
    # second of two alike.
    assert engine.versions == [0, 2, 2, 4]
    trainer.evaluate()
    assert engine.versions[-1] is None  # a script may have changed the weights
    rows = [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]
    assert all(row["parity/max"] < 1e-4 for row in rows if "parity/max" in row)
    assert "time/sync_s" in rows[0]
