"""The trace codec's checks that need no compiler."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.measure import BASELINE_TRACE
from tuner.schedule.trace import ANNOTATIONS, KINDS, MAX_BYTES, decode_trace, without_postproc

BLOCK = ["GetSBlock", [], ["matmul", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
TILE = ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]]
SPLIT = ["Split", ["l1", "v4", "v5"], [True, False], ["l6", "l7"]]
POST = ["EnterPostproc", [], [], []]
VARIABLE = {"type": "ir.Var", "data": {"span": 0, "ty": 1, "name": 2}}
INDEX_MAP: dict[str, Any] = {
    "root_index": 8,
    "nodes": [
        {"type": "None"},
        {"type": "ir.PrimType", "data": {"span": 0, "dtype": "int64"}},
        {"type": "ffi.String", "data": "i0"},
        VARIABLE,
        {"type": "ffi.Array", "data": [3]},
        {"type": "int", "data": 4},
        {"type": "prim.FloorDiv", "data": {"span": 0, "ty": 1, "a": 3, "b": 3}},
        {"type": "ffi.Array", "data": [6]},
        {"type": "tirx.IndexMap", "data": {"initial_indices": 4, "final_indices": 7, "inverse_index_map": 0}},
    ],
    "metadata": {"tvm_version": "0.27.0"},
}


def text(*instructions: Any, decisions: Any = ()) -> str:
    return json.dumps([list(instructions), list(decisions)])


def layout(index_map: Any) -> str:
    return text(BLOCK, ["TransformLayout", ["b0", json.dumps(index_map)], [0, 0, None, False], []])


def test_the_empty_trace_is_the_baseline() -> None:
    assert decode_trace(" [ [ ],[ ] ] ") == BASELINE_TRACE


def test_spacing_does_not_matter_to_the_canonical_text() -> None:
    trace = [[BLOCK, LOOPS, TILE, SPLIT], [[2, [4, 4]]]]
    assert decode_trace(json.dumps(trace, indent=3)) == decode_trace(json.dumps(trace)) == decode_trace(text(*trace[0], decisions=trace[1]))  # fmt: skip


def test_everything_after_the_postprocessors_begin_is_cut() -> None:
    whole = decode_trace(text(BLOCK, LOOPS, TILE, SPLIT, POST, ["Parallel", ["l6"], [], []], decisions=[[2, [4, 4]]]))
    assert without_postproc(whole) == decode_trace(text(BLOCK, LOOPS, TILE, SPLIT, decisions=[[2, [4, 4]]]))
    assert without_postproc(BASELINE_TRACE) == BASELINE_TRACE


def test_unrolling_annotations_pass() -> None:
    annotate = ["Annotate", ["b0", 512], ["pragma_auto_unroll_max_step"], []]
    assert decode_trace(text(BLOCK, annotate))


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "{}",
        "[]",
        "[[],[],[]]",
        "[[],{}]",
        '[["x"],[]]',
        "[[[]],[]]",
        "[" * 100_000,
        "9" * 10_000,
        text(["ImportCode", [], [], []]),
        text(["UnsafeSetDType", ["b0"], [0, "int8"], []]),
        text([["GetSBlock"], [], [], []]),
        text(BLOCK, BLOCK),
        text(["GetSBlock", [], ["../../etc/passwd", "main"], ["b0"]]),
        text(["GetSBlock", [], ["matmul", "main"], ["b0; import os"]]),
        text(["GetLoops", ["b0"], [], ["l1"]]),
        text(BLOCK, ["Annotate", ["b0", '"int f();"'], ["pragma_import_c"], []]),
        text(BLOCK, ["Annotate", ["b0", '"ir"'], ["pragma_import_llvm"], []]),
        text(BLOCK, ["Annotate", ["b0", '"rule"'], ["schedule_rule"], []]),
        text(BLOCK, ["Unannotate", ["b0"], ["pragma_import_llvm"], []]),
        text(BLOCK, ["Annotate", ["b0", 1], [["pragma_import_llvm"]], []]),
        text(BLOCK, ["Annotate", ["b0", 1], ["meta_schedule.parallel", "pragma_import_llvm"], []]),
        text(BLOCK, ["Annotate", ["b0", '"; ModuleID = x\\n"'], ["meta_schedule.auto_tensorize"], []]),
        text(BLOCK, LOOPS, ["Bind", ["l1"], ["threadIdx.q"], []]),
        text(BLOCK, LOOPS, ["Split", ["l1", 1e400], [True, False], ["l4"]]),
        text(BLOCK, LOOPS, ["Split", ["l1", 10**30], [True, False], ["l4"]]),
        text(BLOCK, LOOPS, ["Fuse", ["l1", [[[[[[[[[["l2"]]]]]]]]]]], [True], ["l4"]]),
        text(BLOCK, LOOPS, TILE, decisions=[[7, [1, 2]]]),
        text(BLOCK, LOOPS, TILE, decisions=[[0, [1, 2]]]),
        text(BLOCK, LOOPS, TILE, decisions=[[2, [1, 2]], [2, [2, 1]]]),
        text(BLOCK, LOOPS, TILE, decisions=[[2, "1"]]),
        text(BLOCK, LOOPS, TILE, decisions=[[2, [True, 2]]]),
        text(BLOCK, LOOPS, TILE, decisions=[2]),
        text(*([POST] * 5000)),
        " " * (MAX_BYTES + 1),
    ],
)
def test_what_is_malformed_or_not_allowed_is_an_invalid_trace(bad: str) -> None:
    with pytest.raises(InvalidTrace):
        decode_trace(bad)


def test_an_index_map_of_arithmetic_on_its_indices_passes() -> None:
    assert decode_trace(layout(INDEX_MAP))


def test_a_layout_that_is_assumed_to_be_injective_becomes_one_that_is_checked() -> None:
    """MetaSchedule's tensor-core sketches assume it."""
    assumed = text(BLOCK, ["TransformLayout", ["b0", json.dumps(INDEX_MAP)], [0, 0, None, 1], []])
    assert decode_trace(assumed) == decode_trace(layout(INDEX_MAP))
    assert json.loads(decode_trace(assumed))[0][1][2] == [0, 0, None, 0]


@pytest.mark.parametrize(
    "attributes", [[], [0, 0, None], [0, 0, None, 2], [0, 0, None, "1"], [0, 0, 0, 0], [0, 0, "", 1]]
)
def test_a_layout_with_padding_or_another_flag_is_refused(attributes: list[Any]) -> None:
    with pytest.raises(InvalidTrace, match="no pad value and a flag"):
        decode_trace(text(BLOCK, ["TransformLayout", ["b0", json.dumps(INDEX_MAP)], attributes, []]))


@pytest.mark.parametrize(
    "change",
    [
        {"root_index": 9},
        {"root_index": 3},
        {"root_index": True},
        {"metadata": {"tvm_version": "0.27.0", "b64ndarrays": []}},
        {"extra": 1},
        {"nodes": {}},
        {"nodes": [{"type": "ir.IRModule", "data": {}}], "root_index": 0},
        {"nodes": [{"type": "ffi.Array", "data": [0]}], "root_index": 0},
        {"nodes": [{"type": "tirx.Call", "data": {"op": 0, "args": 0}}], "root_index": 0},
        {"nodes": [{"type": "ffi.String", "data": "a\nb"}], "root_index": 0},
        {"nodes": [*INDEX_MAP["nodes"][:1], {"type": "ir.PrimType", "data": {"span": 0, "dtype": "handle"}}]},
        {"nodes": [*INDEX_MAP["nodes"][:8], {"type": "tirx.IndexMap", "data": {"initial_indices": 4}}]},
    ],
)
def test_an_index_map_that_holds_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidTrace):
        decode_trace(layout(INDEX_MAP | change))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(sorted(KINDS)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)
VALUES = st.integers(-(2**40), 2**40) | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def traces(draw: st.DrawFn) -> str:
    """Well-formed traces: variables are defined before they are used, decisions belong to sampling instructions."""
    known: list[str] = []
    instructions: list[Any] = []
    decisions: list[Any] = []
    kinds = sorted(KINDS - {"Annotate", "Unannotate", "Bind", "TransformLayout", "TransformBlockLayout"})
    for index in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from([*kinds, "Annotate", "SamplePerfectTile"]))
        inputs = draw(st.lists(st.sampled_from(known) | VALUES | st.just('"literal"') if known else VALUES, max_size=4))
        attributes = draw(st.lists(VALUES | st.from_regex(r"\A[a-z_.0-9]{1,9}\Z"), max_size=3))
        if kind == "Annotate":
            attributes = [draw(st.sampled_from(sorted(ANNOTATIONS)))]
        outputs = [f"{draw(st.sampled_from('blv'))}{index * 4 + i}" for i in range(draw(st.integers(0, 3)))]
        known += outputs
        instructions.append([kind, inputs, attributes, outputs])
        if kind.startswith("Sample") and draw(st.booleans()):
            integers = st.integers(-9, 512)
            decisions.append([index, draw(integers | st.lists(integers, max_size=4))])
    return json.dumps([instructions, decisions])


@given(traces())
def test_decoding_a_decoded_trace_changes_nothing(trace: str) -> None:
    decoded = decode_trace(trace)
    assert decode_trace(decoded) == decoded
    assert json.loads(decoded) == json.loads(trace)


@given(JSON | st.lists(JSON, min_size=2, max_size=2) | st.tuples(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), JSON, JSON, JSON), max_size=4), JSON))  # fmt: skip
def test_arbitrary_json_is_decoded_or_an_invalid_trace(value: Any) -> None:
    try:
        decode_trace(json.dumps(value))
    except InvalidTrace:
        return


@given(st.binary(max_size=64) | st.text(max_size=64))
def test_arbitrary_bytes_are_decoded_or_an_invalid_trace(value: bytes | str) -> None:
    try:
        decode_trace(value)
    except InvalidTrace:
        return


@given(JSON)
def test_an_arbitrary_index_map_is_decoded_or_an_invalid_trace(value: Any) -> None:
    try:
        decode_trace(layout(value))
    except InvalidTrace:
        return
