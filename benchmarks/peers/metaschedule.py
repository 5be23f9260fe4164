"""Stock MetaSchedule on one program, in a process that knows nothing of ours.

    python benchmarks/peers/metaschedule.py NAME TARGET TRIALS SEED FOLDER

Prints JSON; the records stay in FOLDER as MetaSchedule writes them. LEAN belongs on the PYTHONPATH of every process of
stock's (`lean_path`): it makes them start faster. Device code is compiled by what TVM uses by itself, NVRTC unless
TVM_CUDA_COMPILE_MODE says otherwise, and without StorageRewrite, as who knows TVM 0.27 would set it up: with that pass four
in five tensor-core schedules do not compile ("tvm_access_ptr element type must match the source buffer"). `failures` counts
the trials that gave no time: by whether the build or the run ended so, and how.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

LEAN = Path(__file__).parent / "lean"


def lean_path() -> str:
    """PYTHONPATH of stock's processes: LEAN before what this process has there, where its libraries may lie."""
    return os.pathsep.join([str(LEAN), *filter(None, [os.environ.get("PYTHONPATH")])])


def load_intrinsics(kind: str) -> None:
    """Those that MetaSchedule's rules name for targets of that kind; LEAN leaves them to us."""
    vendor = "cuda" if kind == "cuda" else "x86" if platform.machine() == "x86_64" else "arm_cpu"
    importlib.import_module(f"tvm.s_tir.tensor_intrin.{vendor}")


def program(name: str) -> Any:
    """The tensor program of that name; `GMM-0` is the first shape of GMM in TVM's own set of workloads."""
    import tvm
    from tvm import te, topi

    kind, _, index = name.partition("-")
    if index:
        from tvm.s_tir.meta_schedule.testing.te_workload import create_te_workload

        return tvm.IRModule({"main": create_te_workload(kind, int(index))})
    if name == "conv2d_56x56x64_3x3":
        data = te.placeholder((1, 56, 56, 64), name="data")
        weight = te.placeholder((3, 3, 64, 64), name="weight")
        result = topi.nn.conv2d_nhwc(data, weight, 1, 1, 1)
        return tvm.IRModule({"main": te.create_prim_func([data, weight, result])})
    size = int(name.split("_")[1])
    dtype = "float16" if name.endswith("fp16") else "float32"
    a = te.placeholder((size, size), name="A", dtype=dtype)
    b = te.placeholder((size, size), name="B", dtype=dtype)
    k = te.reduce_axis((0, size), name="k")

    def product(i: Any, j: Any) -> Any:
        return te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    return tvm.IRModule({"main": te.create_prim_func([a, b, te.compute((size, size), product, name="C")])})


def build_for_gpu(mod: Any, target: Any, params: Any) -> Any:
    """MetaSchedule's own build, without StorageRewrite. Runs in the processes of its builder."""
    import tvm
    from tvm.s_tir.meta_schedule.builder.local_builder import default_build

    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        return default_build(mod, target, params)


def counting(failures: Counter[str]) -> Any:
    """A callback of MetaSchedule's that counts what failed."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Counting(ms.measure_callback.PyMeasureCallback):
        def apply(self, _scheduler: Any, _task: int, _candidates: Any, builds: Any, runs: Any) -> None:
            for build, run in zip(builds, runs, strict=True):
                if build.error_msg is not None:
                    failures[failure("build", str(build.error_msg))] += 1
                elif run.error_msg is not None:
                    failures[failure("run", str(run.error_msg))] += 1

    return Counting()


def failure(step: str, message: str) -> str:
    """Which step failed, and whether it ran out of time, which the first line of its message says."""
    first = message.partition("\n")[0]
    return f"{step}_timeout" if ": Timeout, killed after" in first else f"{step}_error"


def main(name: str, target: str, trials: str, seed: str, folder: str) -> None:
    started = time.perf_counter()
    import tvm
    from tvm.s_tir import meta_schedule as ms

    made = tvm.target.Target(json.loads(target))
    load_intrinsics(made.kind.name)
    failures: Counter[str] = Counter()
    callbacks = [counting(failures), *ms.MeasureCallback.create("default")]
    builder = ms.builder.LocalBuilder(f_build=build_for_gpu if made.kind.name == "cuda" else None)
    database = ms.tune_tir(
        program(name), made, folder, int(trials), builder=builder, seed=int(seed), measure_callbacks=callbacks
    )
    secs = time.perf_counter() - started
    records = database.get_all_tuning_records()
    medians = [sorted(map(float, record.run_secs))[len(record.run_secs) // 2] for record in records if record.run_secs]
    valid = [median for median in medians if median < 1e9]  # 1e10 s is how a failure is written
    found = {"secs": secs, "trials": len(records), "timed": len(valid), "failures": failures}
    print(json.dumps({**found, "best_secs": min(valid, default=None)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
