"""Two projects on one service: a model whose split passes its limit fails its own job, and the other's is tuned beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pitchpipe.client import Client
from pitchpipe.errors import StepTimeout, from_problem
from pitchpipe.processes.plugins import step
from pitchpipe.wire.job import Budget, JobRequest, JobState, JobView, ModelFormat, Scope
from pitchpipe.wire.lease import WorkerRegistration
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from tests.compiler import models
from tests.patience import PATIENCE_SECS
from tuner.measure import quiet

SPLIT_SECS = 10
NODES = 8000
"""Of a model that is read in a second, and whose split would take minutes."""


def endless_model() -> bytes:
    names = ["x", *(f"t{n}" for n in range(NODES))]
    nodes = [
        helper.make_node("Softmax" if n % 2 else "Relu", [last], [name])
        for n, (last, name) in enumerate(pairwise(names))
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "endless", tensors[:1], tensors[1:])
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return made.SerializeToString()


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.environment = {
            **os.environ,
            "PITCHPIPE_DATABASE_URL": f"sqlite:///{folder / 'p.db'}",
            "PITCHPIPE_BLOB_URL": (folder / "blobs").as_uri(),
            "PITCHPIPE_QUIET_LOCK": str(folder / "lock"),
            "PITCHPIPE_SPLIT_SECS": str(SPLIT_SECS),
        }
        port_file = folder / "port"
        self.start("server", "--with-coordinator", "--host", "127.0.0.1", "--port", "0", "--port-file", str(port_file))
        self.until(port_file.exists, "the server listens")
        self.url = f"http://127.0.0.1:{int(port_file.read_text())}"

    def start(self, *arguments: str, **environment: str) -> None:
        with (self.folder / f"{arguments[0]}.log").open("wb") as log:
            command = [sys.executable, "-m", "pitchpipe.cli.main", *arguments]
            child = subprocess.Popen(command, env=self.environment | environment, stdout=log, stderr=log)
        self.processes.append(child)

    def operator(self) -> str:
        """An operator's token, made as on the machine of the database."""
        command = [sys.executable, "-m", "pitchpipe.cli.main", "tokens", "create", "--scope", "operator"]
        made = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        return made.stdout.strip()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    for process in reversed(made.processes):
        process.terminate()
    for process in made.processes:
        process.wait(PATIENCE_SECS)


def worker(target: Target) -> WorkerRegistration:
    device = DeviceFingerprint(kind="cpu", model="m", cores=2, memory_bytes=1)
    toolchain = Toolchain(tvm="0.27", tvm_ffi="0.1.14", codegen="llvm 19")
    return WorkerRegistration(name="w", device=device, target=target, toolchain=toolchain)


def submit(client: Client, data: bytes, target: Target) -> JobView:
    model = client.upload_model(step("strip_onnx")(data).data, name="m", format=ModelFormat.ONNX)
    return client.submit(JobRequest(model=model.id, targets=(target,), budget=Budget(trials=4)))


@pytest.mark.long
def test_a_split_that_passes_its_limit_fails_its_job_and_holds_up_nobody(
    service: Service, this_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(service.url, service.operator()) as operator:
        tokens = {name: operator.create_token(name, Scope.ADMIN).token for name in ("hog", "other")}
        service.start("worker", "--url", service.url, "--target", this_target.key, PITCHPIPE_TOKEN=tokens["other"])
        with Client(service.url, tokens["hog"]) as hog, Client(service.url, tokens["other"]) as other:
            hog.register_worker(worker(this_target))  # A job needs a device; this one would never be asked.
            hanging = submit(hog, endless_model(), this_target)
            service.until(lambda: hog.job(hanging.id).state is not JobState.QUEUED, "the split begins")
            service.until(lambda: bool(other.workers()), "the worker registers")
            tuned = submit(other, models.tiny_network().SerializeToString(), this_target)
            tuned = other.wait(tuned.id, timeout_secs=PATIENCE_SECS)
            hanging = hog.wait(hanging.id, timeout_secs=PATIENCE_SECS)
    assert tuned.state is JobState.DONE, f"{tuned.error} {service.logs()}"
    assert tuned.progress.trials == 4
    assert (hanging.state, hanging.error_code) == (JobState.FAILED, "step-timeout"), service.logs()
    error = from_problem(500, hanging.error_code or "", hanging.error or "")
    assert isinstance(error, StepTimeout)
    assert f"split_ingested took longer than {SPLIT_SECS} s" in error.detail
    monkeypatch.setenv(quiet.ENVIRONMENT, service.environment["PITCHPIPE_QUIET_LOCK"])
    deadline = time.monotonic() + PATIENCE_SECS
    with quiet.timing(lambda: time.monotonic() > deadline):
        pass
