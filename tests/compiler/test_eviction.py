"""Eviction: every line of every tensor, and nothing is changed."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.measure import eviction
from tuner.tvm_compat import tvm

TYPES = ("float32", "float16", "bfloat16", "int8", "bool")


@pytest.mark.parametrize("dtype", TYPES)
def test_the_lines_of_a_tensor_are_those_that_its_bytes_lie_in(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(eviction, "prepared", lambda: lambda first, lines: told.append((first, lines)))
    tensor = tvm.runtime.empty((7, 33), dtype)
    eviction.evict([tensor])
    ((first, lines),) = told
    begin, size = int(tensor.data_ptr()), 7 * 33 * {"float32": 4, "int8": 1, "bool": 1}.get(dtype, 2)
    assert first % eviction.LINE_BYTES == 0
    assert first <= begin < first + eviction.LINE_BYTES
    assert first + lines * eviction.LINE_BYTES >= begin + size
    assert first + (lines - 1) * eviction.LINE_BYTES < begin + size


@pytest.mark.parametrize("has", [True, False])
def test_tensors_keep_what_they_hold(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By lines in any order where this processor can, and by TVM where it could not."""
    if not has:
        monkeypatch.setattr(eviction, "prepared", lambda: None)
    values = np.arange(100_000, dtype=np.float32)
    tensors = [tvm.runtime.tensor(values + n) for n in range(2)]
    eviction.evict(tensors)
    for n, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor.numpy(), values + n)


def test_a_processor_without_the_instruction_is_not_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "_flags", lambda: ("fpu", "clflush"))
    eviction.prepared.cache_clear()
    try:
        assert eviction.prepared() is None
    finally:
        eviction.prepared.cache_clear()
