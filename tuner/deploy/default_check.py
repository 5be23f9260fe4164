"""Inside a fork: default schedules chosen, compiled and checked, some at a time.

The programs that give the expected outputs run three times each, so LLVM does not optimise them, and those of all workloads
together are one module. What is checked is the object code of one function, named as in the model: the build that asked for
the check links that very code.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pitchpipe.target_kind import kind_of
from pitchpipe.wire._base import Wire
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.measure.build import CpuProgram, apply, compile_module, generate, with_packings
from tuner.measure.candidate import Bench, Running, WrongOutput
from tuner.measure.check import SETS, ReferenceOutputs, mostly_finite, verdict
from tuner.measure.input_sets import RANGES
from tuner.schedule.packing import Packing
from tuner.tvm_compat import IRModule, load_object_code, object_code, tvm

_SIZE = struct.Struct("=Q")
TRIED = 3
"""Schedules of a workload that are checked, at most, until one is right. The baseline is slower than any by a factor."""


class Checked(Wire):
    """The default schedule of a workload, and whether it computes what the workload does."""

    trace: str
    """The baseline's where none better is known."""
    fault: str | None = None
    """Why it is not used; None of one that is right."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A workload of a model, and the name of its tensor function there."""

    name: str
    workload: Workload


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a fork tells of a workload."""

    checked: Checked
    code: bytes = b""
    """Object code of the schedule, named as `linked_name` says, where it was compiled."""

    def encode(self) -> bytes:
        """As bytes that `decode_all` takes."""
        told = self.checked.model_dump_json().encode()
        return _SIZE.pack(len(told)) + told + _SIZE.pack(len(self.code)) + self.code

    @classmethod
    def decode_all(cls, data: bytes) -> list[Self]:
        """Of answers one behind another."""
        parts, at = list[bytes](), 0
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            parts.append(data[at + _SIZE.size : at + _SIZE.size + size])
            at += _SIZE.size + size
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [cls(checked=Checked.model_validate_json(told), code=code) for told, code in pairs]


def linked_name(name: str, packings: Sequence[Packing]) -> str:
    """The name in a model that is ready to compile of what was the tensor function `name` before it was scheduled: one whose
    weights are packed gets another (SplitLayoutRewritePreproc)."""
    return f"{name}_prepacked" if packings else name


def check_defaults(asked: Sequence[Named], target: Target) -> bytes:
    """Chooses the default schedules and checks them; an answer for each, one behind another.

    Raises MemoryError, which says nothing about a schedule.
    """
    answers, checks = dict[str, Answer](), list[tuple[Named, Iterator[str], Bench]]()
    for one in asked:
        trace = BASELINE_TRACE
        try:
            traces = kind_of(target).default_traces(one.workload, target)
            trace = next(traces, BASELINE_TRACE)
            if trace != BASELINE_TRACE:
                checks.append((one, itertools.chain([trace], traces), Bench(one.workload.ir, target, 0)))
                continue
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the workload runs its baseline
            answers[one.name] = _refused(trace, error)
            continue
        answers[one.name] = Answer(checked=Checked(trace=trace))
    expected = reference_programs([bench for _, _, bench in checks])
    for (one, traces, bench), reference in zip(checks, expected, strict=True):
        answers[one.name] = _first_right(one.name, traces, bench, reference)
    return b"".join(answers[one.name].encode() for one in asked)


def _first_right(name: str, traces: Iterator[str], bench: Bench, reference: CpuProgram) -> Answer:
    """Of the first schedule that is right, among the first TRIED; else why the default one is not."""
    refused: Answer | None = None
    for trace in itertools.islice(traces, TRIED):
        try:
            code, program = _compiled(bench, trace, name)
            _check(bench, program, reference)
            return Answer(checked=Checked(trace=trace), code=code)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the same
            refused = refused or _refused(trace, error)
    assert refused is not None
    return refused


def _refused(trace: str, error: Exception) -> Answer:
    words = str(error).strip().splitlines() or [type(error).__name__]
    return Answer(checked=Checked(trace=trace, fault=words[-1][:300]))


def reference_programs(benches: Sequence[Bench]) -> list[CpuProgram]:
    """The reference programs of workloads, compiled at once and not optimised; one by one where TVM refuses that."""
    if not benches:
        return []
    try:
        functions = {}
        for at, bench in enumerate(benches):
            mod, host = kind_of(bench.target).reference_program(bench.mod, bench.tvm_target)
            functions[f"reference_{at}"] = mod["main"].with_attr("global_symbol", f"reference_{at}")
        target = tvm.target.Target({**host.export(), "opt-level": 0})
        module = compile_module(IRModule(functions), target)
        mains = [module.get_function(name, query_imports=True) for name in functions]
        return [CpuProgram(main=main, packings={}, packed={}, module=module) for main in mains]
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the same
        return [bench.reference_program() for bench in benches]


def _compiled(bench: Bench, trace: str, name: str) -> tuple[bytes, CpuProgram]:
    """The scheduled workload as object code under its name in the model, and loaded."""
    whole, packings = with_packings(apply(bench.mod, trace))
    name = linked_name(name, packings)
    main = IRModule({name: whole["main"].with_attr("global_symbol", name)})
    code = object_code(generate(main, bench.tvm_target)[1])
    module = load_object_code(code)
    copies: dict[int, Any] = {p.param: p.pack for p in packings if p.positions is not None}
    for packing in packings:
        if packing.positions is None:
            function = packing.function.with_attr("global_symbol", packing.symbol)
            packs = compile_module(IRModule({packing.symbol: function}), bench.tvm_target)
            copies[packing.param] = packs.get_function(packing.symbol, query_imports=True)
    return code, CpuProgram(
        main=module.get_function(name, query_imports=True),
        packings=copies,
        packed={p.param: p.packed for p in packings},
        module=module,
    )


def _check(bench: Bench, scheduled: CpuProgram, reference: CpuProgram) -> None:
    """Raises WrongOutput, also for a write beside the outputs, and ValueError where no input set gives finite outputs.

    One set after another, so that the inputs of one are held at a time.
    """
    results = []
    for name, outputs in expected_outputs(bench, reference):
        running = Running(bench, scheduled)
        results.append(outputs.compare(running.outputs_on(name)))
        if not running.stays_inside:
            raise WrongOutput("it writes beside its outputs")
        if not (judged := verdict(results)).passed:
            raise WrongOutput.of(judged, name)
        del bench.inputs[name]
    if not results:
        raise ValueError("the reference program gives no finite output")


def expected_outputs(bench: Bench, reference: CpuProgram) -> Iterator[tuple[str, ReferenceOutputs]]:
    """The sets of inputs that give finite outputs, and what is expected of each. Its inputs are filled from then on."""
    for name in SETS:
        for within in RANGES:
            bench.fill(name, within)
            expected, changes = bench.run_reference(reference, name)
            if mostly_finite(expected):
                yield name, ReferenceOutputs(bench.properties, name, expected, changes)
                break
        else:
            del bench.inputs[name]
