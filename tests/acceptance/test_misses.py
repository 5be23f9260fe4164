"""Tune as you deploy: what a deployment missed is served some seconds later, re-fitted from what the fleet knows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.client import Client
from pitchpipe.deploy.fetch import fetch
from pitchpipe.embedded import Embedded
from pitchpipe.sdk import submit
from pitchpipe.wire.job import JobOrigin, JobState
from pitchpipe.wire.miss import MissStage, MissView
from pitchpipe.wire.record import LookupRequest, Origin, Tier
from pitchpipe.wire.target import Target
from tests.compiler import models
from tests.patience import PATIENCE_SECS


@pytest.fixture
def embedded(tmp_path: Path, this_target: Target) -> Iterator[Client]:
    """A service of its own: the idle budget is the service's, and so is what it may transfer from."""
    with Embedded(f"sqlite:///{tmp_path / 'p.db'}", this_target) as client, client:
        yield client


def dense(rows: int, reduction: int, columns: int, *, activation: bool) -> bytes:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(reduction, columns)).astype(np.float32), "b": np.ones(columns, np.float32)}
    nodes: list[Any] = [models.node("MatMul", ["x", "w"], ["m"]), models.node("Add", ["m", "b"], ["a"])]
    if activation:
        nodes.append(models.node("Relu", ["a"], ["r"]))
    made = models.model(nodes, {"x": [rows, reduction]}, ["r" if activation else "a"], weights)
    return bytes(made.SerializeToString())


def test_a_reported_miss_is_served_a_schedule_that_was_transferred(embedded: Client, this_target: Target) -> None:
    known = submit(dense(128, 256, 256, activation=False), target=this_target, trials=6, client=embedded)
    known = embedded.wait(known.id, timeout_secs=PATIENCE_SECS)
    assert known.state is JobState.DONE, known.error

    deployed = dense(192, 320, 384, activation=True)
    found = fetch(deployed, target=this_target, client=embedded, report_misses=True)
    (workload,) = [answer.workload for answer in found.response.answers if answer.tier is Tier.NONE]

    def miss() -> MissView:
        (seen,) = [one for one in embedded.misses(this_target) if one.workload == workload]
        return seen

    assert (miss().stage, miss().runs) == (MissStage.WAITING, 1)
    embedded.set_idle_budget(4)
    try:
        deadline = time.monotonic() + PATIENCE_SECS
        while miss().stage is not MissStage.TRANSFERRED:
            assert time.monotonic() < deadline, miss()
            time.sleep(0.1)
        assert embedded.idle_budget().spent_today == 4
        assert miss().job is not None
        job = embedded.job(miss().job or "")
        assert (job.state, job.origin, job.progress.trials) == (JobState.DONE, JobOrigin.TRANSFER, len(job.tasks))
    finally:
        embedded.set_idle_budget(0)

    (answer,) = embedded.lookup(LookupRequest(target=this_target, workloads=(workload,))).answers
    assert answer.tier is Tier.TRANSFERRED
    assert answer.best is not None
    assert (answer.best.origin, answer.best.source) == (Origin.TRANSFERRED, known.tasks[0].workload)
    assert answer.best.baseline_secs is not None
    assert answer.best.secs < answer.best.baseline_secs
    assert known.tasks[0].workload[:8] in answer.reason
