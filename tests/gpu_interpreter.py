"""Runs the kernels of a scheduled GPU module on the host, thread by thread, and reports what a GPU would leave undefined.

The kernels are those from which CUDA C++ is generated: after threads were bound, buffers made smaller and reductions between
threads lowered. All threads of a launch take every statement together (arrays with an element for each thread), those that a
condition leaves out are masked. So a barrier needs no waiting, and what is wrong about barriers is found by remembering who
touched an element of shared memory since the last one:

* `OutOfBounds`: an access outside of its buffer, which the GPU would do or fault on;
* `Race`: two threads of a block touch an element without a barrier between, and one of them writes; or two blocks, or
  two threads in one statement, write different values to an element of a tensor;
* `DivergentBarrier`: a barrier that some threads of a block do not reach;
* values that are read before they are written are no numbers, and so are integers a large one.

Asynchronous copies write when they are waited for: until then their places hold no numbers, and whoever reads them before a
barrier behind the wait is told of a race.

Tensor cores' fragments belong to a warp: `tvm_load_matrix_sync` and its kin act on the warp's whole tile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tuner.measure.gpu_code import Lowered, lowered_of, split_kernels
from tuner.tvm_compat import ir, tirx, to_tvm_target

WARP = 32
_UNWRITTEN = 111


class OutOfBounds(AssertionError):
    """An access outside of its buffer."""


class Race(AssertionError):
    """Two threads touch an element, and one of them writes: in shared memory without a barrier between."""


class DivergentBarrier(AssertionError):
    """Some threads of a block do not reach a barrier."""


def run(scheduled: Any, target: Any, arguments: Sequence[np.ndarray]) -> Lowered:
    """Runs all kernels of a scheduled module in order; writes into `arguments`, the parameters of `main`. Returns what ran,
    with its source and its launches."""
    tvm_target = to_tvm_target(target)
    split, device = split_kernels(scheduled, tvm_target)
    lowered = lowered_of(split, device, tvm_target)
    assert not (stale := stale_operands(lowered.source)), stale
    kernels = {name.name_hint: function for name, function in device.functions_items()}
    flat: list[np.ndarray] = [argument.reshape(-1) for argument in arguments]
    flat += [np.full(size, _UNWRITTEN, dtype=np.uint8) for size in lowered.workspaces]
    for launch in lowered.calls:
        function = kernels[launch.kernel]
        given = dict(zip(function.params, launch.arguments, strict=False))
        buffers = {param: flat[place] for param, place in given.items() if isinstance(place, int)}
        kernel = _Kernel(launch.grid, launch.block, buffers)
        for param, number in given.items():
            if isinstance(number, bytes):
                (kernel.variables[param],) = np.frombuffer(number, dtype_of(param.ty.dtype))
        kernel.run(function.body)
    return lowered


_ATOMIC = {"add_to": np.add, "mul_to": np.multiply, "max_to": np.maximum, "min_to": np.minimum}
"""Functions of tuner/lowering/atomics.py."""
_KEPT = re.compile(r"\s*\w+ (v_\w*) = (.*);")
_STORED = re.compile(r"\s*(?:\*\(\w+\*\)\()?(\w+_ptr)\b[^=;]* = ")


def stale_operands(source: str) -> list[str]:
    """Lines of CUDA C++ that use an operand which TVM's generator keeps in a variable `v_`, after a store to where it was
    read: the interpreter runs what the text was made of, and would not see that."""
    found: list[str] = []
    read: dict[str, str] = {}
    stale: set[str] = set()
    for line in source.splitlines():
        if "__global__" in line or "__device__" in line:
            read, stale = {}, set()
        if stale & set(re.findall(r"\bv_\w*", line)):
            found.append(line)
        if (kept := _KEPT.match(line)) is not None:
            read[kept[1]] = kept[2]
        elif (stored := _STORED.match(line)) is not None:
            stale |= {name for name, text in read.items() if re.search(rf"\b{stored[1]}\b", text)}
    return found


def dtype_of(name: str) -> Any:
    """NumPy's type of the elements of TVM's type, of which vectors have several."""
    name = str(name).split("x")[0] if not str(name).startswith("x") else str(name)
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype("uint8" if name == "handle" else name)


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where values differ; what is no number is alike."""
    return (one != other) & ~((one != one) & (other != other))


@dataclass
class _Memory:
    """A buffer. `data` is [size] in global memory, [blocks, size] in shared memory, [threads, size] in registers, [warps,
    size] in a fragment."""

    data: np.ndarray
    scope: str
    reader: np.ndarray = field(default_factory=lambda: np.zeros(0))
    writer: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def forget(self) -> None:
        self.reader.fill(-1)
        self.writer.fill(-1)


class _Kernel:
    """The state of all threads of one launch."""

    def __init__(self, grid: Sequence[int], block: Sequence[int], buffers: dict[Any, np.ndarray]) -> None:
        self.in_block = math.prod(block)
        self.blocks = math.prod(grid)
        self.threads = self.blocks * self.in_block
        number = np.arange(self.threads)
        self.block_of, self.thread_of = number // self.in_block, number % self.in_block
        self.warps_in_block = -(-self.in_block // WARP)
        self.warp_of = self.block_of * self.warps_in_block + self.thread_of // WARP
        self.axes = {}
        for kind, sizes, index in (("block", grid, self.block_of), ("thread", block, self.thread_of)):
            for axis in "xyz":
                extent = sizes["xyz".index(axis)]
                self.axes[f"{kind}Idx.{axis}"] = index % extent
                index = index // extent
        self.given = buffers
        self.memory: dict[Any, _Memory] = {}
        self.variables: dict[Any, Any] = {}
        self.shared: list[_Memory] = []
        self.copies: list[_Copy] = []
        self.groups: list[list[_Copy]] = []

    def run(self, body: Any) -> None:
        with np.errstate(all="ignore"):
            self.statement(body, np.ones(self.threads, dtype=bool))

    # -- statements

    def statement(self, node: Any, mask: np.ndarray) -> None:
        getattr(self, f"_do_{type(node).__name__}")(node, mask)

    def _do_SeqStmt(self, node: Any, mask: np.ndarray) -> None:
        for item in node.seq:
            self.statement(item, mask)

    def _do_AttrStmt(self, node: Any, mask: np.ndarray) -> None:
        if node.attr_key == "thread_extent":
            self.variables[node.node.var] = self.axes[str(node.node.thread_tag)]
        elif node.attr_key == "async_wait_inflight_count":
            self._wait(int(self.value(node.value, mask)))
        self.statement(node.body, mask)
        if node.attr_key == "async_commit_queue_scope":
            self.groups.append(self.copies)
            self.copies = []

    def _do_AllocBuffer(self, node: Any, mask: np.ndarray) -> None:
        buffer = node.buffer
        scope = str(buffer.scope())
        size = math.prod(int(extent) for extent in buffer.shape)
        if "matrix" in scope or "accumulator" in scope:
            scope, rows = "fragment", self.blocks * self.warps_in_block
        else:
            scope, rows = ("shared", self.blocks) if scope.startswith("shared") else ("local", self.threads)
        dtype = dtype_of(buffer.dtype)
        unwritten = np.nan if dtype.kind in "fV" else _UNWRITTEN
        found = _Memory(np.full((rows, size), unwritten).astype(dtype), scope)
        if scope == "shared":
            found.reader, found.writer = np.full((rows, size), -1), np.full((rows, size), -1)
            self.shared.append(found)
        self.memory[buffer] = found

    def _do_DeclBuffer(self, node: Any, mask: np.ndarray) -> None:
        self.memory[node.buffer] = self._declared(node.data, node.buffer)

    def _declared(self, data: Any, buffer: Any) -> _Memory:
        if data in self.given:
            return _Memory(self.given[data].view(dtype_of(buffer.dtype)), "global")
        of = data.args[0] if isinstance(data, ir.Call) else data
        found = self.memory[of]
        dtype = dtype_of(buffer.dtype)
        if found.data.dtype == dtype:
            return found
        whole = _Memory(found.data.view(dtype), found.scope)
        whole.reader, whole.writer = np.full(whole.data.shape, -1), np.full(whole.data.shape, -1)
        if found.scope == "shared":
            self.shared.append(whole)
        return whole

    def _do_Bind(self, node: Any, mask: np.ndarray) -> None:
        self.variables[node.var] = self.value(node.value, mask)

    def _do_Evaluate(self, node: Any, mask: np.ndarray) -> None:
        if not isinstance(node.value, tirx.IntImm):
            self.value(node.value, mask)

    def _do_IfThenElse(self, node: Any, mask: np.ndarray) -> None:
        condition = np.broadcast_to(self.value(node.condition, mask), mask.shape).astype(bool)
        if (mask & condition).any():
            self.statement(node.then_case, mask & condition)
        if node.else_case is not None and (mask & ~condition).any():
            self.statement(node.else_case, mask & ~condition)

    def _do_For(self, node: Any, mask: np.ndarray) -> None:
        start = np.broadcast_to(self.value(node.min, mask), mask.shape)
        extent = np.broadcast_to(self.value(node.extent, mask), mask.shape)
        for turn in range(int(extent[mask].max(initial=0))):
            self.variables[node.loop_var] = start + turn
            self.statement(node.body, mask & (turn < extent))

    def _do_BufferStore(self, node: Any, mask: np.ndarray) -> None:
        value = self.value(node.value, mask)
        (index,) = node.indices
        at = self.value(index, mask)
        self._write(self.memory[node.buffer], at, value, mask)

    # -- memory

    def _places(self, memory: _Memory, at: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, columns, who), one for each thread that takes part and each lane."""
        at = np.asarray(at)
        lanes = at.shape[1] if at.ndim == 2 else 1
        at = np.broadcast_to(at.reshape(-1, lanes) if at.ndim else at, (self.threads, lanes))[mask]
        size = memory.data.shape[-1]
        if at.size and (at.min() < 0 or at.max() >= size):
            raise OutOfBounds(f"{at.min()} to {at.max()} of {size} elements of {memory.scope} memory")
        who = {"shared": self.block_of, "local": np.arange(self.threads), "global": self.block_of * 0}[memory.scope]
        return (
            np.broadcast_to(who[mask][:, None], at.shape),
            at,
            np.broadcast_to(np.flatnonzero(mask)[:, None], at.shape),
        )

    def _read(self, memory: _Memory, at: Any, mask: np.ndarray) -> np.ndarray:
        rows, columns, who = self._places(memory, at, mask)
        if memory.scope == "shared":
            wrote = memory.writer[rows, columns]
            if ((wrote >= 0) & (wrote != who)).any():
                raise Race("an element of shared memory is read before a barrier after another thread wrote it")
            before = memory.reader[rows, columns]
            memory.reader[rows, columns] = np.where((before == -1) | (before == who), who, -2)
        data = memory.data if memory.data.ndim == 2 else memory.data[None]
        found = np.zeros((self.threads, columns.shape[1]), dtype=memory.data.dtype)
        found[mask] = data[rows, columns]
        return found if np.ndim(at) == 2 else found[:, 0]

    def _write(self, memory: _Memory, at: Any, value: Any, mask: np.ndarray) -> None:
        rows, columns, who = self._places(memory, at, mask)
        value = np.asarray(value)
        lanes = columns.shape[1]
        value = np.broadcast_to(value[:, None] if value.ndim == 1 else value, (self.threads, lanes))[mask]
        if memory.scope == "shared":
            wrote, read = memory.writer[rows, columns], memory.reader[rows, columns]
            others = ((wrote >= 0) & (wrote != who)) | (read == -2) | ((read >= 0) & (read != who))
            if others.any():
                raise Race("an element of shared memory is written before a barrier after another thread used it")
            memory.writer[rows, columns] = who
        elif memory.scope == "global":
            self._note(memory, columns, who, value)
        (memory.data if memory.data.ndim == 2 else memory.data[None])[rows, columns] = value

    def _note(self, memory: _Memory, at: np.ndarray, who: np.ndarray, value: np.ndarray) -> None:
        """Remembers which block writes elements of a tensor. Others may write the same value, and so may threads of the block,
        which take a statement together."""
        if not memory.writer.size:
            memory.writer = np.full(memory.data.shape, -1)
        before = memory.writer[at]
        value = value.astype(memory.data.dtype)
        others = [(before >= 0) & (before != self.block_of[who]) & _differ(memory.data[at], value)]
        memory.writer[at], memory.data[at] = self.block_of[who], value
        others.append(_differ(memory.data[at], value))  # written twice by this statement
        if any(one.any() for one in others):
            raise Race("two threads of a launch write an element of a tensor, and not the same value")

    # -- values: a scalar, [threads], or [threads, lanes]

    def value(self, node: Any, mask: np.ndarray) -> Any:
        name = type(node).__name__
        if name in _BINARY:
            a, b = _aligned(self.value(node.a, mask), self.value(node.b, mask))
            return _BINARY[name](a, b)
        return getattr(self, f"_get_{name}")(node, mask)

    def _get_IntImm(self, node: Any, mask: np.ndarray) -> Any:
        return dtype_of(node.ty.dtype).type(int(node.value))

    def _get_FloatImm(self, node: Any, mask: np.ndarray) -> Any:
        return dtype_of(node.ty.dtype).type(float(node.value))

    def _get_StringImm(self, node: Any, mask: np.ndarray) -> Any:
        return str(node.value)

    def _get_Var(self, node: Any, mask: np.ndarray) -> Any:
        return self.variables[node]

    def _get_Ramp(self, node: Any, mask: np.ndarray) -> Any:
        base = np.broadcast_to(self.value(node.base, mask), (self.threads,))
        return base[:, None] + self.value(node.stride, mask) * np.arange(int(node.lanes))

    def _get_Broadcast(self, node: Any, mask: np.ndarray) -> Any:
        value = np.broadcast_to(self.value(node.value, mask), (self.threads,))
        return np.repeat(value[:, None], int(node.lanes), axis=1)

    def _get_Shuffle(self, node: Any, mask: np.ndarray) -> Any:
        columns = [np.broadcast_to(self.value(v, mask).T, (1, self.threads)).T for v in node.vectors]
        whole = np.concatenate(columns, axis=1)
        picked = whole[:, [int(i) for i in node.indices]]
        return picked if picked.shape[1] > 1 else picked[:, 0]

    def _get_Cast(self, node: Any, mask: np.ndarray) -> Any:
        return np.asarray(self.value(node.value, mask)).astype(dtype_of(node.ty.dtype))

    def _get_Not(self, node: Any, mask: np.ndarray) -> Any:
        return ~np.asarray(self.value(node.a, mask), dtype=bool)

    def _get_BitwiseNot(self, node: Any, mask: np.ndarray) -> Any:
        return ~np.asarray(self.value(node.a, mask))

    def _get_Select(self, node: Any, mask: np.ndarray) -> Any:
        condition = self.value(node.condition, mask)
        a, b = _aligned(self.value(node.true_value, mask), self.value(node.false_value, mask))
        condition, a = _aligned(condition, a)
        return np.where(condition, a, _aligned(a, b)[1])

    def _get_Let(self, node: Any, mask: np.ndarray) -> Any:
        self.variables[node.var] = self.value(node.value, mask)
        return self.value(node.body, mask)

    def _get_TensorLoad(self, node: Any, mask: np.ndarray) -> Any:
        (index,) = node.indices
        return self._read(self.memory[node.source], self.value(index, mask), mask)

    def _get_Call(self, node: Any, mask: np.ndarray) -> Any:
        name = str(node.op.name).split(".", 1)[1]
        arguments = list(node.args)
        if name in ("call_pure_extern", "call_extern"):
            name, *arguments = str(arguments[0].value), *arguments[1:]
        if name == "if_then_else":
            return self._if_then_else(*arguments, mask=mask)
        if name == "tvm_storage_sync":
            return self._barrier(mask)
        if name.removesuffix("_wide") in _ATOMIC:
            return self._combine(name, *arguments, mask=mask)
        if name in ("cuda.__activemask", "tvm_warp_activemask"):
            return np.zeros(self.threads, dtype=np.uint32)
        if "shfl" in name:
            return self._shuffle(name, [self.value(argument, mask) for argument in arguments], mask)
        if name == "s_tir.cp_async_raw":
            return self._copy(dtype_of(node.ty.dtype), *arguments, mask=mask)
        if name.startswith("tvm_") and name.endswith(("_matrix_sync", "mma_sync", "_fragment")):
            return self._fragment(name, arguments, mask)
        values = [np.asarray(self.value(argument, mask)) for argument in arguments]
        if name == "reinterpret":
            return values[0].view(dtype_of(node.ty.dtype))
        name = next((n for n in (name, name.removesuffix("f"), name.removeprefix("h")) if n in _FUNCTIONS), name)
        return _FUNCTIONS[name](*values).astype(dtype_of(node.ty.dtype))

    def _if_then_else(self, condition: Any, then: Any, otherwise: Any, *, mask: np.ndarray) -> Any:
        chosen = np.asarray(self.value(condition, mask), dtype=bool)
        whole = np.broadcast_to(chosen, (self.threads,)) if chosen.ndim < 2 else chosen.any(axis=1)
        a = self.value(then, mask & whole) if (mask & whole).any() else None
        left = ~whole if chosen.ndim < 2 else ~chosen.all(axis=1)
        b = self.value(otherwise, mask & left) if (mask & left).any() else None
        if a is None or b is None:
            return b if a is None else a
        a, b = _aligned(a, b)
        chosen, a = _aligned(chosen, a)
        return np.where(chosen, a, b)

    def _barrier(self, mask: np.ndarray) -> None:
        arrived = mask.reshape(self.blocks, self.in_block)
        if (arrived.any(axis=1) != arrived.all(axis=1)).any():
            raise DivergentBarrier("some threads of a block do not reach a barrier")
        for memory in self.shared:
            memory.forget()

    def _shuffle(self, name: str, values: list[Any], mask: np.ndarray) -> np.ndarray:
        _, value, lane, width = values
        value = np.broadcast_to(value, (self.threads,))
        number = np.arange(self.threads)
        start = self.block_of * self.in_block + self.thread_of // width * width
        within = self.thread_of % width
        wanted = {
            "down": within + lane,
            "up": within - lane,
            "xor": within ^ np.asarray(lane),
            "sync": np.asarray(lane) % width,
        }[next(kind for kind in ("down", "up", "xor", "sync") if kind in name)]
        inside = (wanted >= 0) & (wanted < width) & (start + wanted < (self.block_of + 1) * self.in_block)
        return value[np.where(inside, start + wanted, number)]

    def _combine(self, name: str, pointer: Any, value: Any, *, mask: np.ndarray) -> int:
        """An atomic operation on an element of a tensor, or on four neighbours, of one thread after another."""
        function, wide = _ATOMIC[name.removesuffix("_wide")], name.endswith("_wide")
        memory, at = self._elements(pointer, 4 if wide else 1, mask)
        if wide:
            of, read = self._elements(value, 4, mask)
            values = self._read(of, read, mask)
        else:
            values = np.broadcast_to(self.value(value, mask), (self.threads,))[:, None]
        _, places, _ = self._places(memory, at, mask)
        function.at(memory.data, places, values[mask].astype(memory.data.dtype))
        return 0

    def _elements(self, pointer: Any, count: int, mask: np.ndarray) -> tuple[_Memory, np.ndarray]:
        """The tensor that an address is in, and the elements from there on, which are aligned."""
        (load,) = pointer.args
        (index,) = load.indices
        memory, first = self.memory[load.source], np.broadcast_to(self.value(index, mask), (self.threads,))
        if memory.scope != "global" or (first[mask] % count).any():
            raise OutOfBounds("an atomic operation that is not aligned, or not on a tensor")
        return memory, first[:, None] + np.arange(count)

    # -- asynchronous copies

    def _copy(self, of: Any, to: Any, at: Any, source: Any, start: Any, size: Any, *only: Any, mask: np.ndarray) -> Any:
        """Reads at once, and writes when it is waited for; zeros where the condition `only` does not hold."""
        lanes = np.arange(int(size) // of.itemsize)
        where = np.broadcast_to(self.value(only[0], mask), mask.shape).astype(bool) & mask if only else mask
        places = np.broadcast_to(self.value(at, mask), mask.shape)[:, None] + lanes
        begins = np.broadcast_to(self.value(start, where), mask.shape)[:, None] + lanes
        values = np.zeros((self.threads, len(lanes)), of)
        if where.any():
            values[where] = self._read(self._pointed(source), begins, where)[where]
        target = self._pointed(to)
        for element in (places[mask], begins[where]):
            if (element[:, 0] * of.itemsize % int(size)).any():
                raise OutOfBounds("an asynchronous copy that is not aligned")
        # What another thread still reads or writes must not be overwritten from here on, and not be read until the end.
        self._write(target, places, np.asarray(_UNWRITTEN if of.kind not in "fV" else np.nan, of), mask)
        self.copies.append(_Copy(target, places, values, mask))
        return 0

    def _pointed(self, pointer: Any) -> _Memory:
        return self.memory[pointer.args[0] if isinstance(pointer, ir.Call) else pointer]

    def _wait(self, left: int) -> None:
        """Until no more than the last `left` groups of copies are under way."""
        while len(self.groups) > left:
            for copy in self.groups.pop(0):
                self._write(copy.memory, copy.places, copy.values, copy.mask)

    # -- tensor cores

    def _fragment(self, name: str, arguments: list[Any], mask: np.ndarray) -> None:
        first = np.zeros(self.threads, dtype=bool)
        first[np.unique(self.warp_of[mask], return_index=True)[1] if mask.all() else np.flatnonzero(mask)] = True
        first &= mask & (self.thread_of % WARP == 0)
        warps = self.warp_of[first]
        if name == "tvm_fill_fragment":
            tile = self._tile(arguments[0], arguments[4], mask, first, warps)
            tile.data[tile.rows, tile.columns] = np.asarray(self.value(arguments[5], mask))
        elif name == "tvm_mma_sync":
            d, a, b, c = (self._tile(arguments[2 * i], arguments[2 * i + 1], mask, first, warps) for i in range(4))
            x, y, z = (part.data[part.rows, part.columns].reshape(-1, 16, 16) for part in (a, b, c))
            wide = np.float32 if z.dtype.kind in "fV" else np.int32
            d.data[d.rows, d.columns] = (z + x.astype(wide) @ y.astype(wide)).astype(z.dtype).reshape(len(warps), 256)
        else:
            self._move(name, arguments, mask, first, warps)

    def _tile(self, buffer: Any, index: Any, mask: np.ndarray, first: np.ndarray, warps: np.ndarray) -> Any:
        memory = self.memory[buffer.args[0] if isinstance(buffer, ir.Call) else buffer]
        at = np.broadcast_to(self.value(index, mask), (self.threads,))[first]
        columns = at[:, None] * 256 + np.arange(256)
        if columns.max() >= memory.data.shape[1]:
            raise OutOfBounds("a fragment beyond its buffer")
        return _Tile(memory.data, np.broadcast_to(warps[:, None], columns.shape), columns)

    def _move(self, name: str, arguments: list[Any], mask: np.ndarray, first: np.ndarray, warps: np.ndarray) -> None:
        buffer, _, _, _, index, pointer, stride, layout = arguments
        tile = self._tile(buffer, index, mask, first, warps)
        (element,) = pointer.args
        memory = self.memory[element.source]
        start = np.broadcast_to(self.value(element.indices[0], mask), (self.threads,))[first]
        pitch = int(self.value(stride, mask))
        i, j = np.divmod(np.arange(256), 16)
        offsets = i * pitch + j if str(layout.value) == "row_major" else j * pitch + i
        columns = start[:, None] + offsets
        if columns.min() < 0 or columns.max() >= memory.data.shape[-1]:
            raise OutOfBounds("a fragment is moved from or to beyond a buffer")
        rows = np.broadcast_to(self.block_of[first][:, None], columns.shape)
        who = np.broadcast_to(np.flatnonzero(first)[:, None], columns.shape)
        data = memory.data if memory.data.ndim == 2 else memory.data[None]
        rows = rows if memory.data.ndim == 2 else rows * 0
        if "load" in name:
            if memory.scope == "shared":
                wrote = memory.writer[rows, columns]
                if ((wrote >= 0) & (wrote // WARP != who // WARP)).any():
                    raise Race("a fragment is loaded before a barrier after another warp wrote it")
                memory.reader[rows, columns] = -2
            tile.data[tile.rows, tile.columns] = data[rows, columns]
        else:
            data[rows, columns] = tile.data[tile.rows, tile.columns]
            if memory.scope == "shared":
                memory.writer[rows, columns] = who


@dataclass
class _Copy:
    """Under way into shared memory."""

    memory: _Memory
    places: np.ndarray
    values: np.ndarray
    mask: np.ndarray


@dataclass
class _Tile:
    data: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _aligned(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values, one [threads] and one [threads, lanes] made to meet."""
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim == 1 and b.ndim == 2:
        a = a[:, None]
    if b.ndim == 1 and a.ndim == 2:
        b = b[:, None]
    return a, b


def _truncated(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind == "f" or np.asarray(a).dtype.kind == "V":
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(np.where(b == 0, 1, b)))).astype(np.asarray(a).dtype)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _truncated,
    "Mod": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
    "FloorDiv": lambda a, b: a // np.where(b == 0, 1, b),
    "FloorMod": lambda a, b: a % np.where(b == 0, 1, b),
    "Min": np.fmin,
    "Max": np.fmax,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "RShift": lambda a, b: a >> b,
    "LShift": lambda a, b: a << b,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "floor", "ceil")
    },
    **{name: getattr(np, name) for name in ("trunc", "log1p", "isnan")},
    "__expf": np.exp,
    "__logf": np.log,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "pow": np.power,
    "fabs": np.abs,
    "abs": np.abs,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "round": np.round,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "likely": lambda a: a,
    **dict.fromkeys(("max_or_nan", "__hmax_nan"), np.maximum),
    **dict.fromkeys(("min_or_nan", "__hmin_nan"), np.minimum),
    "fma": lambda a, b, c: a * b + c,
}
