"""Models come in whole or are refused by name; what parses them can touch nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.strip import strip_onnx
from pitchpipe.processes.launch import package_roots
from pitchpipe.wire.job import ModelFormat
from tests.compiler.models import attention, model, node, small_network
from tests.compiler.test_digest import product
from tuner.ingest import IngestedModel, IngestLimits, TensorSpec, container, ingest, parse_container
from tuner.ingest.onnx_reader import read_onnx
from tuner.ingest.relax_reader import read_relax
from tuner.tvm_compat import IRModule, ir, load_ir, relax, save_ir, tirx, with_function

LIMITS = IngestLimits()
BIG = 1 << 40


def test_a_stripped_and_a_whole_file_give_the_same_model_in_the_child() -> None:
    whole = small_network().SerializeToString()
    first = ingest(whole, ModelFormat.ONNX)
    assert first == ingest(strip_onnx(whole).data, ModelFormat.ONNX)
    assert first.inputs == (TensorSpec(name="x", shape=(1, 8, 12, 12), dtype="float32"),)
    assert [spec.name for spec in first.params] == ["w1", "bias1", "g", "b", "m", "v", "w2", "w3", "bias3"]


def test_several_inputs_of_several_types_keep_their_order() -> None:
    found = read_onnx(attention().SerializeToString(), LIMITS)
    assert [(spec.name, spec.dtype) for spec in found.inputs] == [("ids", "int64"), ("mask", "float32")]
    assert int(load_ir(found.ir)["main"].attrs["num_input"]) == 2


def test_nodes_in_any_order_are_put_in_order() -> None:
    proto = small_network()
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(proto.graph.node)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert read_onnx(proto.SerializeToString(), LIMITS) == read_onnx(small_network().SerializeToString(), LIMITS)


def test_functions_of_the_model_are_inlined() -> None:
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": [2]}, ["y"], domains=["own"])
    proto.functions.append(function)
    assert read_onnx(proto.SerializeToString(), LIMITS).inputs[0].shape == (2,)


def _relu(**changes: Any) -> Any:
    return model([node("Relu", ["x"], ["y"], name="act")], {"x": [2, 3]}, ["y"], **changes)


def _cyclic() -> Any:
    return model(
        [node("Add", ["x", "b"], ["a"], name="first"), node("Relu", ["a"], ["b"], name="second")], {"x": [2]}, ["b"]
    )


def _control_flow() -> Any:
    branch = helper.make_graph([node("Relu", ["x"], ["z"])], "b", [], [helper.make_tensor_value_info("z", 1, [2])])
    other = helper.make_graph([node("Size", ["x"], ["z"])], "b", [], [helper.make_tensor_value_info("z", 7, [])])
    choose = node("If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=other)
    return model([choose], {"c": [], "x": [2]}, ["y"], types={"c": TensorProto.BOOL})


def _constant_of_shape() -> Any:
    shape = {"s": np.array([1 << 20, 1 << 20], np.int64)}
    return model([node("ConstantOfShape", ["s"], ["z"]), node("Add", ["z", "x"], ["y"])], {"x": [1]}, ["y"], shape)


def _expand() -> Any:
    shape = {"s": np.array([1 << 20, 1 << 20], np.int64)}
    return model([node("Expand", ["x", "s"], ["y"])], {"x": [1]}, ["y"], shape)


def _string_input() -> Any:
    return model([node("Identity", ["x"], ["y"])], {"x": [2]}, ["y"], types={"x": TensorProto.STRING})


HOSTILE: dict[str, tuple[Callable[[], Any], type[PitchpipeError], str]] = {
    "unknown operator": (
        lambda: model([node("Warp", ["x"], ["y"], name="n1")], {"x": [2]}, ["y"]),
        UnsupportedOperator,
        r"Warp \(node 'n1'\)",
    ),
    "unknown domain": (
        lambda: model(
            [helper.make_node("Relu", ["x"], ["y"], name="n2", domain="evil")], {"x": [2]}, ["y"], domains=["evil"]
        ),
        UnsupportedOperator,
        r"evil::Relu \(node 'n2'\)",
    ),
    "control flow": (_control_flow, UnsupportedOperator, r"If \(node 'choose'\) has subgraphs"),
    "symbolic dimension": (
        lambda: model([node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"]),
        UnsupportedShape,
        r"'x' has a dynamic dimension \('batch', axis 0\)",
    ),
    "negative dimension": (
        lambda: model([node("Relu", ["x"], ["y"])], {"x": [-1, 3]}, ["y"]),
        UnsupportedShape,
        r"'x' of shape \[-1, 3\]",
    ),
    "absurd dimension": (
        lambda: model([node("Relu", ["x"], ["y"])], {"x": [BIG, 3]}, ["y"]),
        UnsupportedShape,
        r"'x' of shape",
    ),
    "a bomb of constants": (_constant_of_shape, UnsupportedShape, r"'z' of shape \[1048576, 1048576\]"),
    "a bomb of broadcasts": (_expand, UnsupportedShape, r"'y' of shape \[1048576, 1048576\]"),
    "cycle": (_cyclic, InvalidModel, r"cyclic: node 'first'"),
    "a tensor from nowhere": (
        lambda: model([node("Add", ["x", "w"], ["y"], name="n3")], {"x": [2]}, ["y"]),
        InvalidModel,
        r"'n3' reads tensor 'w', which nothing makes",
    ),
    "a tensor made twice": (
        lambda: model([node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["y"])], {"x": [2]}, ["y"]),
        InvalidModel,
        r"'y' is made by two nodes",
    ),
    "an output from nowhere": (
        lambda: model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["q"]),
        InvalidModel,
        r"output 'q'",
    ),
    "shapes that do not fit": (
        lambda: model(
            [node("MatMul", ["x", "w"], ["y"], name="mm")], {"x": [2, 3]}, ["y"], {"w": np.ones((4, 5), np.float32)}
        ),
        InvalidModel,
        r"MatMul \(node 'mm'\) cannot be converted",
    ),
    "strings": (_string_input, InvalidModel, r"'x' holds strings"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_tuned_is_refused_by_name(case: str) -> None:
    make, kind, message = HOSTILE[case]
    with pytest.raises(kind, match=message) as caught:
        read_onnx(make().SerializeToString(), LIMITS)
    assert 400 <= caught.value.status < 500


def test_too_many_nodes_are_refused() -> None:
    with pytest.raises(TooLarge, match="12 nodes; the limit is 5"):
        read_onnx(small_network().SerializeToString(), IngestLimits(nodes=5))


def _external() -> bytes:
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, ["y"], {"w": np.ones((4, 4), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return proto.SerializeToString()


def _range_bomb() -> bytes:
    limits = {"a": np.array(0, np.int64), "b": np.array(BIG, np.int64), "c": np.array(1, np.int64)}
    proto = model(
        [node("Range", list("abc"), ["r"], name="bomb"), node("Cast", ["r"], ["y"], to=1)], {"x": [1]}, ["y"], limits
    )
    return proto.SerializeToString()


IN_THE_CHILD: dict[str, tuple[Callable[[], bytes], ModelFormat, str]] = {
    "a truncated file": (
        lambda: small_network().SerializeToString()[:-40],
        ModelFormat.ONNX,
        "truncated or is not an ONNX file",
    ),
    "external data": (_external, ModelFormat.ONNX, "'w' is stored outside the file, in '/etc/passwd'"),
    "a bomb of indices": (_range_bomb, ModelFormat.ONNX, "'?(bomb|r|y)'?"),
    "a module that contains itself": (
        lambda: container(
            IngestedModel(ir='{"root_index":0,"nodes":[{"type":"ffi.Array","data":[0]}]}', inputs=(), params=())
        ),
        ModelFormat.RELAX,
        "crashed|recursion|not TVM JSON",
    ),
    "a TVMScript file": (lambda: b"import os", ModelFormat.TVMSCRIPT, "can run code"),
    "a pt2 archive": (lambda: b"PK", ModelFormat.PT2, "can run code"),
}


@pytest.mark.parametrize("case", IN_THE_CHILD)
def test_hostile_files_end_as_errors_of_the_caller(case: str) -> None:
    make, model_format, message = IN_THE_CHILD[case]
    with pytest.raises(PitchpipeError, match=message) as caught:
        ingest(make(), model_format)
    assert 400 <= caught.value.status < 500


def test_a_parser_that_takes_too_long_is_killed_and_the_model_refused() -> None:
    with pytest.raises(InvalidModel, match="longer than 0 s"):
        ingest(small_network().SerializeToString(), ModelFormat.ONNX, IngestLimits(wall_secs=0.0))


def test_a_parser_that_eats_memory_is_stopped() -> None:
    with pytest.raises((InvalidModel, TooLarge)):
        ingest(small_network().SerializeToString(), ModelFormat.ONNX, IngestLimits(memory_bytes=300 << 20))


def test_a_file_over_the_cap_is_refused_before_a_child_is_started() -> None:
    with pytest.raises(TooLarge, match="the limit is 10"):
        ingest(bytes(11), ModelFormat.ONNX, IngestLimits(data_bytes=10))


SCRIPT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, {extent}), "float32"), w: R.Tensor((3, 4), "float32")):
        R.func_attr({{"num_input": 1}})
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""


def test_trusted_tvmscript_becomes_a_model() -> None:
    found = ingest(SCRIPT.format(extent=3).encode(), ModelFormat.TVMSCRIPT, trusted=True)
    assert [spec.name for spec in (*found.inputs, *found.params)] == ["x", "w"]


@pytest.mark.parametrize(
    "misdeed", ["len(open('/etc/passwd').read())", "open('spoil', 'w')", "len(__import__('os').listdir('/'))"]
)
def test_even_trusted_code_touches_no_file(misdeed: str) -> None:
    with pytest.raises(InvalidModel, match=r"Permission denied|not permitted"):
        ingest(SCRIPT.format(extent=misdeed).encode(), ModelFormat.TVMSCRIPT, trusted=True)


def test_a_confined_process_can_read_only_what_it_was_given(tmp_path: Any) -> None:
    given, other = tmp_path / "given", tmp_path / "other"
    for folder in (given, other):
        folder.mkdir()
        (folder / "file").write_text("text")
    script = f"""
import sys; sys.path[:0] = {package_roots()!r}
import os, socket
from tuner.ingest.isolation import confine_files, confine_resources
confine_resources(60, 8 << 30)
if not confine_files([{str(given)!r}]):
    print("no landlock"); sys.exit()
print(open({str(given / "file")!r}).read())
attempts = [
    lambda: open({str(other / "file")!r}),
    lambda: open({str(given / "new")!r}, "w"),
    lambda: os.unlink({str(given / "file")!r}),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: socket.create_connection(("127.0.0.1", 9)),
]
for attempt in attempts:
    try:
        attempt()
    except PermissionError:
        print("refused")
    except OSError as error:
        print("other", error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    if run.stdout.startswith("no landlock"):
        pytest.skip("this kernel has no Landlock")
    assert run.stdout.split() == ["text", *["refused"] * 5]


# The relax format


def relax_model(build: Callable[[Any, Any, Any], Any]) -> Any:
    """A module of main(x: [2, 3], w: [3, 4]) that returns what `build(builder, x, w)` emits."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (2, 3)), ("w", (3, 4))))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(build(builder, x, w))
        builder.emit_func_output(result)
    return builder.get()


SPECS = {
    "inputs": (TensorSpec(name="x", shape=(2, 3), dtype="float32"),),
    "params": (TensorSpec(name="w", shape=(3, 4), dtype="float32"),),
}


def packed(module: Any, **changes: Any) -> bytes:
    return container(IngestedModel(**{"ir": save_ir(module), **SPECS, **changes}))


def test_a_relax_module_comes_through_as_it_is() -> None:
    data = packed(relax_model(lambda builder, x, w: relax.op.matmul(x, w)))
    found = read_relax(data, LIMITS)
    assert (found.inputs, found.params) == (SPECS["inputs"], SPECS["params"])
    assert container(found) == container(read_relax(container(found), LIMITS))


def test_a_relax_module_may_hold_tensor_functions_of_arithmetic() -> None:
    def build(builder: Any, x: Any, w: Any) -> Any:
        return builder.emit_te(lambda a: tvm_topi_exp(a), x)

    from tuner.tvm_compat import topi

    tvm_topi_exp = topi.exp
    assert len(load_ir(read_relax(packed(relax_model(build)), LIMITS).ir).functions) == 2


def _foreign(name: str) -> Callable[[], Any]:
    def build(builder: Any, x: Any, w: Any) -> Any:
        if name == "extern":
            return relax.Call(relax.ExternFunc("system"), [x], ty_args=[x.ty])
        if name == "dps":
            return relax.op.call_dps_packed("system", x, out_ty=x.ty)
        if name == "pure":
            return relax.op.call_pure_packed("system", x, ty_args=[x.ty])
        return relax.op.print(x, format="{}")

    return lambda: relax_model(build)


def _with_tensor_function(change: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        from tuner.tvm_compat import topi

        module = relax_model(lambda builder, x, w: builder.emit_te(topi.exp, x))
        name = next(v.name_hint for v in module.functions if v.name_hint != "main")
        return with_function(module, name, change(module[name]))

    return make


def _calls_out(function: Any) -> Any:
    from tuner.tvm_compat import tvm, tvm_ffi

    def evil(store: Any) -> Any:
        return tirx.BufferStore(store.buffer, tirx.call_extern("float32", "system", 0), store.indices)

    body = tvm_ffi.structural_map(function.body, (tvm.tirx.BufferStore, evil))
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(dict(function.attrs.items()))


def _pragma(function: Any) -> Any:
    from tuner.tvm_compat import tvm_ffi

    def evil(loop: Any) -> Any:
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations={"pragma_import_llvm": "define"}
        )

    body = tvm_ffi.structural_map(function.body, (tirx.For, evil))
    return tirx.PrimFunc(function.params, body, function.ret_type).with_attrs(dict(function.attrs.items()))


FOREIGN: dict[str, tuple[Callable[[], Any], str]] = {
    "an external function": (_foreign("extern"), "ExternFunc"),
    "a packed call": (_foreign("dps"), "call_dps_packed|ExternFunc"),
    "a pure packed call": (_foreign("pure"), "call_pure_packed|ExternFunc"),
    "a print": (_foreign("print"), "relax.print"),
    "a call out of a tensor function": (_with_tensor_function(_calls_out), "tirx.call_extern"),
    "a pragma": (_with_tensor_function(_pragma), "without annotations"),
    "a foreign code generator": (
        _with_tensor_function(lambda function: function.with_attr("Codegen", "evil")),
        "'Codegen' is not allowed",
    ),
    "an attribute of main": (
        lambda: with_function(
            m := relax_model(lambda b, x, w: relax.op.matmul(x, w)), "main", m["main"].with_attr("evil", 1)
        ),
        "'evil' is not allowed",
    ),
    "no main": (lambda: IRModule({"other": product(symbol="other")}), "no function main"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_code_in_a_relax_module_is_refused_by_name(case: str) -> None:
    make, message = FOREIGN[case]
    with pytest.raises(InvalidModel, match=message):
        read_relax(packed(make()), LIMITS)


def test_a_container_that_disagrees_with_its_module_is_refused() -> None:
    module = relax_model(lambda builder, x, w: relax.op.matmul(x, w))
    wrong = (TensorSpec(name="w", shape=(3, 5), dtype="float32"),)
    with pytest.raises(InvalidModel, match="'w' in another shape"):
        read_relax(packed(module, params=wrong), LIMITS)
    with pytest.raises(InvalidModel, match="main takes 2 tensors, the model names 1"):
        read_relax(packed(module, params=()), LIMITS)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"extra": 1},
        {"ir": 7},
        {"inputs": {}},
        {"inputs": [{"name": "x", "shape": [2.5], "dtype": "float32"}]},
        {"params": [{"name": "w"}]},
    ],
)
def test_malformed_containers_are_refused(change: dict[str, Any]) -> None:
    good = json.loads(packed(relax_model(lambda builder, x, w: relax.op.matmul(x, w))))
    with pytest.raises(InvalidModel):
        parse_container(json.dumps(good | change).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 200_000, b"\xff\xfe"])
def test_bytes_that_are_no_container_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidModel):
        parse_container(data)


def test_the_limits_are_sane() -> None:
    # The promise is an answer within 30 s; the wall limit leaves room for starting and reaping the child.
    assert LIMITS.wall_secs < 30
    assert math.isfinite(LIMITS.wall_secs)
    assert isinstance(ir.Op.get("relax.call_tir"), ir.Op)
