"""MetaSchedule's pair of files as an upload: read in the child, judged, and turned into tasks with seeds."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pitchpipe.errors import InvalidModel, InvalidTrace, UnsupportedOperator, UnsupportedShape
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, TaskKind
from tests.compiler import programs
from tests.hostile import program
from tuner.execution.steps import check_model, split_ingested
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.imported import ImportedWorkload, pack_imported, parse_imported
from tuner.ingest.metaschedule_files import RECORDS, WORKLOADS
from tuner.ingest.metaschedule_reader import KEPT, read_metaschedule
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.tuning.records import export_metaschedule
from tuner.tvm_compat import PrimFunc, Schedule, load_ir, save_ir, tvm, tvm_ffi

Pair = dict[str, str]


def parallel(loop: int = 0, factor: int = 1) -> str:
    """A schedule of `programs.dense()`."""
    schedule = Schedule(load_ir(programs.dense().ir))
    loops = schedule.get_loops(schedule.get_sblock("matmul"))
    outer, _ = schedule.split(loops[loop], [None, factor])
    schedule.parallel(outer)
    return encode_trace(schedule.trace)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two schedules of one product, the slower one first, and the baseline of another."""
    folder = tmp_path_factory.mktemp("pair")
    dense, conv = programs.dense(), programs.conv()
    entries = [(dense, parallel(0), 2e-3), (dense, parallel(1), 1e-3), (conv, "[[],[]]", 5e-3)]
    export_metaschedule(entries, programs.TARGET, folder)
    return {"workload": (folder / WORKLOADS).read_text(), "tuning_record": (folder / RECORDS).read_text()}


def read(pair: Any) -> bytes:
    return read_metaschedule(json.dumps(pair).encode(), DEFAULT_LIMITS)


def tasks(pair: Pair, target: Target = programs.TARGET) -> list[Task]:
    return split_ingested(read(pair), "metaschedule", [target])


def changed(pair: Pair, change: Callable[[list[Any]], None], line: int = 0) -> Pair:
    """The pair with one of its records changed."""
    lines = pair["tuning_record"].splitlines()
    record = json.loads(lines[line])
    change(record[1])
    lines[line] = json.dumps(record)
    return pair | {"tuning_record": "\n".join(lines)}


def test_every_workload_becomes_a_task_whose_seeds_are_its_traces_fastest_first(pair: Pair) -> None:
    ingested = check_model(json.dumps(pair).encode(), "metaschedule")
    found = {task.workload.digest: task for task in split_ingested(ingested, "metaschedule", [programs.TARGET])}
    dense, conv = found[programs.dense().digest], found[programs.conv().digest]
    assert len(found) == 2
    assert (dense.kind, dense.weight, dense.target) == (TaskKind.TUNED, 1, programs.TARGET)
    assert dense.flops >= 2 * 16 * 64 * 32
    assert dense.bytes == 4 * (16 * 64 + 64 * 32 + 32 + 16 * 32)
    assert len(dense.seeds) == 2
    for seed, sent in zip(dense.seeds, (parallel(1), parallel(0)), strict=True):
        assert equal(scheduled(dense.workload.ir, seed), scheduled(programs.dense().ir, sent))
    assert conv.seeds == ("[[],[]]",)


def scheduled(ir: str, trace: str) -> Any:
    """What a schedule makes of a program, without the names that differ."""
    function = apply_trace(load_ir(ir), trace).mod["main"]
    return PrimFunc(function.params, function.body, function.ret_type)


def equal(first: Any, second: Any) -> bool:
    return bool(tvm_ffi.structural_equal(first, second))


def test_the_same_files_give_the_same_bytes(pair: Pair) -> None:
    assert read(pair) == read(pair) == check_model(json.dumps(pair).encode(), "metaschedule")


def test_traces_are_for_targets_of_their_kind_only(pair: Pair) -> None:
    more_cores = Target.parse(programs.TARGET.attributes() | {"num-cores": 64})
    assert len(tasks(pair, more_cores)) == 2
    with pytest.raises(InvalidModel, match="kind cuda"):
        tasks(pair, Target.parse({"kind": "cuda", "arch": "sm_90"}))


def test_no_more_traces_are_kept_than_a_confirming_run_takes(pair: Pair) -> None:
    line = pair["tuning_record"].splitlines()[0]
    record, lines = json.loads(line), []
    for n in range(KEPT + 4):
        record[1][0] = json.loads(parallel(0, factor=n + 1))
        record[1][1] = [1.0 - n / 100]
        lines += [json.dumps(record)] * 2
    (task,) = tasks(pair | {"tuning_record": "\n".join(lines)})
    assert len(set(task.seeds)) == len(task.seeds) == KEPT
    fastest = scheduled(programs.dense().ir, parallel(0, factor=KEPT + 4))
    assert equal(scheduled(task.workload.ir, task.seeds[0]), fastest)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"workload": "", "tuning_record": 5}',
        b'{"workload": "", "tuning_record": ""}',
    ],
)
def test_what_is_no_pair_of_files_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidModel):
        read_metaschedule(document, DEFAULT_LIMITS)


def test_a_line_that_is_malformed_is_named(pair: Pair) -> None:
    with pytest.raises(InvalidModel, match=r"database_tuning_record.json, line 2"):
        read(changed(pair, lambda record: record.clear(), line=1))
    with pytest.raises(InvalidModel, match=r"database_workload.json, line 1"):
        read(pair | {"workload": "[1]\n" + pair["workload"]})
    code = ["Annotate", ["b0", '"x"'], ["pragma_import_llvm"], []]
    with pytest.raises(InvalidTrace, match=r"line 2: .*pragma_import_llvm"):
        read(changed(pair, lambda record: record[0][0].append(code), line=1))


def test_times_that_are_none_and_traces_that_do_not_fit_leave_nothing_to_measure(pair: Pair) -> None:
    (first, *_) = pair["tuning_record"].splitlines()
    for secs in ([1e10], [0], [-1], [float("nan")]):
        with pytest.raises(InvalidModel, match="no record"):
            read(changed(pair | {"tuning_record": first}, lambda record, secs=secs: record.__setitem__(1, secs)))
    missing = [["GetSBlock", [], ["no_such_block", "main"], ["b0"]]]
    with pytest.raises(InvalidModel, match="no record"):
        read(changed(pair | {"tuning_record": first}, lambda record: record[0].__setitem__(0, missing)))


def dynamic() -> str:
    from tvm.script import ir as script_ir
    from tvm.script import tirx as script_tirx

    source = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in range(n):
            with T.sblock("B"):
                vi = T.axis.spatial(n, i)
                B[vi] = A[vi]
"""
    return save_ir(tvm.script.from_source(source, {"T": script_tirx, "I": script_ir}))


def encoded(ir: str) -> str:
    raw = ir.encode()
    return json.dumps(["1", base64.b64encode(struct.pack("<Q", len(raw)) + raw).decode()])


@pytest.mark.parametrize(
    ("ir", "error", "named"),
    [
        (lambda: program('T.call_extern("int32", "getpid")').ir, UnsupportedOperator, "call_extern"),
        (lambda: programs.dense().ir.replace("tirx.noalias", "Codegen"), InvalidModel, "Codegen"),
        (lambda: programs.dense().ir[:-200], InvalidModel, "TVM JSON"),
        (lambda: dynamic(), UnsupportedShape, "'A' has a dynamic shape"),
    ],
)
def test_a_workload_that_is_no_plain_program_is_refused(
    pair: Pair, ir: Callable[[], str], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named) as caught:
        read(pair | {"workload": encoded(ir())})
    assert "line 1" in str(caught.value)


def test_only_what_was_packed_is_unpacked() -> None:
    workloads = [ImportedWorkload(ir="{}", traces={"llvm": ("[[],[]]",)})]
    assert parse_imported(pack_imported(workloads)) == workloads
    for data in (b"", b"[]", b'{"schema_version": 2, "workloads": []}', b'{"schema_version": 1}', b"[" * 100_000):
        with pytest.raises(InvalidModel):
            parse_imported(data)
