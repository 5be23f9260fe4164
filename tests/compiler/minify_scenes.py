"""Models that are made wrong, or crash, on purpose, each in a fork, so that nothing else is.

    python -m tests.compiler.minify_scenes FOLDER SCENE...

prints a JSON object: what was found, by scene. Each has a folder of its own. Faults are put in before the readers are
imported, so they are there however those are written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pitchpipe.wire.finding import Finding
from pitchpipe.wire.target import Target
from tuner.tvm_compat import relax, tvm

TARGET = Target.parse({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
WALL_SECS = 60.0
RNG = np.random.default_rng(0)


def wrong_ceil() -> None:
    """A converter that takes ceil for floor."""
    relax.op.ceil = relax.op.floor


def wrong_rewrite() -> None:
    """A rewrite that loses negations."""
    from tuner.target_kinds.cpu import rewrites

    def lose_negations(module: Any) -> Any:
        @relax.expr_functor.mutator
        class Losing(relax.PyExprMutator):  # type: ignore[misc]
            def visit_call_(self, call: Any) -> Any:
                call = super().visit_call_(call)
                return call.args[0] if getattr(call.op, "name", "") == "relax.negative" else call

        function = Losing().visit_expr(module["main"])
        module.update_func(module.get_global_var("main"), function)
        return module

    rewrites.REWRITES = replace(rewrites.REWRITES, products=(*rewrites.REWRITES.products, lose_negations))


def torch_model(folder: Path) -> tuple[str, Path]:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: Any, y: Any) -> Any:
            z = torch.ceil(self.first(x)) + torch.neg(y)
            return torch.softmax(self.second(torch.relu(z)), -1), z.mean(1)

    torch.manual_seed(0)
    example = (torch.randn(2, 3, 8), torch.randn(2, 3, 8))
    torch.export.save(torch.export.export(Network().eval(), example), folder / "model.pt2")
    return "pt2", folder / "model.pt2"


def onnx_model(folder: Path) -> tuple[str, Path]:
    from tests.compiler.models import model, node

    weights = {"w": RNG.normal(size=(8, 8)).astype(np.float32), "v": RNG.normal(size=(8, 4)).astype(np.float32)}
    made = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Ceil", ["a"], ["c"], name="round up"),
            node("Neg", ["y"], ["n"], name="turn"),
            node("Add", ["c", "n"], ["z"]),
            node("Relu", ["z"], ["r"]),
            node("MatMul", ["r", "v"], ["m"]),
            node("Softmax", ["m"], ["s"], axis=-1),
        ],
        {"x": [2, 3, 8], "y": [2, 3, 8]},
        ["s", "z"],
        weights,
    )
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    return "onnx", folder / "model.onnx"


def file(make: Callable[[Path], tuple[str, Path]], *faults: Callable[[], None]) -> Callable[[Path], Finding]:
    def scene(folder: Path) -> Finding:
        for fault in faults:
            fault()
        from tuner.minify.driver import minify

        model_format, path = make(folder)
        options = {"inputs": None, "target": TARGET.key, "out": str(folder), "wall_secs": WALL_SECS}
        data = path.read_bytes()
        return Finding.model_validate(minify(data, {}, model_format=model_format, path=str(path), **options))

    return scene


_PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(private=True, s_tir=True)
    def evil(A: T.Buffer((T.int64(16),), "float32"), B: T.Buffer((T.int64(16),), "float32")):
        T.func_attr({{"tirx.noalias": True}})
        for i in T.serial(T.int64(16)):
            with T.sblock("B"):
                vi = T.axis.spatial(T.int64(16), i)
                T.reads(A[vi])
                T.writes(B[vi])
                {misdeed}
                B[vi] = A[vi]

    @R.function
    def main(x: R.Tensor((16,), "float32"), w: R.Tensor((16,), "float32")) -> R.Tensor((16,), "float32"):
        R.func_attr({{"num_input": 1, "global_symbol": "main"}})
        cls = Module
        with R.dataflow():
            a = R.add(x, w)
            b = R.exp(a)
            c = R.call_tir(cls.evil, (b,), out_ty=R.Tensor((16,), "float32"))
            d = R.multiply(c, w)
            e = R.negative(d)
            R.output(e)
        return e
"""


def relax_program(misdeed: str) -> Callable[[Path], Finding]:
    """A program of five operators, the third of which ends the process or does not end."""

    def scene(folder: Path) -> Finding:
        from tvm.script import ir as I
        from tvm.script import relax as R
        from tvm.script import tirx as T

        from tuner.ingest import IngestedModel, TensorSpec
        from tuner.minify.driver import find
        from tuner.minify.relax_graph import RelaxSource
        from tuner.tvm_compat import save_ir

        module = tvm.script.from_source(_PROGRAM.format(misdeed=misdeed), {"T": T, "I": I, "R": R})
        x, w = (TensorSpec(name=name, shape=(16,), dtype="float32") for name in "xw")
        model = IngestedModel(ir=save_ir(module), inputs=(x,), params=(w,))
        array = RNG.normal(size=16).astype(np.float32)
        return find(
            lambda inputs: RelaxSource(model, inputs, {"w": array}, wall_secs=WALL_SECS),
            [[array]],
            TARGET,
            folder,
            wall_secs=WALL_SECS,
        )

    return scene


def task(misdeed: str, *, parallel: bool = True) -> Callable[[Path], Finding]:
    """A workload that is right on one thread only, and a schedule of it."""

    def scene(folder: Path) -> Finding:
        from tests import hostile
        from tuner.minify.task import minify_task

        workload = hostile.hostile(hostile.MISDEEDS["llvm"][misdeed])
        candidate = hostile.parallel(workload) if parallel else hostile.harmless(workload)[1]
        options = {"target": TARGET.key, "label": misdeed, "out": str(folder), "wall_secs": WALL_SECS}
        return Finding.model_validate(minify_task(b"", {}, ir=workload.ir, trace=candidate.trace, **options))

    return scene


SCENES: dict[str, Callable[[Path], Finding]] = {
    "torch, right": file(torch_model),
    "torch, wrong converter": file(torch_model, wrong_ceil),
    "onnx, right": file(onnx_model),
    "onnx, wrong converter": file(onnx_model, wrong_ceil),
    "onnx, wrong rewrite": file(onnx_model, wrong_rewrite),
    "abort": relax_program('T.evaluate(T.call_extern("int32", "abort"))'),
    "task, wrong": task("wrong_output"),
    "task, crash": task("segfault"),
    "task, right": task("wrong_output", parallel=False),
}


def folder_of(folder: Path, scene: str) -> Path:
    return folder / scene.replace(", ", "-").replace(" ", "-")


def main(folder: Path, names: list[str]) -> None:
    from tuner.minify.attempts import in_fork

    found = {}
    for name in names:
        own = folder_of(folder, name)
        own.mkdir()
        ended = in_fork(lambda _, name=name, own=own: SCENES[name](own).model_dump(mode="json"), wall_secs=600)
        found[name] = ended.result or {"failed": str(ended)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
