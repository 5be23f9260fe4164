"""What a compiled model takes and gives: whatever array it is handed, the right numbers, and nobody's memory but its own.

Every program gives (2 x + 1, x), or (not x, x): its second result is its argument, so that what shares memory shows.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pitchpipe.deploy.artifact import CompiledModel, Manifest
from pitchpipe.errors import InvalidInput
from tests.compiler.programs import TARGET
from tuner.deploy.build import build_here
from tuner.ingest import IngestedModel, TensorSpec, container
from tuner.tvm_compat import relax, save_ir

SHAPE = (5, 7)
DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool"]
AWKWARD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "aligned": lambda x: _placed(x, 0),
    "misaligned": lambda x: _placed(x, x.itemsize),
    "on an odd byte": lambda x: _placed(x, 1),
    "strided": lambda x: np.repeat(x, 2, axis=-1)[:, ::2],
    "negative strides": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "repeated": lambda x: np.broadcast_to(x[:1], x.shape),
    "column-major": np.asfortranarray,
    "read-only": lambda x: _read_only(x),
    "big-endian": lambda x: x.astype(_big_endian(x.dtype)),
    "big-endian and strided": lambda x: np.repeat(x, 2, axis=-1)[:, ::2].astype(_big_endian(x.dtype), order="K"),
}


def _placed(x: np.ndarray, offset: int) -> np.ndarray:
    """The same so many bytes behind a multiple of 128."""
    room = np.zeros(x.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 128 + offset
    placed = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    placed[...] = x
    return placed


def _big_endian(dtype: np.dtype) -> np.dtype:
    """NumPy has no such bfloat16."""
    return dtype if dtype == ml_dtypes.bfloat16 else dtype.newbyteorder(">")


def _read_only(x: np.ndarray) -> np.ndarray:
    found = _placed(x, 0)
    found.flags.writeable = False
    return found


@cache
def compiled(dtype: str, shape: tuple[int, ...] = SHAPE) -> CompiledModel:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.logical_not(x) if dtype == "bool" else x * relax.const(2, dtype))
            if dtype != "bool":
                y = builder.emit(y + relax.const(1, dtype))
            both = builder.emit_output(relax.Tuple([y, x]))
        builder.emit_func_output(both)
    module = builder.get()
    module["main"] = module["main"].with_attr("num_input", 1)
    spec = TensorSpec(name="x", shape=shape, dtype=dtype)
    data = container(IngestedModel(ir=save_ir(module), inputs=(spec,), params=()))
    manifest, executable = build_here(data, model_format="relax", target=TARGET.key, traces={})
    return CompiledModel(Manifest.model_validate(manifest), executable, {})


def values(dtype: str, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Small whole numbers: every type has them, and twice them."""
    return np.random.default_rng(0).integers(0, 60, shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def expected(x: np.ndarray) -> list[np.ndarray]:
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    return [~x if x.dtype == bool else (x * x.dtype.type(2) + x.dtype.type(1)).astype(x.dtype), x]


def check(model: CompiledModel, given: Any) -> None:
    """The numbers are right; the argument is as it was; no result shares memory with it, or with the next call's."""
    before, wanted = np.array(given), expected(np.asarray(given))
    first = model(given)
    second = model(given)
    for results in (first, second):
        for found, right in zip(results, wanted, strict=True):
            assert (found.dtype, found.shape) == (right.dtype, right.shape)
            np.testing.assert_array_equal(found, right)
            assert found.flags.writeable
            assert not np.shares_memory(found, np.asarray(given))
    arrays = [*first, *second]
    assert not any(np.shares_memory(a, b) for at, a in enumerate(arrays) for b in arrays[at + 1 :])
    for found in second:
        found[...] = 0
    model(np.zeros_like(before))
    for found, right in zip(first, wanted, strict=True):
        np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(np.asarray(given), before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", AWKWARD)
def test_any_array_of_numpys_is_taken(dtype: str, how: str) -> None:
    check(compiled(dtype), AWKWARD[how](values(dtype)))


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_may_have_no_axes(dtype: str, shape: tuple[int, ...]) -> None:
    check(compiled(dtype, shape), values(dtype, shape))
    if shape == ():
        check(compiled(dtype, shape), values(dtype, shape)[()])


@pytest.mark.parametrize("given", [np.float64, np.int32, np.complex64, "datetime64[s]", object], ids=str)
def test_an_array_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="x "):
        compiled("float32")(np.ones(SHAPE).astype(given))


@pytest.mark.parametrize("shape", [(7, 5), (5,), (5, 7, 1), (), (0,), (5, 0)], ids=str)
def test_an_array_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"must be float32\[5, 7\]"):
        compiled("float32")(np.ones(shape, np.float32))


def test_concurrent_calls_give_each_thread_its_own_results() -> None:
    shape = (256, 256)
    model = compiled("float32", shape)
    given = [values("float32", shape) + np.float32(at) for at in range(4)]

    def wrong(x: np.ndarray) -> int:
        return sum(
            not np.array_equal(found, right)
            for _ in range(100)
            for found, right in zip(model(x), expected(x), strict=True)
        )

    with ThreadPoolExecutor(len(given)) as threads:
        assert list(threads.map(wrong, given)) == [0] * len(given)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_compiled_model_says_why_it_cannot_be_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"call pitchpipe\.load with the same model again"):
        copied(compiled("float32"))
