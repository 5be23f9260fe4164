"""Products whose parts are added by the norm or the softmax that comes next: the same bits in two kernels in place of three."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.program import Buffer, Place
from tests.compiler import template_cases
from tests.compiler.gpu_cases import arguments_of, functions
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.template_cases import STEPS, Case
from tests.compiler.test_templates import ARGUMENTS, SLOW, fitting
from tests.triton_interpreter import run
from tuner.deploy.flow import Flow, Step, Tensor, View
from tuner.deploy.gpu_model import assemble, compile_functions
from tuner.deploy.joining import join_calls
from tuner.templates.contraction import find_contraction
from tuner.templates.joined_source import write_joined
from tuner.templates.kernels import compile_function, followed, marked, source_of
from tuner.templates.rows import find_rows
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, ROWS, checked
from tuner.tvm_compat import IRModule, relax, te, tirx, tvm_ffi

op = relax.op
Make = Callable[[Case], Any]


def norm(case: Case, sequences: int = 0) -> Any:
    """The workload of a norm of a product's result, or of its rows as so many sequences."""
    width = ((case.columns,), case.dtype)
    shape = (sequences, case.rows // sequences, case.columns) if sequences else (case.rows, case.columns)
    (mod,) = functions(lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), (shape, case.dtype), width, width)
    return mod


def centred(read: Callable[..., Any], rows: int, columns: int, case: Case) -> Any:
    """The workload of what a product's result holds at some places, less the sum of a row of these."""
    x = te.placeholder((case.rows, case.columns), case.dtype, name="x")
    k = te.reduce_axis((0, columns), name="k")
    total = te.compute((rows,), lambda i: te.sum(read(x, i, k).astype("float32"), axis=k), name="total")
    found = te.compute((rows, columns), lambda i, j: read(x, i, j).astype("float32") - total[i], name="found")
    return IRModule({"main": te.create_prim_func([x, found])})


def whole(case: Case) -> Any:
    return centred(lambda x, i, j: x[i, j], case.rows, case.columns, case)


def turned(case: Case) -> Any:
    return centred(lambda x, i, j: x[j, i], case.columns, case.rows, case)


def halves(case: Case) -> Any:
    return centred(lambda x, i, j: x[i, j], case.rows, case.columns // 2, case)


def mirrored(case: Case) -> Any:
    return centred(lambda x, i, j: x[i, case.columns - 1 - j], case.rows, case.columns, case)


def padded(case: Case) -> Any:
    zero = tirx.const(0, case.dtype)
    inner = case.columns - 1
    read = lambda x, i, j: tirx.if_then_else(j < inner, x[i, j], zero)  # noqa: E731 - as above
    return centred(read, case.rows, case.columns, case)


def product(**changed: Any) -> Case:
    told = {"batch": 1, "rows": 69, "columns": 40, "length": 256, "dtype": "float16", "turned": (False, True)}
    return Case(**{**told, "steps": (STEPS[0], STEPS[2]), "relu_first": False, **changed})


def texts(template: str = CONTRACTION, **changed: int) -> tuple[Any, Any]:
    chain = checked(ROWS, {"rows": changed.pop("height", 2), "warps": 4, "early": changed.get("early", 0)})
    return checked(template, {**ARGUMENTS, "columns": 32, "parts": 4, "cluster": 1, **changed}), chain


def both(case: Case, make: Make, chosen: tuple[Any, Any], *, keeps: bool) -> Any:
    first, then = template_cases.module(case), make(case)
    found = find_contraction(first), chosen[0], find_rows(then), chosen[1]
    return first, then, write_joined(*found, reads=0, keeps=keeps)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def compared(case: Case, make: Make, chosen: tuple[Any, Any], *, keeps: bool, edit: Any = None) -> bool:
    """Whether two joined kernels give what the separate ones give, to the bit."""
    first, then, source = both(case, make, chosen, keeps=keeps)
    assert len(source.kernels) == 2
    values, others = template_cases.arguments(case, first), arguments_of(then)
    others[-1].view(np.uint8)[...] = 0xFF
    joined = [value.copy() for value in (*values, *others)]
    run(source_of(first, chosen[0]), values)
    others[0][...] = values[-1].reshape(others[0].shape)
    run(source_of(then, chosen[1]), others)
    if edit is not None:
        product, chain = source.kernels
        text = edit(chain.text)
        assert text != chain.text
        source = replace(source, kernels=(product, replace(chain, text=text)))
    joined[len(values)].view(np.uint8)[...] = 0xFF
    run(source, joined)
    kept = bits(joined[len(values) - 1])
    same = np.array_equal(kept, bits(values[-1])) if keeps else bool((kept == 0xFF).all())
    return bool(same and np.array_equal(bits(joined[-1]), bits(others[-1])))


@pytest.mark.long
@pytest.mark.parametrize("template", [CONTRACTION, CONTRACTION_TMA])
@pytest.mark.parametrize("make", [norm, whole])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_chain_adds_the_parts_of_a_product_to_the_same_bits(template: str, make: Make, keeps: bool) -> None:
    assert compared(product(), make, texts(template), keeps=keeps)


@pytest.mark.long
@SLOW
@given(
    rows=st.integers(2, 40),
    columns=st.integers(2, 70),
    steps=st.lists(st.sampled_from(STEPS), max_size=4),
    dtype=st.sampled_from(("float16", "bfloat16", "float32")),
    height=st.sampled_from((1, 2, 8)),
    parts=st.sampled_from((2, 3, 5)),
    keeps=st.booleans(),
)
def test_any_epilogue_is_the_same_there(
    rows: int, columns: int, steps: list[Any], dtype: str, height: int, parts: int, keeps: bool
) -> None:
    case = product(rows=rows, columns=columns, length=96, dtype=dtype, steps=tuple(steps))
    chosen = texts(step=16, rows=16, parts=fitting(96, 16, parts), cluster=0, height=height)
    assert compared(case, whole, chosen, keeps=keeps)


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"parts \+ \(row \* 40", "parts + (row * 41"),
        (r" \+ 5520", " + 2760"),
        (r"(v\d+)\.to\(tl\.float16\)", r"\1.to(tl.bfloat16).to(tl.float16)"),
        (r"tl\.load\(p2 \+", "tl.load(p2 + 1 +"),
        (r"    tl\.store\(p4[^\n]*\n", ""),
    ],
    ids=["row", "part", "rounding", "bias", "not kept"],
)
def test_mistakes_in_it_show(right: str, wrong: str) -> None:
    assert not compared(product(), norm, texts(), keeps=True, edit=lambda text: re.sub(right, wrong, text, count=1))


@pytest.mark.parametrize(
    ("case", "make", "changed", "named"),
    [
        (product(), norm, {"parts": 1, "cluster": 0}, "no chain"),
        (product(), halves, {}, "element by element"),
        (product(), mirrored, {}, "element by element"),
        (product(), turned, {}, "neighbours"),
        (product(), padded, {}, "condition"),
        (product(columns=69), norm, {"height": 128, "parts": 8}, "too many"),
    ],
    ids=["one part", "half", "mirrored", "turned", "padded", "many parts"],
)
def test_what_cannot_be_joined_is_refused(case: Case, make: Make, changed: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidTrace, match=named):
        both(case, make, texts(**changed), keeps=False)


# -- in a model


def flow_of(case: Case, readers: int, *, place: Place = Place.SCRATCH) -> tuple[Flow, dict[str, Any]]:
    """A product, its norm, and as many more readers of the product."""
    first, then = template_cases.module(case), norm(case)
    chosen = texts(step=64, early=1)
    named = {
        "product": marked(first, chosen[0].text)["main"].with_attr("global_symbol", "product"),
        "norm": marked(then, chosen[1].text)["main"].with_attr("global_symbol", "norm"),
    }

    def views(function: Any) -> list[View]:
        found = []
        for param in function.params:
            shape, dtype = tuple(int(extent) for extent in param.ty.shape), str(param.ty.dtype)
            found.append(
                View(
                    tensor=Tensor(buffer=Buffer(place=Place.INPUT, dtype=dtype, shape=shape)), dtype=dtype, shape=shape
                )
            )
        return found

    def written(view: View, place: Place) -> View:
        return replace(view, tensor=Tensor(buffer=replace(view.tensor.buffer, place=place)))

    *given, result = views(named["product"])
    result = written(result, place)
    flow = Flow(run=[Step(function="product", arguments=(*given, result))], inputs=given)
    for _ in range(1 + readers):
        _, *weights, normed = views(named["norm"])
        flow.inputs += weights
        flow.outputs.append(written(normed, Place.OUTPUT))
        flow.run.append(Step(function="norm", arguments=(result, *weights, flow.outputs[-1])))
    if place is Place.OUTPUT:
        flow.outputs.append(result)
    return flow, named


@pytest.mark.parametrize(
    ("readers", "place", "kept"), [(0, Place.SCRATCH, False), (1, Place.SCRATCH, True), (0, Place.OUTPUT, True)]
)
def test_the_first_reader_adds_and_writes_what_others_need(readers: int, place: Place, kept: bool) -> None:
    flow, named = flow_of(product(rows=128, columns=64), readers, place=place)
    join_calls(flow, named)
    assert [step.function for step in flow.run] == [f"product_norm{'_kept' if kept else ''}", *["norm"] * readers]
    lowered, codes = compile_functions({step.function: named[step.function] for step in flow.run}, HOPPER)
    program = assemble(flow, lowered, codes)
    names = [program.kernels[launch.kernel].name for launch in program.run]
    assert names == ["contraction", "rows", *["rows"] * readers]
    assert [launch.cluster for launch in program.run] == [(1, 1, 1)] * len(names)
    assert [launch.programmatic for launch in program.run] == [False, *[True] * (len(names) - 1)]
    size = program.buffers[-1].size_bytes if kept is False else 0
    assert size in (0, 4 * 128 * 64 * 4), "the parts, and no result"


def test_what_was_joined_is_not_joined_again() -> None:
    """A norm of a norm: its workload could stand in the place of the first one's."""
    flow, named = flow_of(product(), 0)
    first = flow.run[1].arguments
    again = replace(flow.outputs[0], tensor=Tensor(buffer=flow.outputs[0].tensor.buffer))
    flow.run.append(Step(function="norm", arguments=(first[-1], *first[1:-1], again)))
    flow.outputs[0].tensor.buffer = replace(again.tensor.buffer, place=Place.SCRATCH)
    flow.outputs[:] = [again]
    join_calls(flow, named)
    assert [step.function for step in flow.run] == ["product_norm", "norm"]


def test_joined_functions_that_differ_in_what_follows_are_two() -> None:
    first, then = template_cases.module(product()), norm(product())
    chosen = texts()
    both = [
        followed(
            marked(first, chosen[0].text)["main"],
            marked(then, checked(ROWS, {"rows": rows, "warps": 4, "early": 0}).text)["main"],
            reads=0,
            keeps=False,
        )
        for rows in (1, 1, 2)
    ]
    assert tvm_ffi.structural_equal(both[0], both[1])
    assert not tvm_ffi.structural_equal(both[0], both[2])
    assert tvm_ffi.structural_hash(both[0]) == tvm_ffi.structural_hash(both[1])


def test_calls_that_are_no_neighbours_stay_two() -> None:
    flow, named = flow_of(product(), 0)
    between = Step(function="norm", arguments=flow_of(product(), 0)[0].run[1].arguments)
    flow.run.insert(1, between)
    join_calls(flow, named)
    assert [step.function for step in flow.run] == ["product", "norm", "norm"]


def test_a_norm_of_the_rows_of_several_sequences_stays_a_call() -> None:
    """Its indices are others than those of the product's result, though it is the same tensor."""
    case = product(rows=128, columns=64)
    flow, named = flow_of(case, 0)
    then = marked(norm(case, sequences=2), texts(step=64, early=1)[1].text)["main"]
    named["norm"] = then.with_attr("global_symbol", "norm")
    (result, *others), shape = flow.run[1].arguments, tuple(int(extent) for extent in then.params[0].ty.shape)
    flow.run[1] = replace(flow.run[1], arguments=(replace(result, shape=shape), *others))
    join_calls(flow, named)
    assert [step.function for step in flow.run] == ["product", "norm"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_joined_functions_compile_for_every_architecture(arch: str) -> None:
    flow, named = flow_of(product(), 1)
    if arch == "sm_80":
        first, then = (marked_again(function) for function in named.values())
        named = {"product": first, "norm": then}
    count = len(named["product"].params)
    join_calls(flow, named)
    found = compile_function(named["product_norm_kept"], arch)
    assert [launch.kernel for launch in found.launches] == ["contraction", "rows"]
    assert found.workspaces == (4 * 69 * 40 * 4,)
    assert found.launches[0].arguments[2] == found.launches[1].arguments[-3] == count + 4
    assert count - 1 in found.launches[1].arguments, "the result is written"


def marked_again(function: Any) -> Any:
    """The function with a template that needs no launch to begin early."""
    chain = len(function.params) == 4
    return function.with_attr("pitchpipe.template", texts()[1 if chain else 0].text)
