"""ONNX's own node tests through this package: which come out right, which are refused, and whether any is wrong.

    python benchmarks/onnx_nodes.py --json --log /tmp/onnx_nodes.jsonl > benchmarks/results/onnx_nodes.json

Every test of `onnx.backend.test.case.node` goes the public way: its weights are taken out (pitchpipe/model/strip.py), the
file is read as the child reads it, built without schedules for this machine, run on the test's inputs, and compared with
its outputs by pitchpipe/model/comparison.py. Groups of tests run in a child, so that a crash is a row and not the end.
`--log` keeps rows as they come and skips those that it holds, so a run can be taken up again; `--only` is a regular
expression of names; `--quick` takes every twelfth test.

A row's category is the first that holds: `training` (training mode or an optimiser), `strings`, `preview` (operator sets
named so), `ml` (ai.onnx.ml), `sequences` (a graph takes or gives one, or an optional), `sub_byte` (a graph takes or gives
elements smaller than a byte), `dynamic` (ONNX's inference, which sees constants but no values of inputs, leaves the shape of
some tensor open), and else `static`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from environment import environment, parser, show
from onnx import TensorProto, numpy_helper

from pitchpipe.errors import PitchpipeError
from pitchpipe.model.comparison import difference
from pitchpipe.model.strip import strip_onnx

CASE_SECS = 300
"""Until a test's child is stopped."""
GROUP = 40
"""Tests that one child runs."""
QUICK_STRIDE = 12
SUB_BYTE = frozenset(
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
    if hasattr(TensorProto, name)
)


def node_tests() -> dict[str, Any]:
    """Name -> test case, in onnx's order; of several with one name the first."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            found.setdefault(case.name, case)
    return found


def category(case: Any) -> str:
    """See the module's docstring."""
    model = case.model
    graph = model.graph
    values = [*graph.input, *graph.output]
    domains = {node.domain for node in graph.node}
    in_training = (
        any(entry.name == "training_mode" and entry.i for node in graph.node for entry in node.attribute)
        or "training" in case.name
    )
    if in_training or any(domain.endswith("training") for domain in domains):
        return "training"
    if any(_element(value) == TensorProto.STRING for value in values) or "string" in case.name:
        return "strings"
    if any(domain.startswith("ai.onnx.preview") for domain in domains):
        return "preview"
    if any(domain.startswith("ai.onnx.ml") for domain in domains):
        return "ml"
    if any(not value.type.HasField("tensor_type") for value in values):
        return "sequences"
    if any(_element(value) in SUB_BYTE for value in values):
        return "sub_byte"
    return "static" if _has_static_shapes(model) else "dynamic"


def _element(value: Any) -> int:
    return int(value.type.tensor_type.elem_type) if value.type.HasField("tensor_type") else 0


def _has_static_shapes(model: Any) -> bool:
    """Whether inference gives every tensor a shape, the declared shapes of the outputs put aside."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph
    except Exception:  # noqa: BLE001  # onnx raises its own C++ errors
        return False
    types = {value.name: value.type for value in (*inferred.value_info, *inferred.output, *inferred.input)}
    names = [name for node in inferred.node for name in node.output if name]
    return all(name in types and _is_static(types[name]) for name in names)


def _is_static(type_proto: Any) -> bool:
    if not type_proto.HasField("tensor_type"):
        return type_proto.HasField("sequence_type") or type_proto.HasField("optional_type")
    tensor = type_proto.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def outcome(case: Any) -> tuple[str, str | None]:
    """`right`, `wrong` with how it differs, or `refused` with the reason; raises whatever the build or run meets."""
    from tuner.deploy.build import compile_scheduled, schedule_model
    from tuner.ingest import IngestLimits
    from tuner.ingest.onnx_reader import read_onnx
    from tuner.tvm_compat import relax, tvm
    from workers.device import detect_target

    try:
        stripped = strip_onnx(case.model.SerializeToString())
        model = read_onnx(stripped.data, IngestLimits())
    except PitchpipeError as error:
        return "refused", f"{type(error).__name__}: {error.detail}"
    machine = relax.VirtualMachine(compile_scheduled(schedule_model(model, detect_target("llvm"), {})), tvm.cpu())
    given, expected = ([_array(value) for value in values] for values in case.data_sets[0])
    feed = dict(zip((value.name for value in case.model.graph.input), given, strict=True)) | stripped.weights

    def tensor(name: str) -> Any:
        array = np.asarray(feed[name])
        return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))

    weights = [tensor(spec.name) for spec in model.params]
    bound = machine["main_transform_params"](weights)
    answer = machine["main"](*(tensor(spec.name) for spec in model.inputs), *bound)
    found = [answer.numpy()] if hasattr(answer, "numpy") else [part.numpy() for part in answer]
    told = difference(found, expected)
    return ("right", None) if told is None else ("wrong", told)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def outcomes(cases: Sequence[Any], group: int = GROUP) -> Iterator[dict[str, Any]]:
    """A row for each case, as they end: name, category, status (`right wrong refused raised`) and detail."""
    import tuner.deploy.build
    import tuner.ingest.onnx_reader  # once, before the children are forked
    import workers.device

    assert workers.device
    assert tuner.deploy.build
    place = 0
    while place < len(cases):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_group(cases[place : place + group], writer)
        os.close(writer)
        started = None
        with os.fdopen(reader) as lines:
            for line in lines:
                row = json.loads(line)
                if "status" in row:
                    yield row
                    place, started = place + 1, None
                else:
                    started = row
        _, status = os.waitpid(child, 0)
        if started is not None:
            how = signal.Signals(status & 127).name if status & 127 else f"status {status >> 8}"
            yield {**started, "status": "raised", "detail": f"the process ended: {how}"}
            place += 1


def _run_group(cases: Sequence[Any], writer: int) -> None:
    """The child's side; does not return."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with contextlib.suppress(BaseException), os.fdopen(writer, "w", buffering=1) as out:
        for case in cases:
            row = {"name": case.name, "category": category(case)}
            out.write(json.dumps(row) + "\n")
            signal.alarm(CASE_SECS)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    status, detail = outcome(case)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what the row tells
                lines = str(error).strip().splitlines() or [""]
                status, detail = "raised", f"{type(error).__name__}: {lines[-1][:300]}"
            signal.alarm(0)
            out.write(json.dumps({**row, "status": status, "detail": detail}) + "\n")
    os._exit(0)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts by category and status, and the shares of static tests, and of all but training, strings, preview and ml."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["category"], Counter())[row["status"]] += 1
    static = counts.get("static", Counter())
    aside = {"training", "strings", "preview", "ml"}
    rest = sum((count for name, count in counts.items() if name not in aside), Counter[str]())
    return {
        "tests": len(rows),
        "by_status": dict(Counter(row["status"] for row in rows)),
        "by_category": {name: dict(count) for name, count in sorted(counts.items())},
        "static_right": static["right"] / max(static.total(), 1),
        "right_but_training_strings_preview_ml": rest["right"] / max(rest.total(), 1),
        "wrong": [row["name"] for row in rows if row["status"] == "wrong"],
        "raised": [row["name"] for row in rows if row["status"] == "raised"],
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--log", type=Path, help="rows as they come; those that it holds are not run again")
    arguments.add_argument("--only", default="", help="a regular expression: tests whose names it finds")
    options = arguments.parse_args()
    cases = {name: case for name, case in node_tests().items() if re.search(options.only, name)}
    names = list(cases)[:: QUICK_STRIDE if options.quick else 1]
    done: dict[str, dict[str, Any]] = {}
    if options.log is not None and options.log.exists():
        done = {row["name"]: row for row in map(json.loads, options.log.read_text().splitlines())}
    result: dict[str, Any] = {"environment": environment(tests=len(names), onnx=onnx.__version__)}
    for row in outcomes([cases[name] for name in names if name not in done]):
        done[row["name"]] = row
        if options.log is not None:
            with options.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
    result["rows"] = [done[name] for name in names]
    result["summary"] = summary(result["rows"])
    show(result, options.json)


if __name__ == "__main__":
    main()
