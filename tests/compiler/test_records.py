"""Traces against real workloads, the in-memory store, and the exchange with stock MetaSchedule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.errors import InvalidInput, InvalidTrace
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, CheckVerdict, Timed
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.target import DeviceFingerprint, Target
from tests.compiler import programs
from tuner.ingest.metaschedule_files import RECORDS, WORKLOADS, ImportedRecord, parse
from tuner.schedule.rewrites import REWRITE
from tuner.search.evolution import propose
from tuner.search.requests import ProposeRequest
from tuner.tuning.records import (
    InMemoryRecordStore,
    RecordStore,
    apply_trace,
    decode_trace,
    encode_trace,
    export_metaschedule,
)
from tuner.tvm_compat import PrimFunc, load_ir, ms, relax, save_ir, to_tvm_target, toolchain, tvm_ffi


def request(n: int = 3, seed: int = 0, **changes: Any) -> ProposeRequest:
    base: dict[str, Any] = {"workload": programs.conv(), "target": programs.TARGET, "measured": (), "seen": frozenset()}
    return ProposeRequest(**(base | {"model": None, "n": n, "seed": seed} | changes))


@pytest.fixture(scope="module")
def traces() -> list[str]:
    """Those first that stock TVM can apply: without a rewrite."""
    traces = [proposal.candidate.trace for proposal in propose(request(n=8))]
    return sorted(traces, key=lambda trace: "pitchpipe.rewrite" in trace)


APPLY = """
import sys, json
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import PrimFunc, load_ir, save_ir, tvm_ffi
from pitchpipe.wire.ids import sha256
ir, traces = json.load(sys.stdin)
for trace in traces:
    mod = apply_trace(load_ir(ir), trace).mod
    print(tvm_ffi.structural_hash(mod), sha256(save_ir(mod).encode()), flush=True)
"""


def test_a_trace_makes_the_same_module_in_another_process(traces: list[str]) -> None:
    workload = programs.conv()
    here = [apply_trace(load_ir(workload.ir), trace).mod for trace in traces]
    child = subprocess.run(
        [sys.executable, "-c", APPLY],
        input=json.dumps([workload.ir, traces]),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    expected = [f"{tvm_ffi.structural_hash(mod)} {sha256(save_ir(mod).encode())}" for mod in here]
    assert child.stdout.split("\n")[:-1] == expected


def test_what_the_search_emits_passes_the_allow_list_unchanged(traces: list[str]) -> None:
    for trace in traces:
        assert decode_trace(trace) == trace
        assert encode_trace(apply_trace(load_ir(programs.conv().ir), trace).trace) == trace
        assert "layout_rewrite_preproc" in trace or REWRITE in trace


def test_a_trace_of_another_workload_does_not_apply(traces: list[str]) -> None:
    with pytest.raises(InvalidTrace, match="does not apply"):
        apply_trace(load_ir(programs.dense().ir), traces[0])


def through_json(trace: str) -> str:
    """What a trace is after TVM's JSON, which knows no booleans."""
    return trace.replace('true],["meta_schedule.layout', '1],["meta_schedule.layout')


def bare(function: Any) -> Any:
    """The function without its attributes: under which name it is linked is no part of a schedule."""
    return PrimFunc(function.params, function.body, function.ret_type)


def record(trace: str, target: Target = programs.TARGET, secs: float = 1e-3) -> TuningRecord:
    workload = programs.conv().digest
    candidate = Candidate.of(workload, trace)
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-5, input_sets=1)
    return TuningRecord(
        id=new_id("rec"),
        workload=workload,
        target=target,
        trace=trace,
        result=Timed(candidate=candidate.digest, run_secs=(secs,), check=check, build_secs=0.1),
        device=DeviceFingerprint(kind="cpu", model="test", cores=2, memory_bytes=1),
        toolchain=toolchain(),
        worker="wrk",
        created_at=datetime.now(UTC),
    )


def test_the_in_memory_store_keeps_its_contract(traces: list[str]) -> None:
    store: RecordStore = InMemoryRecordStore()
    digest, other = programs.conv().digest, Target.parse(programs.TARGET.attributes() | {"num-cores": 64})
    first, second = record(traces[0]), record(traces[1], secs=2e-3)
    store.add([first, second])
    store.add([first])
    assert store.for_task(digest, programs.TARGET) == [first, second]
    assert store.seen(digest, programs.TARGET) == {first.result.candidate, second.result.candidate}
    assert store.for_task(digest, other) == []
    assert store.seen(digest, other) == frozenset()
    assert store.best(digest, programs.TARGET) is None
    best = Best(
        record=first.id,
        trace=first.trace,
        secs=1e-3,
        secs_low=1e-3,
        secs_high=1e-3,
        baseline_secs=2e-3,
        device_class=first.device.device_class,
        toolchain=first.toolchain.key,
        confirmed_at=first.created_at,
    )
    store.set_best(digest, programs.TARGET, best)
    assert store.best(digest, programs.TARGET) == best
    assert store.best(digest, other) is None


def test_stock_tvm_applies_an_export(tmp_path: Path, traces: list[str]) -> None:
    shapes = ((1, 14, 14, 16), (16, 3, 3, 16), (1, 1, 1, 16))
    assert export_metaschedule([(programs.conv(), traces[0], 1e-3)], programs.TARGET, tmp_path) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [RECORDS, WORKLOADS]

    module = programs.relax_module(programs.conv_relu, *shapes)
    stock = ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert len(stock) == 1
    with to_tvm_target(programs.TARGET), stock:
        applied = relax.transform.MetaScheduleApplyDatabase()(module)
    (before,) = [f for v, f in module.functions.items() if v.name_hint != "main"]
    (after,) = [f for v, f in applied.functions.items() if v.name_hint != "main"]
    assert after.attrs["tirx.is_scheduled"]
    assert not tvm_ffi.structural_equal(bare(before), bare(after))
    ours = apply_trace(load_ir(programs.conv().ir), through_json(traces[0])).mod["main"]
    assert tvm_ffi.structural_equal(bare(after), bare(ours))


def read(folder: Path) -> list[ImportedRecord]:
    return parse((folder / WORKLOADS).read_text(), (folder / RECORDS).read_text())


def test_an_export_read_back_gives_the_same_programs(tmp_path: Path, traces: list[str]) -> None:
    entries = [(programs.conv(), traces[0], 1e-3), (programs.conv(), traces[1], 2e-3)]
    export_metaschedule(entries, programs.TARGET, tmp_path)
    found = read(tmp_path)
    assert [(r.workload.digest, r.target, r.run_secs) for r in found] == [
        (programs.conv().digest, programs.TARGET, (1e-3,)),
        (programs.conv().digest, programs.TARGET, (2e-3,)),
    ]
    for entry, imported in zip(entries, found, strict=True):
        ours = apply_trace(load_ir(entry[0].ir), through_json(entry[1])).mod
        theirs = apply_trace(load_ir(imported.workload.ir), imported.trace).mod
        assert tvm_ffi.structural_equal(bare(ours["main"]), bare(theirs["main"]))


def test_hearsay_is_dropped_and_nonsense_names_its_line(tmp_path: Path, traces: list[str]) -> None:
    export_metaschedule([(programs.conv(), traces[0], 1e-3)], programs.TARGET, tmp_path)
    workloads, records = (tmp_path / WORKLOADS).read_text(), (tmp_path / RECORDS).read_text()
    assert len(parse(workloads, records)) == 1
    assert len(parse(workloads, records + records[:700])) == 1, "a torn last line is dropped"
    index, (trace, _, target, arguments) = json.loads(records)
    for secs in ([1e10], [0], [-1.0], [float("nan")], [], None, ["1"], [True]):
        assert parse(workloads, json.dumps([index, [trace, secs, target, arguments]])) == []
    assert parse(workloads, json.dumps([index, [trace, [1.0], {"kind": "hexagon"}, arguments]]))[0].target is None
    hostile = json.loads(json.dumps(trace))
    hostile[0].append(["Annotate", ["b0", '"x"'], ["pragma_import_c"], []])
    with pytest.raises(InvalidTrace, match="pragma_import_c"):
        parse(workloads, json.dumps([index, [hostile, [1.0], target, arguments]]))
    for bad in ("{]\n{}", "[]\n", "[5, [[[],[]], [1.0], {}, []]]", "[-1, [[[],[]], [1.0], {}, []]]", "[0, 1]"):
        with pytest.raises(InvalidInput, match="line 1"):
            parse(workloads, bad)
    for bad in ('["1", "AAAA"]', '["1", "!"]', "[1]", '["1", 5]', '["1", ["x"]]'):
        with pytest.raises(InvalidInput, match="line 1"):
            parse(bad, "")


def test_the_baseline_can_be_exported(tmp_path: Path) -> None:
    export_metaschedule([(programs.dense(), BASELINE_TRACE, 1e-3)], programs.TARGET, tmp_path)
    assert read(tmp_path)[0].trace == BASELINE_TRACE
