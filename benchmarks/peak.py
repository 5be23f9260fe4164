"""What the machine's arithmetic units give at most, measured: the denominator of every share of peak.

    python benchmarks/peak.py          # prints FLOPs a second in float32, of TVM_NUM_THREADS threads or as many as cores

Every thread keeps some vectors in registers and adds a product to each in turn: no load, no store, no dependence closer
than their number, so that the units never wait. A multiply-add takes about 4 cycles, in two units of x86 cores and up to
four of Arm's: SHAPES has enough vectors for either, within the 16 registers of AVX2 and the 32 of AVX-512 and NEON, and
what does not suit the machine loses. Of all runs the fastest counts: a disturbance only takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from environment import kernel_threads

SHAPES = ((12, 16), (12, 8), (24, 4))
"""(vectors in registers, floats in a vector)."""
STEPS = 1 << 15
"""Multiply-adds of each vector in a run: a tenth of a millisecond or less."""
RUNS = 5_000
"""Half a second, since the threads of a start may share a core until the kernel parts them."""


def peak(threads: int) -> float:
    """FLOPs a second of so many threads, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout))


def program(threads: int, vectors: int, lanes: int) -> Any:
    """STEPS times h[t, r, l] = h[t, r, l] * x[t, 0, l] + x[t, 1, l], from h = x; the result goes to y."""
    from tvm.script import tirx as T

    shape = (threads, vectors, lanes)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def chains(x: T.Buffer(shape, "float32"), y: T.Buffer(shape, "float32")):  # type: ignore[valid-type]
        for t in T.parallel(threads):
            with T.sblock("thread"):
                held = T.sblock_alloc_buffer((vectors, lanes), "float32", scope="local")
                for r in T.unroll(vectors):
                    for lane in T.vectorized(lanes):
                        held[r, lane] = x[t, r, lane]
                factor = T.sblock_alloc_buffer((2, lanes), "float32", scope="local")
                for r in T.unroll(2):
                    for lane in T.vectorized(lanes):
                        factor[r, lane] = x[t, r, lane]
                for _ in range(STEPS):
                    for r in T.unroll(vectors):
                        for lane in T.vectorized(lanes):
                            held[r, lane] = held[r, lane] * factor[0, lane] + factor[1, lane]
                for r in T.unroll(vectors):
                    for lane in T.vectorized(lanes):
                        y[t, r, lane] = held[r, lane]

    return chains.with_attrs({"global_symbol": "main", "tirx.noalias": True})


def main() -> None:
    import numpy as np
    import tvm

    threads = kernel_threads()
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    found = []
    for vectors, lanes in SHAPES:
        built = tvm.compile(tvm.IRModule({"main": program(threads, vectors, lanes)}), target=target)
        # Halves stay between 0.5 and 1 whatever the steps: no number so small that it slows the units.
        x, y = (tvm.runtime.tensor(np.full((threads, vectors, lanes), 0.5, "float32")) for _ in range(2))
        secs = min(built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=RUNS)(x, y).results)
        found.append(2.0 * threads * vectors * lanes * STEPS / secs)
    print(max(found))


if __name__ == "__main__":
    main()
