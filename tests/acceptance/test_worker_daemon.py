"""Real workers (their processes, sandbox and TVM) on a real server over SQLite, with batches issued through the store."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from pitchpipe.wire.lease import WorkerState
from pitchpipe.wire.measure import Candidate
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, dense
from tests.fleet import Fleet, until
from tests.patience import PATIENCE_SECS

TTL_SECS = 3.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), ttl_secs=TTL_SECS) as opened:
        yield opened


def make_batch(rows: int, count: int) -> tuple[Workload, list[Candidate]]:
    """A small matrix product and candidates that the search proposes for it."""
    from tuner.search.evolution import propose
    from tuner.search.requests import ProposeRequest

    workload = dense(rows, 128, 96)
    request = ProposeRequest(
        workload=workload, target=TARGET, measured=(), seen=frozenset(), model=None, n=count, seed=0
    )
    return workload, [proposal.candidate for proposal in propose(request)]


@pytest.mark.long
def test_a_terminated_worker_reports_what_it_measured_and_hands_back_the_rest(fleet: Fleet) -> None:
    workload, candidates = make_batch(64, 64)
    job = fleet.submit(workload, TARGET, candidates)
    worker = fleet.worker("drained", "--max-candidates", "64")
    until(lambda: fleet.counts(job).terminal >= 3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECS) == 0
    counts = fleet.counts(job)
    assert counts.leased == 0
    assert counts.queued + counts.terminal == len(candidates)
    assert counts.queued > 0, "it was meant to be interrupted"
    assert {row.losses for row in fleet.rows(job)} == {0}
    assert fleet.trials(job) == counts.terminal
    assert fleet.state("drained") is WorkerState.GONE
    fleet.cancel(job)


def test_a_killed_worker_leaves_no_process_and_another_worker_measures_the_rest_once(fleet: Fleet) -> None:
    workload, candidates = make_batch(48, 20)
    job = fleet.submit(workload, TARGET, candidates)
    first = fleet.worker("killed")
    until(lambda: 0 < fleet.counts(job).terminal < len(candidates))
    below = psutil.Process(first.pid).children(recursive=True)
    assert below
    first.kill()
    first.wait()
    fleet.worker("heir")
    until(lambda: fleet.counts(job).terminal == len(candidates))
    assert fleet.trials(job) == len(candidates)
    losses = {row.losses for row in fleet.rows(job)}
    assert losses == {0, 1}
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in below))


def test_a_worker_drains_when_the_process_that_started_it_is_killed(fleet: Fleet) -> None:
    program = (
        "import os, subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-m', 'pitchpipe.cli.main', 'worker', '--name', 'orphan', '--parent', str(os.getpid())]); "
        "time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=fleet.environment)
    try:
        until(lambda: fleet.state("orphan") is WorkerState.ACTIVE)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: fleet.state("orphan") is WorkerState.GONE)


def test_a_worker_whose_parent_died_before_it_could_look_ends(fleet: Fleet) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    worker = fleet.spawn("worker", "--name", "late", "--parent", str(gone.pid))
    assert worker.wait(PATIENCE_SECS) == 0


def test_a_worker_with_a_wrong_token_ends_with_4(fleet: Fleet) -> None:
    worker = fleet.spawn("worker", "--name", "stranger", PITCHPIPE_TOKEN=secrets.token_urlsafe(32))
    assert worker.wait(PATIENCE_SECS) == 4
    assert fleet.state("stranger") is None
