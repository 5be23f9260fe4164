"""Functions that no schedule applies to: what can be is divided among threads, of a GPU and of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.compiler.gpu_cases import arguments_of, on_the_host  # noqa: E402  # needs torch
from tests.compiler.graphs import GPU  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_gpu_model import here  # noqa: E402
from tests.compiler.test_torch_layers import Of  # noqa: E402
from tests.gpu_interpreter import run  # noqa: E402
from tuner.deploy.build import schedule_model  # noqa: E402
from tuner.graph.prepare import prepare, workload_module  # noqa: E402
from tuner.ingest import parse_container  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.schedule.rewrites import THREADS  # noqa: E402
from tuner.target_kinds.cpu import CpuKind  # noqa: E402
from tuner.target_kinds.cuda.default import default_schedule  # noqa: E402
from tuner.tasks import split  # noqa: E402
from tuner.tvm_compat import PrimFunc, load_ir  # noqa: E402

WHOLE = torch.arange(1, 204).reshape(7, 29)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, int]] = {
    # name: (function, arguments, name of the tensor function, its threads)
    "elements that iterate": (torch.gcd, (WHOLE, WHOLE.flip(1)), "gcd", 256),
    "a factorisation": (torch.linalg.inv, (torch.rand(2, 5, 5),), "lu_factor", 2),
    "a solution": (torch.linalg.inv, (torch.rand(2, 5, 5),), "lu_solve", 2),
    "a power series": (torch.matrix_exp, (torch.rand(3, 4, 4),), "matrix_exp", 3),
    "one matrix": (torch.matrix_exp, (torch.rand(4, 4),), "matrix_exp", 1),
}


def functions(function: Callable[..., Any], inputs: tuple[Any, ...], target: Any) -> dict[str, Any]:
    data, _ = from_torch(Of(function).eval(), inputs)
    prepared = prepare(load_ir(parse_container(data).ir), target)
    return {v.name_hint: each for v, each in prepared.functions.items() if isinstance(each, PrimFunc)}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_host_does(name: str) -> None:
    function, inputs, wanted, threads = CASES[name]
    (workload,) = [
        workload_module(each) for name, each in functions(function, inputs, GPU).items() if name.startswith(wanted)
    ]
    given = arguments_of(workload, 0)
    expected, found = on_the_host(workload, given), [each.copy() for each in given]
    (call,) = run(default_schedule(workload, GPU), GPU, found).calls
    assert call.grid[0] * call.block[0] == threads
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_one_has_tasks_on_a_gpu() -> None:
    data, _ = from_torch(Of(lambda x, y: torch.gcd(x, y)).eval(), (WHOLE, WHOLE.flip(1)))
    (task,) = split(prepare(load_ir(parse_container(data).ir), GPU), GPU)
    assert THREADS in task.fixed


@pytest.mark.filterwarnings("ignore")
def test_threads_of_a_cpu_divide_lines_that_do_not_meet() -> None:
    def threads(function: Callable[..., Any], *inputs: Any) -> list[bool]:
        made = functions(function, inputs, TARGET).values()
        return ["T.parallel" in str(CpuKind().default_schedule(workload_module(each), TARGET)) for each in made]

    assert threads(lambda x: x.logcumsumexp(1), torch.rand(64, 100)) == [True]
    assert threads(lambda x: x.logcumsumexp(0), torch.rand(6400, 1)) == [False]
    assert threads(lambda x: x.logcumsumexp(1), torch.rand(4, 10)) == [False]


@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: torch.linalg.solve(x + 4 * torch.eye(5), x), (torch.rand(2, 5, 5),)),
        (torch.bitwise_not, (WHOLE[:, :28].contiguous(),)),
        (lambda x: torch.nextafter(x, x + 1), (torch.rand(7, 32),)),
    ],
    ids=["linear equations", "complements", "next numbers"],
)
def test_it_becomes_machine_code(function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    from tuner.deploy.gpu_model import compile_gpu_model

    data, _ = from_torch(Of(function).eval(), inputs)
    program = compile_gpu_model(schedule_model(parse_container(data), GPU, {}).module, GPU)
    assert program.kernels
