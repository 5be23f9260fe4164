"""A server with a coordinator gets what it should not: each piece is refused with its cause, and nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import onnx
import pytest
from onnx import TensorProto, helper

from pitchpipe.client import Client
from pitchpipe.errors import NotFound, StaleLease
from pitchpipe.wire.job import Budget, JobRequest, JobView, ModelFormat, ModelView
from pitchpipe.wire.lease import LeaseGrant, LeaseRequest, Purpose, Report, WorkerRegistration
from pitchpipe.wire.measure import BASELINE_TRACE, CheckVerdict, Timed
from tests.compiler import programs
from tests.patience import PATIENCE_SECS
from tests.scene import DEVICE
from tuner.ingest import IngestedModel, TensorSpec, container
from tuner.ingest.metaschedule_files import RECORDS, WORKLOADS
from tuner.schedule.trace import encode_trace
from tuner.tuning.records import export_metaschedule
from tuner.tvm_compat import Schedule, load_ir, relax, save_ir, toolchain

TOKEN = "a-token-that-the-test-chose-by-itself"
MAX_MODEL_BYTES = 1 << 20


# --- what is sent


def tensor(name: str, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes: list[Any], inputs: list[Any], weights: list[Any] | None = None) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, [tensor("y", 8, 64)], initializer=weights or [])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()


def product(rows: Any = 8, columns: int = 64, weights: list[Any] | None = None) -> bytes:
    inputs = [tensor("x", rows, columns), *([] if weights else [tensor("w", columns, 64)])]
    return model([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], inputs, weights)


def cyclic() -> bytes:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["a"], ["y"], name="third"),
    ]
    return model(nodes, [tensor("x", 8, 64)])


def external_data() -> bytes:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(64 * 64 * 4), raw=True)
    onnx.external_data_helper.set_external_data(weight, location="../../etc/passwd")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    return product(weights=[weight])


def unsupported_operator() -> bytes:
    return model([helper.make_node("Teleport", ["x"], ["y"], name="node_7", domain="acme")], [tensor("x", 8, 64)])


def nested_graphs(depth: int) -> bytes:
    """A node whose attribute is a graph with a node whose attribute is a graph ..., as bytes: no writer makes these."""

    def field(number: int, content: bytes) -> bytes:
        length, digits = len(content), b""
        while length > 127:
            digits, length = digits + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + digits + bytes([length]) + content

    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph + field(12, field(1, b"y")))


def foreign_function() -> bytes:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        builder.emit_func_output(builder.emit(relax.call_dps_packed("runtime.SystemLib", (x,), out_ty=x.ty)))
    spec = TensorSpec(name="x", shape=(8, 64), dtype="float32")
    return container(IngestedModel(ir=save_ir(builder.get()), inputs=(spec,), params=()))


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """MetaSchedule's pair for one product with one schedule, as `pitchpipe schedules import` sends it."""
    folder = tmp_path_factory.mktemp("metaschedule")
    schedule = Schedule(load_ir(programs.dense().ir))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("matmul"))[0])
    export_metaschedule([(programs.dense(), encode_trace(schedule.trace), 1e-3)], programs.TARGET, folder)
    return {"workload": (folder / WORKLOADS).read_text(), "tuning_record": (folder / RECORDS).read_text()}


def with_foreign_code(imports: dict[str, str]) -> bytes:
    record = json.loads(imports["tuning_record"])
    record[1][0][0].append(["Annotate", ["b0", '"evil"'], ["pragma_import_llvm"], []])
    return json.dumps(imports | {"tuning_record": json.dumps(record)}).encode()


@dataclass(frozen=True)
class Bad:
    format: str
    data: Callable[[], bytes]
    code: str
    named: tuple[str, ...]
    """What the answer must name."""
    status: int = 400


BAD = {
    "truncated": Bad("onnx", lambda: product()[:-30], "invalid-model", ("truncated",)),
    "random bytes": Bad("onnx", lambda: bytes(n * 89 % 251 for n in range(4096)), "invalid-model", ("not an ONNX",)),
    "oversized": Bad("onnx", lambda: bytes(MAX_MODEL_BYTES + 1), "too-large", (str(MAX_MODEL_BYTES),), 413),
    "cyclic": Bad("onnx", cyclic, "invalid-model", ("cyclic", "first")),
    "external data": Bad("onnx", external_data, "invalid-model", ("external data", "'w'")),
    "unsupported operator": Bad("onnx", unsupported_operator, "unsupported-operator", ("acme::Teleport", "node_7")),
    "dynamic": Bad("onnx", lambda: product(rows="batch"), "unsupported-shape", ("'x'", "'batch'")),
    "huge": Bad("onnx", lambda: product(columns=1 << 40), "unsupported-shape", ("'x'", str(1 << 40))),
    "deeply nested": Bad("onnx", lambda: nested_graphs(3000), "invalid-model", ("not an ONNX",)),
    "deeply nested JSON": Bad("relax", lambda: b"[" * 100_000, "invalid-model", ("JSON",)),
    "foreign function": Bad("relax", foreign_function, "unsupported-operator", ("relax.call_dps_packed",)),
}


# --- a server, and everything bad sent to it


@dataclass(frozen=True, kw_only=True)
class Served:
    http: httpx2.Client
    client: Client
    database: str
    answers: dict[str, httpx2.Response]
    """What each bad upload got."""

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.http.post(path, content=content, headers={"content-type": "application/json"}, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, imports: dict[str, str]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    environment = {
        **os.environ,
        "PITCHPIPE_DATABASE_URL": f"sqlite:///{folder / 'p.db'}",
        "PITCHPIPE_BLOB_URL": (folder / "blobs").as_uri(),
        "PITCHPIPE_BOOTSTRAP_TOKEN": TOKEN,
        "PITCHPIPE_QUIET_LOCK": str(folder / "quiet.lock"),
        "PITCHPIPE_MAX_MODEL_BYTES": str(MAX_MODEL_BYTES),
        "PITCHPIPE_MODEL_CHECK_SECS": str(PATIENCE_SECS),
        "PITCHPIPE_LEASE_TTL_SECS": str(PATIENCE_SECS),
        "PITCHPIPE_WORKER_TIMEOUT_SECS": str(10 * PATIENCE_SECS),
    }
    options = ["--with-coordinator", "--port", "0", "--port-file", str(folder / "port")]
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "pitchpipe.cli.main", "server", *options]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while not (folder / "port").exists():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        url = f"http://127.0.0.1:{(folder / 'port').read_text().strip()}"
        headers = {"authorization": f"Bearer {TOKEN}"}
        with (
            httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE_SECS) as http,
            Client(url, TOKEN, retry_secs=0, timeout_secs=PATIENCE_SECS) as client,
            # As many at once as the server reads at once.
            ThreadPoolExecutor(2) as pool,
        ):
            bad = {name: (of.format, of.data()) for name, of in BAD.items()}
            bad["foreign code in a trace"] = ("metaschedule", with_foreign_code(imports))
            sent = {name: pool.submit(upload, http, name, *what) for name, what in bad.items()}
            answers = {name: found.result() for name, found in sent.items()}
            yield Served(http=http, client=client, database=environment["PITCHPIPE_DATABASE_URL"], answers=answers)
        process.terminate()
        assert process.wait(PATIENCE_SECS) == 0, (folder / "log").read_text()
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def upload(http: httpx2.Client, name: str, format: str, data: bytes) -> httpx2.Response:
    return http.post("/v1/models", params={"name": name, "format": format}, content=data)


def check_problem(answer: httpx2.Response, status: int, code: str, *named: str) -> None:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), answer.text
    assert problem["type"] == f"urn:pitchpipe:problem:{code}"
    for word in named:
        assert word in problem["detail"]
    assert "\n" not in problem["detail"]


# --- models


@pytest.mark.parametrize("name", BAD)
def test_a_model_that_cannot_be_tuned_is_refused_with_its_cause(server: Served, name: str) -> None:
    check_problem(server.answers[name], BAD[name].status, BAD[name].code, *BAD[name].named)


def test_an_import_whose_traces_carry_code_is_refused_with_its_line(server: Served) -> None:
    answer = server.answers["foreign code in a trace"]
    check_problem(answer, 400, "invalid-trace", "pragma_import_llvm", "database_tuning_record.json, line 1")


def test_the_same_bytes_get_the_same_answer_again(server: Served) -> None:
    again = upload(server.http, "another name", "onnx", BAD["cyclic"].data())
    first = server.answers["cyclic"].json()
    assert {**again.json(), "instance": None} == {**first, "instance": None}


def test_nothing_of_what_was_refused_is_listed(server: Served) -> None:
    listed = [found.name for found in server.client.models()]
    assert set(listed) <= {"good", "imports"}
    assert list(server.client.jobs()) == [] or {job.model_name for job in server.client.jobs()} == {"imports"}


@pytest.fixture(scope="module")
def good(server: Served) -> ModelView:
    return server.client.upload_model(product(), "good", ModelFormat.ONNX)


def test_a_good_model_is_still_accepted(server: Served, good: ModelView) -> None:
    assert good.checked
    assert server.client.model(good.id) == good
    assert good.id in [found.id for found in server.client.models()]
    assert server.client.upload_model(product(), "again", ModelFormat.ONNX) == good


# --- requests


def test_a_wrong_token_is_told_so(server: Served) -> None:
    for headers in ({"authorization": "Bearer wrong"}, {"authorization": ""}):
        check_problem(server.http.get("/v1/models", headers=headers), 401, "unauthorized")


def test_another_projects_model_and_job_are_not_found(server: Served, good: ModelView, job: JobView) -> None:
    command = [sys.executable, "-m", "pitchpipe.cli.main", "tokens", "create", "--project", "other"]
    made = subprocess.run([*command, "--database", server.database], stdout=subprocess.PIPE, text=True, check=True)
    other = made.stdout.strip()
    with pytest.raises(NotFound, match="no project"):
        server.client.create_token("other", "user")
    headers = {"authorization": f"Bearer {other}", "content-type": "application/json"}
    request = JobRequest(model=good.id, targets=(programs.TARGET,), budget=Budget(trials=1))
    for method, path, body in (
        ("GET", f"/v1/models/{good.id}", None),
        ("GET", f"/v1/jobs/{job.id}", None),
        ("POST", f"/v1/jobs/{job.id}/cancel", None),
        ("POST", "/v1/jobs", request.model_dump_json(by_alias=True)),
    ):
        check_problem(server.http.request(method, path, content=body, headers=headers), 404, "not-found")


@pytest.mark.parametrize(
    ("target", "status", "code", "named"),
    [
        ({"kind": "abacus"}, 422, "invalid-input", "targets.0.kind"),
        ({"kind": "llvm", "mcpu": "a b"}, 422, "invalid-input", "mcpu"),
        ({"kind": "llvm", "mcpu": "znver3"}, 400, "invalid-target", "num-cores"),
        ({"kind": "llvm", "mcpu": "z80", "num-cores": 1}, 409, "no-device", "z80"),
        ({"kind": "cuda", "arch": "sm_90"}, 409, "no-device", "sm_90"),
    ],
)
def test_a_target_that_cannot_be_served_is_named(
    server: Served, good: ModelView, target: dict[str, Any], status: int, code: str, named: str
) -> None:
    body = {"model": good.id, "targets": [target], "budget": {"trials": 1}}
    check_problem(server.post("/v1/jobs", body), status, code, named)


# --- an import, which is measured and never believed; leases and reports


@pytest.fixture(scope="module")
def worker(server: Served) -> str:
    return server.client.register_worker(
        WorkerRegistration(name="w1", device=DEVICE, target=programs.TARGET, toolchain=toolchain())
    ).id


@pytest.fixture(scope="module")
def job(server: Served, worker: str, imports: dict[str, str]) -> JobView:
    found = server.client.upload_model(json.dumps(imports).encode(), "imports", ModelFormat.METASCHEDULE)
    request = JobRequest(model=found.id, targets=(programs.TARGET,), budget=Budget(trials=0))
    return server.client.submit(request)


@pytest.fixture(scope="module")
def stale(server: Served, job: JobView, worker: str) -> LeaseGrant:
    """A lease that was given back."""
    grant = acquire(server, worker)
    server.client.report(grant.lease, Report(fence=grant.fence, results=(), final=True))
    return grant


@pytest.fixture(scope="module")
def grant(server: Served, stale: LeaseGrant, worker: str) -> LeaseGrant:
    """A later lease, on what the first one gave back."""
    return acquire(server, worker)


def acquire(server: Served, worker: str) -> LeaseGrant:
    deadline = time.monotonic() + PATIENCE_SECS
    while (found := server.client.acquire(LeaseRequest(worker=worker, wait_secs=10))) is None:
        assert time.monotonic() < deadline, "no work came"
    return found


def timed(digest: str, secs: float) -> Timed:
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-5, input_sets=1)
    return Timed(candidate=digest, run_secs=(secs,) * 3, check=check, build_secs=0.1)


def test_an_imports_traces_meet_the_baseline_in_a_confirming_run(grant: LeaseGrant) -> None:
    assert grant.purpose is Purpose.CONFIRM
    assert grant.workload == programs.dense().digest
    assert [candidate.trace == BASELINE_TRACE for candidate in grant.candidates] == [True, False]
    assert "Parallel" in grant.candidates[1].trace


def test_a_stale_lease_changes_nothing(server: Served, stale: LeaseGrant, grant: LeaseGrant) -> None:
    result = timed(grant.candidates[0].digest, 1e-3)
    with pytest.raises(StaleLease):
        server.client.heartbeat(stale.lease, stale.fence)
    for lease, fence in ((stale.lease, stale.fence), (grant.lease, grant.fence + 1)):
        body = Report(fence=fence, results=(result,), final=True).model_dump_json()
        check_problem(server.post(f"/v1/leases/{lease}/report", body), 409, "stale-lease")
    assert list(server.client.records()) == []


@pytest.mark.parametrize("time_", ["0", "-1", "NaN", "1e300"])
def test_a_time_that_is_none_is_refused_by_its_field(server: Served, grant: LeaseGrant, time_: str) -> None:
    good = Report(fence=grant.fence, results=(timed(grant.candidates[0].digest, 0.125),), final=True).model_dump_json()
    answer = server.post(f"/v1/leases/{grant.lease}/report", good.replace("0.125", time_))
    check_problem(answer, 422, "invalid-input", "run_secs")
    assert list(server.client.records()) == []


def test_a_job_that_was_fed_all_this_still_ends_well(server: Served, grant: LeaseGrant, job: JobView) -> None:
    secs = {candidate.digest: 2e-3 if n == 0 else 1e-3 for n, candidate in enumerate(grant.candidates)}
    results = tuple(timed(digest, found) for digest, found in secs.items())
    assert server.client.report(grant.lease, Report(fence=grant.fence, results=results, final=True)).accepted == 2
    view = server.client.wait(job.id, timeout_secs=PATIENCE_SECS, poll_secs=0.1)
    assert (view.state, view.error) == ("done", None)
    (answer,) = server.client.job_schedules(job.id).answers
    assert answer.best is not None
    assert (answer.best.trace, answer.best.secs, answer.best.baseline_secs) == (grant.candidates[1].trace, 1e-3, 2e-3)


# --- the command line


@pytest.mark.parametrize(("name", "named"), [("truncated", "truncated"), ("missing", "No such file")])
def test_the_command_names_the_cause_on_one_line_and_exits_2(tmp_path: Path, name: str, named: str) -> None:
    path = tmp_path / "m.onnx"
    if name != "missing":
        path.write_bytes(BAD[name].data())
    command = [sys.executable, "-m", "pitchpipe.cli.main", "tune", str(path), "--target", programs.TARGET.key]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert named in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
