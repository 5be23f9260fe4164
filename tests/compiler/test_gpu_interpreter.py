"""The interpreter of GPU kernels: what it computes, and that it finds what a GPU would leave undefined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.gpu_programs import TARGET
from tests.gpu_interpreter import DivergentBarrier, OutOfBounds, Race, _Kernel, _Memory, run, stale_operands
from tuner.tvm_compat import IRModule, Schedule, te, tirx


def copied(extent: int = 96) -> tuple[Any, Any]:
    """A schedule of a copy through shared memory that turns every 32 elements around, and the block that fills it."""
    a = te.placeholder((extent,), "float32", name="A")
    b = te.compute((extent,), lambda i: a[i // 32 * 32 + 31 - i % 32] * 2.0, name="B")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b])}))
    block = schedule.get_sblock("B")
    tile = schedule.cache_read(block, 0, "shared")
    (loop,) = schedule.get_loops(block)
    outer, inner = schedule.split(loop, [None, 32])
    schedule.bind(outer, "blockIdx.x")
    schedule.compute_at(tile, outer)
    schedule.bind(inner, "threadIdx.x")
    schedule.bind(schedule.get_loops(tile)[-1], "threadIdx.x")
    return schedule, tile


def test_threads_of_a_block_exchange_values_through_shared_memory() -> None:
    schedule, _ = copied()
    given = np.arange(96, dtype=np.float32)
    found = np.zeros_like(given)
    run(schedule.mod, TARGET, [given, found])
    np.testing.assert_array_equal(found, 2 * given.reshape(3, 32)[:, ::-1].reshape(-1))


def kernel(body: Any, *, threads: int = 32, size: int = 32) -> np.ndarray:
    """What one block makes of zeros; `body` is a statement of (buffer B, shared buffer S, thread)."""
    given = tirx.decl_buffer((size,), "float32", name="B")
    shared = tirx.decl_buffer((size,), "float32", name="S", scope="shared")
    thread = tirx.Var("thread", "int32")
    made = _Kernel((1, 1, 1), (threads, 1, 1), {})
    result = np.zeros(size, dtype=np.float32)
    made.memory[given] = _Memory(result, "global")
    made.statement(tirx.AllocBuffer(shared), np.ones(threads, dtype=bool))
    made.variables[thread] = made.axes["threadIdx.x"]
    made.run(tirx.SeqStmt(body(given, shared, thread)))
    return result


BARRIER = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def store(buffer: Any, value: Any, index: Any) -> Any:
    return tirx.BufferStore(buffer, value, [index])


def test_a_barrier_too_few_is_a_race() -> None:
    def body(b: Any, s: Any, t: Any, *between: Any) -> list[Any]:
        return [store(s, t.astype("float32"), t), *between, store(b, s[31 - t], t)]

    with pytest.raises(Race):
        kernel(body)
    np.testing.assert_array_equal(kernel(lambda *given: body(*given, BARRIER)), np.arange(32)[::-1])


def test_two_values_for_one_element_are_a_race() -> None:
    def body(same: bool) -> Any:
        def stores(given: Any, _shared: Any, thread: Any) -> list[Any]:
            value = tirx.const(1.0, "float32") if same else thread.astype("float32")
            return [store(given, value, thread // 2), BARRIER]

        return stores

    np.testing.assert_array_equal(kernel(body(True))[:17], [1.0] * 16 + [0.0])
    with pytest.raises(Race, match="not the same value"):
        kernel(body(False))


def test_an_access_past_the_end_is_found() -> None:
    with pytest.raises(OutOfBounds):
        kernel(lambda b, s, t: [store(b, tirx.const(1.0, "float32"), t + 1), BARRIER])


def test_a_barrier_that_some_threads_do_not_reach_is_found() -> None:
    with pytest.raises(DivergentBarrier):
        kernel(lambda b, s, t: [tirx.IfThenElse(t < 7, BARRIER, None), BARRIER])


def test_an_asynchronous_copy_arrives_when_it_is_waited_for() -> None:
    def body(b: Any, s: Any, t: Any, *, waits: bool, meets: bool) -> list[Any]:
        places = [
            tirx.call_intrin("handle", "tirx.buffer_data", s),
            t * 4,
            tirx.call_intrin("handle", "tirx.buffer_data", b),
        ]
        copy = tirx.call_intrin("float32", "tirx.s_tir.cp_async_raw", *places, 28 - t * 4, 16)
        zero, nothing = tirx.const(0, "int32"), tirx.Evaluate(tirx.const(0, "int32"))
        queued = tirx.AttrStmt(
            zero, "async_commit_queue_scope", zero, tirx.IfThenElse(t < 8, tirx.Evaluate(copy), None)
        )
        waited = tirx.AttrStmt(zero, "async_wait_inflight_count", zero, nothing)
        filled = [store(b, t.astype("float32"), t), BARRIER]
        return [*filled, queued, *([waited] if waits else []), *([BARRIER] if meets else []), store(b, s[t], t)]

    turned = np.arange(32).reshape(8, 4)[::-1].reshape(-1)
    np.testing.assert_array_equal(kernel(lambda *given: body(*given, waits=True, meets=True)), turned)
    assert np.isnan(kernel(lambda *given: body(*given, waits=False, meets=True))).all()
    with pytest.raises(Race):
        kernel(lambda *given: body(*given, waits=True, meets=False))


def test_what_was_never_written_is_no_number() -> None:
    assert np.isnan(kernel(lambda b, s, t: [store(b, s[t], t), BARRIER])).all()


def test_bits_are_taken_for_another_type_as_they_are() -> None:
    bits = tirx.const(0x3F800000, "int32")
    found = kernel(lambda b, s, t: [store(b, tirx.reinterpret("float32", bits + t * 0), t), BARRIER])
    np.testing.assert_array_equal(found, np.ones(32))


def test_an_operand_that_was_read_before_a_store_is_found_in_the_text() -> None:
    begin = 'extern "C" __global__ void k(float* a_ptr, float* m_ptr) {'
    read, other = "  float4 v_ = *(float4*)(m_ptr + 0);", "  float4 v__1 = *(float4*)(a_ptr + 4);"
    store, use, fine = "  *(float4*)(m_ptr + 0) = __1;", "  __2.x = f(v_.x, v__1.x);", "  __2.x = f(v__1.x, v__1.x);"
    assert stale_operands("\n".join([begin, read, other, store, use])) == [use]
    assert stale_operands("\n".join([begin, read, other, "  m_ptr[0] = 1.0f;", use])) == [use]
    assert stale_operands("\n".join([begin, read, other, use, store, fine])) == []
    assert stale_operands("\n".join([begin, read, store, begin, read, use])) == [], "another kernel"
