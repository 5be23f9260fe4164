"""What the machine's arithmetic units give at most, measured: the denominator of every share of peak.

    TVM_NUM_THREADS=2 python benchmarks/peak.py          # prints FLOPs a second in float32

Every thread keeps ACCUMULATORS vectors in registers and adds a product to each in turn: no load, no store, no dependence
closer than ACCUMULATORS instructions, so that the units never wait. Twelve hide the latency of a multiply-add (4 cycles
in two units, on today's cores) and fit the 16 registers of AVX2. Of the runs the fastest counts: a disturbance only takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

ACCUMULATORS = 12
LANES = 16
"""Of a vector; LLVM splits it for machines with narrower ones."""
STEPS = 1 << 15
"""Multiply-adds of each accumulator in a run: a tenth of a millisecond or less."""
RUNS = 10_000
"""A second or more, since the threads of a start may share a core until the kernel parts them."""


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


def main() -> None:
    import numpy as np
    import tvm
    from tvm.script import tirx as T

    threads = int(os.environ["TVM_NUM_THREADS"])
    shape = (threads, ACCUMULATORS, LANES)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def chains(x: T.Buffer(shape, "float32"), y: T.Buffer(shape, "float32")):  # type: ignore[valid-type]
        for t in T.parallel(threads):
            with T.sblock("thread"):
                held = T.sblock_alloc_buffer((ACCUMULATORS, LANES), "float32", scope="local")
                for r in T.unroll(ACCUMULATORS):
                    for lane in T.vectorized(LANES):
                        held[r, lane] = x[t, r, lane]
                factor = T.sblock_alloc_buffer((2, LANES), "float32", scope="local")
                for r in T.unroll(2):
                    for lane in T.vectorized(LANES):
                        factor[r, lane] = x[t, r, lane]
                for _ in range(STEPS):
                    for r in T.unroll(ACCUMULATORS):
                        for lane in T.vectorized(LANES):
                            held[r, lane] = held[r, lane] * factor[0, lane] + factor[1, lane]
                for r in T.unroll(ACCUMULATORS):
                    for lane in T.vectorized(LANES):
                        y[t, r, lane] = held[r, lane]

    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    attributes = {"global_symbol": "main", "tirx.noalias": True}
    built = tvm.compile(tvm.IRModule({"main": chains.with_attrs(attributes)}), target=target)
    x, y = (tvm.runtime.tensor(np.full(shape, 0.5, "float32")) for _ in range(2))
    timer = built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=RUNS)
    secs = min(timer(x, y).results)
    print(2.0 * threads * ACCUMULATORS * LANES * STEPS / secs)


if __name__ == "__main__":
    main()
