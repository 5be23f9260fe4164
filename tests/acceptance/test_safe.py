"""Whatever is wrong with the service, the artifact or the cache: the fallback runs, says so once, and nothing is left.

Real servers that misbehave, real shared objects that crash and hang, real processes. No test looks at a clock: a service
that answers only after the program went on shows that nobody waited for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import background, identity, signing, usage
from pitchpipe.deploy.artifact import Manifest, linker
from pitchpipe.deploy.building import BuildSpec
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.deploy.packs import create_pack, open_pack
from pitchpipe.deploy.proof import RETRY_SECS, Proof, proof_of, prove
from pitchpipe.deploy.safe import FallbackWarning, SafeModel, load_safely
from pitchpipe.errors import ArtifactRefused
from pitchpipe.model.local import local_model
from pitchpipe.sdk import load
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature
from tests.compiler.models import model, node
from tests.patience import PATIENCE_SECS

PROCESSES = 50
DEADLINE_SECS = 1.0
SCALE = np.arange(64, dtype=np.float32)
MODEL = model([node("Mul", ["x", "s"], ["y"])], {"x": [64]}, ["y"], {"s": SCALE}).SerializeToString()
X = np.ones(64, np.float32)


def fallback(x: Any) -> Any:
    """Recognisably not the model's result."""
    return [-x]


@pytest.fixture(scope="module")
def default(this_target: Target) -> Schedules:
    """Schedules that leave every workload to the compiler: no service is needed."""
    return Schedules(target=this_target, response=LookupResponse(answers=()))


@pytest.fixture(scope="module")
def folder(default: Schedules, cache: Path) -> Path:
    """Where the artifact of MODEL with those schedules belongs in the cache."""
    return BuildSpec(model=local_model(MODEL), target=default.target, traces={}).folder(cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


_CROWD = """
import os, sys, time
from pathlib import Path
import numpy as np
import tvm  # once, before the forks: each would take a second
from pitchpipe.deploy.identity import machine_key
from pitchpipe.deploy.safe import load_safely
from pitchpipe.sdk import Schedules
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature

data, cache = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
schedules = Schedules(target=Target.parse(sys.argv[3]), response=LookupResponse(answers=()))
machine_key()  # likewise

def one():
    model = load_safely(data, fallback=lambda x: -x, schedules=schedules, cache=cache, deadline_secs=600)
    return int(model.compiled is None or not (model(np.ones(64, np.float32)) == np.arange(64)).all())

children = []
for _ in range(int(sys.argv[4])):
    child = os.fork()
    if child == 0:
        os._exit(one())
    children.append(child)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


@pytest.fixture(scope="module")
def links(folder: Path, cache: Path, this_target: Target) -> list[str]:
    """PROCESSES processes load a model at once that nobody has built; the libraries that were linked meanwhile."""
    log, compiler = cache / "linked", cache / "compiler"
    compiler.write_text(f'#!/bin/sh\necho linked >> {log}\nexec {linker()} "$@"\n')
    compiler.chmod(0o755)
    (cache / "model.onnx").write_bytes(MODEL)
    arguments = [str(cache / "model.onnx"), str(cache), this_target.key, str(PROCESSES)]
    environment = os.environ | {"CXX": str(compiler), "TVM_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", _CROWD, *arguments], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return log.read_text().split()


@pytest.fixture(scope="module")
def built(links: list[str], folder: Path, cache: Path, default: Schedules) -> Manifest:
    """The artifact is in the cache and was tried; the model's identity is known."""
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    workloads = (*manifest.tuned, *manifest.untuned)
    known = identity.Identity(
        workloads=workloads,
        weights=dict.fromkeys(workloads, 1),
        signatures=dict.fromkeys(
            workloads, Signature(operators="", anchor="S elements", extents=(64,), arguments=(), flops=64)
        ),
        toolchain="t",
    )
    identity.write_json(identity._identity_file(cache, local_model(MODEL), default.target), known)
    return manifest


def test_of_fifty_processes_one_builds_and_all_get_what_it_built(links: list[str], folder: Path) -> None:
    assert links == ["linked"]
    assert proof_of(folder) is not None
    assert not [path for path in folder.parent.iterdir() if path.is_dir() and path != folder]


_ELSEWHERE = """
import json, socket, sys
from pathlib import Path
import numpy as np

def no_network(*_):
    raise AssertionError("it asked the network")

socket.socket.connect = socket.getaddrinfo = no_network
import pitchpipe

pack = pitchpipe.open_pack(sys.argv[2], trusted=[sys.argv[3]])
model = pitchpipe.load(Path(sys.argv[1]).read_bytes(), pack)
print(json.dumps([model.manifest.library, model(np.ones(64, np.float32)).tolist()]))
"""


@pytest.fixture
def pack(built: Manifest, default: Schedules, cache: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a pack with the library, signed by `key.pem` beside it."""
    signing.create_keys(tmp_path / "key.pem")

    def made(**options: Any) -> Path:
        path = tmp_path / "model.pitchpack"
        create_pack(path, default, tmp_path / "key.pem", model=local_model(MODEL), cache=cache, **options)
        return path

    return made


def test_a_pack_runs_where_there_is_no_service_no_network_and_no_linker(
    pack: Callable[..., Path], built: Manifest, tmp_path: Path
) -> None:
    path = pack()
    (tmp_path / "model.onnx").write_bytes(MODEL)
    hidden = {"PITCHPIPE_URL", "PITCHPIPE_TOKEN", "CC", "CXX"}
    elsewhere = {name: value for name, value in os.environ.items() if name not in hidden} | {
        "HOME": str(tmp_path / "home"),
        "PITCHPIPE_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": str(tmp_path / "nothing"),
    }
    files = [str(tmp_path / "model.onnx"), str(path), str(tmp_path / "key.pem.pub")]
    ended = subprocess.run([sys.executable, "-c", _ELSEWHERE, *files], env=elsewhere, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [built.library, SCALE.tolist()]


def test_the_fallback_runs_when_a_pack_is_forged_or_has_expired(
    pack: Callable[..., Path], built: Manifest, tmp_path: Path
) -> None:
    signing.create_keys(tmp_path / "stranger.pem")
    for options, key, says in (({}, "stranger.pem.pub", "trusted keys"), ({"valid_days": 0}, "key.pem.pub", "expired")):
        path = pack(**options)
        give = partial(open_pack, path, trusted=[tmp_path / key], target=built.target)
        _, (warned,) = loaded(schedules=give, cache=tmp_path / "cache")
        assert says in warned
    assert not (tmp_path / "cache").exists(), "nothing of it was unpacked"


class Service:
    """An HTTP server that answers every request with `answer(handler)`, which may wait for `released`."""

    def __init__(self, answer: Callable[[Any, threading.Event], None]) -> None:
        self.released, self.asked = threading.Event(), 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.asked += 1
                self.body = self.rfile.read(int(self.headers["content-length"]))
                with contextlib.suppress(OSError):
                    answer(self, service.released)

            def log_message(self, *_: object) -> None:
                """Standard error is for warnings."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Service:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def says(body: bytes, *, status: int = 200, length: int | None = None, **headers: str) -> Callable[..., None]:
    def answer(handler: Any, _released: threading.Event) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(length or len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def silent(handler: Any, released: threading.Event) -> None:
    released.wait()


def drips(handler: Any, released: threading.Event) -> None:
    """A byte now and then, so that no single silence is long: first of a header, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not released.wait(0.05):
        handler.wfile.write(b"a")


def drips_body(handler: Any, released: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not released.wait(0.05):
        handler.wfile.write(b" ")


def endless(handler: Any, released: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not released.is_set():
        handler.wfile.write(b" " * (1 << 20))


STRANGER = {"workload": "0" * 64, "tier": "none", "reason": "none"}
WRONG = {
    "a 500": says(b"", status=500),
    "a 503 that asks for patience": says(b"", status=503, Retry_After="1"),
    "silence": silent,
    "a header that never ends": drips,
    "a body that never ends": drips_body,
    "more than anybody wants": endless,
    "a body that breaks off": says(b'{"answers": [', length=1000),
    "no JSON": says(b"<html>sign in</html>"),
    "JSON of something else": says(b'{"answers": 3}'),
    "answers for others": says(json.dumps({"answers": [STRANGER]}).encode()),
    "no answers": says(b'{"answers": []}'),
    "a packed body that is none": says(b"not gzip at all", Content_Encoding="gzip"),
    "a redirect": says(b"", status=302, Location="http://127.0.0.1:9/"),
}


def loaded(**options: Any) -> tuple[SafeModel, list[str]]:
    """A SafeModel of MODEL, and what was warned of while it was made and used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        safe = load_safely(MODEL, fallback=fallback, **options)
        for _ in range(2):
            np.testing.assert_array_equal(safe(X), X * SCALE if safe.compiled else -X)
    assert {warning.category for warning in caught} <= {FallbackWarning}
    assert all(warning.filename == __file__ for warning in caught)
    return safe, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_fallback_runs_when_the_service_gives(wrong: str, built: Manifest, cache: Path) -> None:
    with Service(WRONG[wrong]) as service:
        client = Client(service.url, retry_secs=DEADLINE_SECS)
        safe, warned = loaded(client=client, target=built.target, cache=cache, deadline_secs=DEADLINE_SECS)
        assert not service.released.is_set()
        client.close()
    assert service.asked
    assert safe.compiled is None
    assert safe.reason
    assert warned == [f"Pitchpipe runs the fallback: {safe.reason}"]


def test_the_fallback_runs_when_there_is_no_service(built: Manifest, cache: Path, monkeypatch: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PITCHPIPE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
    _, (warned,) = loaded(target=built.target, cache=cache, deadline_secs=DEADLINE_SECS)
    assert "cannot be reached" in warned
    monkeypatch.delenv("PITCHPIPE_URL")
    _, (warned,) = loaded(target=built.target, cache=cache, deadline_secs=DEADLINE_SECS)
    assert "PITCHPIPE_URL" in warned


def test_what_the_service_said_earlier_counts_when_it_is_away(built: Manifest, cache: Path) -> None:
    answers = [{"workload": each, "tier": "none", "reason": "none"} for each in (*built.tuned, *built.untuned)]
    with Service(says(json.dumps({"answers": answers}).encode(), ETag='"1"')) as service, Client(service.url) as client:
        safe, warned = loaded(client=client, target=built.target, cache=cache, deadline_secs=PATIENCE_SECS)
    assert (safe.reason, warned) == (None, [])
    with Client(service.url, retry_secs=0.0) as client:
        safe, (warning,) = loaded(client=client, target=built.target, cache=cache, deadline_secs=PATIENCE_SECS)
    assert safe.compiled is not None
    assert "earlier" in warning
    assert "cannot be reached" in warning


def test_what_the_service_has_no_schedule_for_is_reported(
    built: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = (*built.tuned, *built.untuned)
    answers = [{"workload": each, "tier": "none", "reason": "none"} for each in workloads]
    lookup, receipt = ({"answers": answers}, {"counted": len(workloads), "unknown": []})
    told: queue.SimpleQueue[dict[str, int]] = queue.SimpleQueue()

    def answer(handler: Any, released: threading.Event) -> None:
        reported = handler.path == "/v1/misses"
        says(json.dumps(receipt if reported else lookup).encode())(handler, released)
        if reported:
            told.put({miss["workload"]: miss["runs"] for miss in json.loads(handler.body)["misses"]})

    monkeypatch.setattr(usage, "_start", lambda: None)

    with Service(answer) as service, Client(service.url) as client:
        loaded(client=client, target=built.target, cache=cache, deadline_secs=PATIENCE_SECS)
        assert told.empty()
        safe, warned = loaded(
            client=client, target=built.target, cache=cache, deadline_secs=PATIENCE_SECS, report_misses=True
        )
        assert told.get(timeout=180) == dict.fromkeys(workloads, 1), "by the look-up"
        usage.report()
        assert told.get(timeout=180) == dict.fromkeys(workloads, 2), "by two calls"
    assert (safe.reason, warned) == (None, [])


def test_what_is_built_is_taken_and_takes_what_it_was_built_for(
    built: Manifest, default: Schedules, cache: Path
) -> None:
    safe, warned = loaded(schedules=lambda: default, cache=cache)
    assert (safe.reason, warned) == (None, [])
    other = np.ones(3, np.float32)
    np.testing.assert_array_equal(safe(other), -other)
    assert safe.compiled is not None


def test_a_damaged_artifact_is_built_again_beside_the_program(
    built: Manifest, folder: Path, default: Schedules, tmp_path: Path
) -> None:
    (tmp_path / "artifacts").mkdir()
    copy = tmp_path / "artifacts" / folder.name
    replace(folder, copy, damaged((folder / "model.so").read_bytes()), built.library)
    _, (warned,) = loaded(schedules=default, cache=tmp_path, deadline_secs=0.0)
    assert "is building" in warned
    (child,) = background._running
    child.stop()
    assert not psutil.pid_exists(child.pid)
    assert not background._running


def damaged(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def replace(folder: Path, copy: Path, library: bytes, digest: str | None = None) -> None:
    """A copy of the artifact with another library; the manifest names its digest unless it is to name another."""
    copy.mkdir()
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    sealed = manifest.model_copy(update={"library": digest or sha256(library)})
    (copy / "manifest.json").write_text(sealed.model_dump_json(by_alias=True))
    (copy / "model.so").write_bytes(library)


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], bytes]:
    """Compiles a shared object that runs a C statement when it is opened."""

    def made(statement: str) -> bytes:
        source, object_file = tmp_path / "bad.cc", tmp_path / "bad.so"
        source.write_text(f"#include <unistd.h>\n__attribute__((constructor)) static void opened() {{ {statement} }}\n")
        program = linker()
        assert program is not None
        subprocess.run([program, "-shared", "-fPIC", "-o", str(object_file), str(source)], check=True)
        return object_file.read_bytes()

    return made


def test_a_library_that_crashes_is_opened_once_and_by_a_child(
    built: Manifest, folder: Path, default: Schedules, tmp_path: Path, library: Callable[[str], bytes]
) -> None:
    (tmp_path / "artifacts").mkdir()
    copy = tmp_path / "artifacts" / folder.name
    replace(folder, copy, library("*(volatile int*)0 = 0;"))
    _, (warned,) = loaded(schedules=default, cache=tmp_path, deadline_secs=PATIENCE_SECS)
    assert "SIGSEGV" in warned
    assert not background._running
    verdict = proof_of(copy)
    assert verdict is not None
    assert verdict.final
    assert prove(copy, timeout_secs=0.0) == verdict
    with pytest.raises(ArtifactRefused, match="SIGSEGV"):
        load(MODEL, default, cache=tmp_path)


def test_a_library_that_hangs_holds_up_nobody_and_is_tried_again_later(
    built: Manifest, folder: Path, default: Schedules, tmp_path: Path, library: Callable[[str], bytes]
) -> None:
    (tmp_path / "artifacts").mkdir()
    copy = tmp_path / "artifacts" / folder.name
    replace(folder, copy, library("for (;;) pause();"))
    program = textwrap.dedent(
        """
        import sys, warnings
        from pathlib import Path
        import pitchpipe
        from pitchpipe.sdk import Schedules
        from pitchpipe.wire.record import LookupResponse

        schedules = Schedules(target=pitchpipe.Target.parse(sys.argv[2]), response=LookupResponse(answers=()))
        model = pitchpipe.load_safely(Path(sys.argv[1]).read_bytes(), fallback=lambda x: -x, schedules=schedules,
                                      deadline_secs=0.5)
        print(model(3))
        sys.exit(7)
        """
    )
    (tmp_path / "model.onnx").write_bytes(MODEL)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.onnx"), built.target.key],
        env=os.environ | {"PITCHPIPE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (7, "-3\n")
    assert ended.stderr.count("FallbackWarning") == 1
    assert "Traceback" not in ended.stderr
    for _ in range(200):
        if not (left := list(processes_with(str(tmp_path)))):
            break
        time.sleep(0.05)
    assert left == []
    verdict = prove(copy, timeout_secs=0.2)
    assert (verdict.ok, verdict.final) == (False, False)
    assert proof_of(copy) == verdict
    (file,) = copy.glob("proof-*.json")
    earlier = verdict.at - timedelta(seconds=RETRY_SECS)
    file.write_text(Proof.model_validate({**verdict.model_dump(), "at": earlier}).model_dump_json())
    assert proof_of(copy) is None


def processes_with(cache: str) -> Iterator[int]:
    """Ids of the processes that were given this cache."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PITCHPIPE_CACHE_DIR") == cache:
                yield process.pid
