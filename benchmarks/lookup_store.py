"""A PostgreSQL database full of served schedules, as a service would have stored them.

Every workload is served for each of TARGETS: a look-up finds what it wants among the others. Behind each best stands its
record, behind both the target, device and toolchain rows; traces are real proposals of the tuner's, 4 to 11 KB each.
"""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from http_load import workload

from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.measure import MEASURE_VERSION, CheckVerdict, Timed
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import TaskKind
from service.db import Database
from service.store import tokens
from service.store.values import put_device, put_target, put_toolchain

ROOT = Path(__file__).resolve().parents[1]
ASKING = Target(kind="llvm", mcpu="znver5", num_cores=2)
TARGETS = (
    ASKING,
    Target(kind="llvm", mcpu="znver4", num_cores=2),
    Target(kind="llvm", mcpu="x86-64-v3", num_cores=64),
    Target(kind="cuda", arch="sm_90"),
)
DEVICE = DeviceFingerprint(kind="cpu", model="AMD EPYC 9755", cores=2, memory_bytes=1 << 34)
TOOLCHAIN = Toolchain(tvm="0.27.0", tvm_ffi="0.1.14", codegen="LLVM 22, math 1")
PART = 100_000
"""Bests stored in one transaction; a fill that was interrupted goes on behind the last."""
TRACES = 64
"""Different traces; rows share their text and not their storage."""


@cache
def traces() -> list[str]:
    """Proposals of the tuner for the convolutions of ResNet-18."""
    from pitchpipe.model.strip import strip_onnx
    from tuner.ingest import ingest_bytes
    from tuner.search.evolution import propose
    from tuner.search.requests import ProposeRequest
    from tuner.tasks import split_ingested

    spec = importlib.util.spec_from_file_location("make_resnet18", ROOT / "examples" / "make_resnet18.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    data = strip_onnx(example.resnet18().SerializeToString()).data
    tasks = split_ingested(ingest_bytes(data, ModelFormat.ONNX), ModelFormat.ONNX, [ASKING])
    tuned = [task for task in tasks if task.kind is TaskKind.TUNED][:8]
    found: list[str] = []
    for task in tuned:
        request = ProposeRequest(
            workload=task.workload, target=ASKING, measured=(), seen=frozenset(), model=None, n=TRACES // 8, seed=0
        )
        found += [proposal.candidate.trace for proposal in propose(request)]
    return found


def fill(url: str, bests: int, part: int = PART) -> bool:
    """Migrates the database and stores up to `part` more bests in the project `default`; whether it has all now."""
    database = Database(url)
    database.migrate()
    at = datetime.now(UTC).timestamp()
    with database.transaction() as session:
        project = tokens.bootstrap(session, "default")
        targets = [put_target(session, target) for target in TARGETS]
        device, toolchain = put_device(session, DEVICE), put_toolchain(session, TOOLCHAIN)
    database.close()
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=2)
    result = Timed(candidate="0" * 64, run_secs=(1e-3,) * 9, check=check, build_secs=0.2)
    values: dict[str, Any] = {
        "project": project,
        "device": device,
        "toolchain": toolchain,
        "device_class": DEVICE.device_class,
        "label": TOOLCHAIN.key,
        "result": result.model_dump_json(),
        "version": MEASURE_VERSION,
        "at": at,
        "traces": TRACES,
    }
    with psycopg.connect(url) as connection:
        # The rows are consistent by construction; a trigger per row and key would take most of the time.
        connection.execute("SET session_replication_role = replica")
        connection.execute("CREATE TABLE IF NOT EXISTS made (n integer PRIMARY KEY, trace text)")
        if connection.execute("SELECT NOT EXISTS (SELECT FROM made)").fetchone() == (True,):
            with connection.cursor().copy("COPY made FROM STDIN") as copy:
                for number, trace in enumerate(traces()):
                    copy.write_row((number, trace))
        (stored,) = connection.execute("SELECT count(*) FROM best").fetchone() or (0,)
        connection.execute("CREATE TEMPORARY TABLE stored (n integer, workload text, target text)")
        with connection.cursor().copy("COPY stored FROM STDIN") as copy:
            for number in range(stored, min(bests, stored + part)):
                copy.write_row((number, workload(number // len(targets)), targets[number % len(targets)]))
        for statement in _STATEMENTS:
            connection.execute(statement, values)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return bool(stored + part >= bests)


_STATEMENTS = (
    """
    INSERT INTO workloads (project, digest, ir, schema_version, created_at)
    SELECT DISTINCT %(project)s, workload, '{}', 1, %(at)s FROM stored
    ON CONFLICT DO NOTHING
    """,
    """
    INSERT INTO records (project, id, workload, target_key, target_kind, candidate, trace, secs, result, device_key,
                         toolchain_key, measure_version, worker, created_at, schema_version)
    SELECT %(project)s, 'rec_' || lpad(stored.n::text, 26, '0'), workload, target, 'llvm',
           md5(stored.n::text) || md5('candidate' || stored.n), trace, 1e-3, %(result)s, %(device)s, %(toolchain)s,
           %(version)s, 'wrk_00000000000000000000000000', %(at)s, 1
    FROM stored JOIN made ON made.n = stored.n %% %(traces)s
    """,
    """
    INSERT INTO best (project, target_key, workload, measure_version, device_class, record, trace, secs, secs_low,
                      secs_high, baseline_secs, toolchain, confirmed_at, worker)
    SELECT %(project)s, target, workload, %(version)s, %(device_class)s, 'rec_' || lpad(stored.n::text, 26, '0'), trace,
           1e-3, 0.99e-3, 1.01e-3, 2e-3, %(label)s, %(at)s, 'wrk_00000000000000000000000000'
    FROM stored JOIN made ON made.n = stored.n %% %(traces)s
    """,
)
