"""The PyTorch functions that a GPU's benchmark compares tasks with: they compute what the tasks compute, on this processor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.model.local import local_model
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.task import Task
from tests.compiler.gpu_programs import HOPPER
from tuner.measure.build import build
from tuner.tvm_compat import load_ir, to_tvm_target, tvm

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

sys.path.insert(0, str(BENCHMARKS))
try:
    import task_table
    from torch_equivalents import equivalents
finally:
    sys.path.remove(str(BENCHMARKS))


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.narrow = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.depthwise = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.wide = torch.nn.Conv2d(32, 32, 1)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        x = torch.relu(self.narrow(x))
        y = torch.nn.functional.relu6(self.depthwise(x))
        return self.head(torch.relu(self.wide(y) + x).mean((2, 3)))


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1000, 64)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(self.table(x))


def on_the_host(task: Task, inputs: list[Any]) -> Any:
    """What the task computes, unscheduled."""
    one = task.signature.arguments[-1]
    result = torch.empty(one.shape, dtype=getattr(torch, one.dtype))
    program = build(*kind_of(task.target).reference_program(load_ir(task.workload.ir), to_tvm_target(task.target)))
    program.main(*map(tvm.runtime.from_dlpack, [*inputs, result]))
    return result


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("module", "example"),
    [(Images, torch.randn(1, 3, 64, 64)), (Rows, torch.randint(0, 1000, (1, 16)))],
    ids=["images", "rows"],
)
def test_every_task_has_an_equivalent_that_computes_what_it_computes(module: Any, example: Any, dtype: str) -> None:
    """Also where the weights are those of TF32, whose axes have another order."""
    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    example = example.to(kind) if example.is_floating_point() else example
    model = local_model(module().to(kind).eval(), (example,), precision="tf32" if dtype == "float32" else "ieee")
    for task in task_table.tasks_of(model, HOPPER):
        inputs = [task_table.drawn(torch, one, generator, "cpu") for one in task.signature.arguments[:-1]]
        made = equivalents(torch, task.signature, inputs)
        found = on_the_host(task, inputs)
        errors = [task_table.error_from(torch, one, found) for one in made]
        assert min(errors) < task_table.LARGEST_ERROR[dtype], task.name
