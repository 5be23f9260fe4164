"""Steps on a real Dask cluster of one scheduler and one worker process, alone and under a coordinator."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from pathlib import Path

import pytest

from pitchpipe.client import Client
from pitchpipe.errors import InvalidModel, PitchpipeError, Unreachable
from pitchpipe.processes.plugins import step
from pitchpipe.wire.job import Budget, JobRequest, JobState, ModelFormat
from pitchpipe.wire.target import Target
from tests.compiler import models, programs
from tests.patience import PATIENCE_SECS
from tuner.execution import engine
from tuner.execution.engine import DaskEngine, LocalEngine, create_engine
from tuner.execution.steps import check_model, propose, split_ingested
from tuner.search.requests import ProposeRequest

KilledWorker = pytest.importorskip("distributed").KilledWorker
pytestmark = [
    # Dask leaves sockets and event loops to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOKEN = "a-token-that-the-test-chose-by-itself"


@pytest.fixture(scope="module")
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in reversed(started):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(processes: list[subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of an engine with a worker process of two threads: the engine must cope with the default of Dask."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    start_cluster(address, processes, tmp_path_factory.mktemp("dask"))
    return f"dask://{address}"


def start_cluster(address: str, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    host, port = address.split(":")
    environment = {
        **os.environ,
        "PITCHPIPE_QUIET_LOCK": str(folder / "lock"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    scheduler = ["distributed.cli.dask_scheduler", "--host", host, "--port", port, "--no-dashboard"]
    worker = ["distributed.cli.dask_worker", f"tcp://{address}", "--nworkers", "1", "--nthreads", "2"]
    worker += ["--no-dashboard", "--local-directory", str(folder)]
    for command in (scheduler, worker):
        with (folder / f"{command[0]}.log").open("wb") as log:
            processes.append(
                subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=log, stderr=log, cwd=folder)
            )


@pytest.fixture
def dask(cluster: str) -> Iterator[DaskEngine]:
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        try:
            made = create_engine(cluster)
            break
        except PitchpipeError:
            assert time.monotonic() < deadline
    assert isinstance(made, DaskEngine)
    yield made
    made.shutdown(wait=False, cancel_futures=True)


def request(seed: int) -> ProposeRequest:
    return ProposeRequest(
        workload=programs.dense(),
        target=programs.TARGET,
        measured=(),
        seen=frozenset(),
        model=None,
        n=6,
        seed=seed,
    )


def test_a_cluster_gives_the_answers_of_the_local_engine(dask: DaskEngine) -> None:
    local = LocalEngine(1)
    data = step("strip_onnx")(models.tiny_network().SerializeToString()).data
    answers = []
    for executor in (local, dask):
        proposals = [executor.submit(propose, request(seed)) for seed in (1, 2)]
        ingested = executor.submit(check_model, data, "onnx").result(PATIENCE_SECS)
        tasks = executor.submit(split_ingested, ingested, "onnx", [programs.TARGET]).result(PATIENCE_SECS)
        answers.append(([future.result(PATIENCE_SECS) for future in proposals], ingested, tasks))
    local.shutdown()
    assert answers[0] == answers[1]
    assert [len(proposals) for proposals in answers[0][0]] == [6, 6]


def test_an_error_of_a_step_arrives_as_what_it_is(dask: DaskEngine) -> None:
    with pytest.raises(InvalidModel):
        dask.submit(check_model, b"\x08\x07garbage", "onnx").result(PATIENCE_SECS)


def test_a_worker_that_dies_costs_its_step_and_the_next_one_works(dask: DaskEngine) -> None:
    with pytest.raises(Exception, match="died"):
        dask.submit(os._exit, 1).result(PATIENCE_SECS)
    assert dask.submit(pow, 2, 3).result(PATIENCE_SECS) == 8


def test_a_job_is_tuned_by_a_coordinator_whose_steps_run_on_the_cluster(
    cluster: str, dask: DaskEngine, this_target: Target, tmp_path: Path
) -> None:
    port_file = tmp_path / "port"
    environment = {
        **os.environ,
        "PITCHPIPE_DATABASE_URL": f"sqlite:///{tmp_path / 'p.db'}",
        "PITCHPIPE_BLOB_URL": (tmp_path / "blobs").as_uri(),
        "PITCHPIPE_BOOTSTRAP_TOKEN": TOKEN,
        "PITCHPIPE_TOKEN": TOKEN,
        "PITCHPIPE_QUIET_LOCK": str(tmp_path / "lock"),
        "PITCHPIPE_ENGINE": cluster,
    }
    own: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        with (tmp_path / f"{arguments[0]}.log").open("wb") as log:
            command = [sys.executable, "-m", "pitchpipe.cli.main", *arguments]
            own.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def logs() -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in tmp_path.glob("*.log"))

    try:
        start("server", "--with-coordinator", "--host", "127.0.0.1", "--port", "0", "--port-file", str(port_file))
        deadline = time.monotonic() + PATIENCE_SECS
        while not port_file.exists():
            assert time.monotonic() < deadline, logs()
            assert own[0].poll() is None, logs()
            time.sleep(0.05)
        url = f"http://127.0.0.1:{int(port_file.read_text())}"
        start("worker", "--url", url, "--name", "w", "--target", this_target.key)
        with Client(url, TOKEN) as client:
            while not client.workers():
                assert time.monotonic() < deadline, logs()
                time.sleep(0.1)
            data = step("strip_onnx")(models.tiny_network().SerializeToString()).data
            model = client.upload_model(data, name="small", format=ModelFormat.ONNX)
            job = client.submit(JobRequest(model=model.id, targets=(this_target,), budget=Budget(trials=4)))
            view = client.wait(job.id, timeout_secs=PATIENCE_SECS)
        assert view.state is JobState.DONE, f"{view.error} {logs()}"
        assert view.progress.trials == 4
    finally:
        for process in reversed(own):
            process.terminate()
        codes = [process.wait(PATIENCE_SECS) for process in own]
    assert codes == [0, 0], logs()
    assert dask.submit(pow, 2, 3).result(PATIENCE_SECS) == 8  # the cluster outlives whoever used it


@pytest.mark.long
def test_a_scheduler_that_was_away_is_found_again(
    cluster: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CONNECT_SECS", 1)
    made = create_engine(cluster)
    lost = made.submit(time.sleep, 600)
    for process in reversed(processes):
        process.terminate()
        process.wait(PATIENCE_SECS)
    with pytest.raises((CancelledError, KilledWorker)):  # a slow scheduler learns of its worker's end before its own
        lost.result(PATIENCE_SECS)
    with pytest.raises(Unreachable):
        submit_once_closed(made)
    start_cluster(cluster.removeprefix("dask://"), processes, tmp_path)
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        try:
            found = made.submit(pow, 2, 3)
            break
        except Unreachable:
            assert time.monotonic() < deadline
    assert found.result(PATIENCE_SECS) == 8
    made.shutdown()


def submit_once_closed(made: Executor) -> None:
    """Until the client has given up waiting for its scheduler, it takes steps; then it says that nobody is there."""
    deadline = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < deadline:
        made.submit(pow, 2, 3)
        time.sleep(0.2)
