"""The exchange with stock MetaSchedule: its pair of JSON-lines files, written and read.

`database_workload.json`       one line a workload: [structural hash, base64 of (length, TVM JSON of an IRModule)]
`database_tuning_record.json`  one line a record: [workload index, [trace, run seconds, target, argument types]]

Stock `JSONDatabase` loads what is written here and stock `relax.transform.MetaScheduleApplyDatabase` applies it. What
is read is foreign: lines are parsed here, not by TVM (whose reader makes a file useless for one torn line), traces go
through the allow-list, workloads are judged object by object like any model, and times of failures (1e10, 0, NaN) are
dropped. Reading a workload still runs TVM's own JSON loader, so `parse` on an untrusted pair belongs in a disposable
child (tuner/ingest/metaschedule_reader.py).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import statistics
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidInput, InvalidModel, InvalidTarget, InvalidTrace
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.graph.prepare import normalised, workload_module
from tuner.ingest import DEFAULT_LIMITS
from tuner.ingest.relax_reader import judge_tensor_function
from tuner.schedule.rewrites import rewrite_of
from tuner.schedule.trace import apply_trace, decode_trace
from tuner.templates.text import is_template
from tuner.tvm_compat import PrimFunc, load_ir, ms, save_ir, structural_walk, to_tvm_target, tvm, tvm_ffi
from tuner.workload.digest import workload_digest

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
MAX_LINE_BYTES = 16 << 20
"""Of one line; a workload takes 20 to 500 KiB."""
MAX_LINES = 1_000_000
FORBIDDEN = ("pragma_import_llvm", "pragma_import_c")
"""Never part of a workload: they hand foreign code to the code generator."""


@dataclass(frozen=True, kw_only=True)
class ImportedRecord:
    """A record of a stock database that fits our workloads. Its times are hearsay: measure before serving."""

    workload: Workload
    target: Target | None
    """None when the record names none, or one with attributes that are not understood."""
    target_kind: str | None
    """Known even then, in most cases."""
    trace: str
    run_secs: tuple[float, ...]


def export(entries: Sequence[tuple[Workload, str, float]], target: Target, folder: Path) -> int:
    """Writes (workload, trace, seconds) as the pair in `folder`, replacing an older pair; returns the records written.

    Templates, and traces that begin with a rewrite of their workload, are left out: stock TVM has neither. Raises
    InvalidTrace for a trace that does not apply to its workload; nothing is replaced then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tvm_target = to_tvm_target(target)
    entries = [entry for entry in entries if not is_template(entry[1])]
    entries = [entry for entry in entries if rewrite_of(json.loads(decode_trace(entry[1]))[0]) is None]
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        database = ms.database.JSONDatabase(work_dir=draft)
        for workload, trace, secs in entries:
            schedule = apply_trace(load_ir(workload.ir), trace)
            committed = database.commit_workload(load_ir(workload.ir))
            arguments = ms.arg_info.ArgInfo.from_entry_func(committed.mod, remove_preproc=False)
            database.commit_tuning_record(
                ms.database.TuningRecord(schedule.trace, committed, [secs], tvm_target, arguments)
            )
        for name in (WORKLOADS, RECORDS):
            (Path(draft) / name).touch()
            os.replace(Path(draft) / name, folder / name)
    return len(entries)


def parse(workloads: str, records: str, *, most: int | None = None) -> list[ImportedRecord]:
    """The usable records of a pair, in its order; raises InvalidInput naming the line that is malformed.

    A torn last line is dropped. So are records without a valid time, and records whose trace does not survive our
    naming of blocks: traces find blocks by name, and our workloads carry names of ours. With `most`, that many of each
    workload and kind of target are looked for, fastest first: the rest costs no time.
    """
    mods = [_module(where, line) for where, line in _lines(WORKLOADS, workloads)]
    lines = [_record(where, line, mods) for where, line in _lines(RECORDS, records)]
    timed = [line for line in lines if line.run_secs]
    if most is not None:
        timed.sort(key=lambda line: statistics.median(line.run_secs))
    found: list[ImportedRecord] = []
    kept: dict[tuple[str, str | None], set[str]] = {}
    for line in timed:
        traces = kept.setdefault((line.workload.digest, line.kind), set())
        if most is not None and (len(traces) >= most or line.trace in traces):
            continue
        own = _renamed(line.mod, line.workload, line.trace)
        if own is not None:
            traces.add(line.trace)
            found.append(
                ImportedRecord(
                    workload=line.workload,
                    target=line.target,
                    target_kind=line.kind,
                    trace=own,
                    run_secs=line.run_secs,
                )
            )
    return found


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A line of the file of records, each part of it checked, and not yet tried."""

    mod: Any
    workload: Workload
    kind: str | None
    target: Target | None
    trace: str
    run_secs: tuple[float, ...]


def _record(where: str, line: Any, mods: Sequence[tuple[Any, Workload]]) -> _Record:
    try:
        index, (trace, run_secs, target, _) = line
        mod, workload = mods[index] if type(index) is int and index >= 0 else (None, None)
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidInput(f"{where}: not [workload, [trace, run seconds, target, arguments]]") from error
    if workload is None:
        raise InvalidInput(f"{where}: there is no workload {str(index)[:20]}")
    try:
        decoded = decode_trace(json.dumps(trace))
    except InvalidTrace as error:
        raise InvalidTrace(f"{where}: {error.detail}") from error
    kind = target.get("kind") if isinstance(target, dict) else None
    return _Record(
        mod=mod,
        workload=workload,
        kind=kind if isinstance(kind, str) else None,
        target=_target(target),
        trace=decoded,
        run_secs=_seconds(run_secs),
    )


def _lines(name: str, text: str) -> Iterator[tuple[str, Any]]:
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise InvalidInput(f"{name}: more than {MAX_LINES} lines")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > MAX_LINE_BYTES:
            raise InvalidInput(f"{name}, line {number}: longer than {MAX_LINE_BYTES} bytes")
        try:
            yield f"{name}, line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise InvalidInput(f"{name}, line {number}: not JSON") from error


def _module(where: str, line: Any) -> tuple[Any, Workload]:
    """The module as the file has it, and the workload as we name it."""
    try:
        _, encoded = line
        raw = base64.b64decode(encoded, validate=True)
        (length,) = struct.unpack_from("<Q", raw)
        text = raw[8 : 8 + length].decode()
    except (TypeError, ValueError, struct.error, binascii.Error) as error:
        raise InvalidInput(f"{where}: not [hash, base64 of a module]") from error
    if len(raw) != 8 + length or any(word in text for word in FORBIDDEN):
        raise InvalidInput(f"{where}: the module is torn or imports foreign code")
    mod = load_ir(text)
    if len(mod.functions) != 1:
        raise InvalidInput(f"{where}: a workload is a module of one tensor function")
    try:
        judge_tensor_function(mod, DEFAULT_LIMITS)
    except InvalidModel as error:
        raise type(error)(f"{where}: {error.detail}") from error
    own = workload_module(normalised(next(iter(mod.functions.values()))))
    return mod, Workload(digest=workload_digest(own), ir=save_ir(own))


def _seconds(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        return ()
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e5 for v in values):
        return ()
    return tuple(float(v) for v in values)


def _target(value: Any) -> Target | None:
    """Our target of TVM's attributes, without what is derived or belongs to the host."""
    if not isinstance(value, dict):
        return None
    kept = {k: v for k, v in value.items() if k not in ("keys", "tag", "host", "mtriple", "libs") and v not in ("", [])}
    try:
        return Target.parse(kept)
    except InvalidTarget:
        return None


def _renamed(mod: Any, workload: Workload, trace: str) -> str | None:
    """The trace with our names of blocks, if it makes of our workload what it made of theirs."""
    own = load_ir(workload.ir)
    names = dict(zip(_block_names(mod), _block_names(own), strict=True))
    instructions, decisions = json.loads(trace)
    for kind, _, attributes, _ in instructions:
        if kind == "GetSBlock" and attributes and isinstance(attributes[0], str):
            name = attributes[0]
            stem = next((s for s in ("_update", "_init") if name not in names and name.endswith(s)), "")
            attributes[0] = names.get(name.removesuffix(stem), name.removesuffix(stem)) + stem
    try:
        text = decode_trace(json.dumps([instructions, decisions]))
        same = tvm_ffi.structural_equal(_bare(apply_trace(own, text).mod), _bare(apply_trace(mod, trace).mod))
    except InvalidTrace:
        return None
    return text if same else None


def _bare(mod: Any) -> Any:
    """The one function, without attributes: only the program counts."""
    function = next(iter(mod.functions.values()))
    return PrimFunc(function.params, function.body, function.ret_type)


def _block_names(mod: Any) -> list[str]:
    found: list[str] = []
    function = next(iter(mod.functions.values()))
    structural_walk(function.body, (tvm.s_tir.SBlock, lambda block: found.append(str(block.name_hint))))
    return found
