"""Kernels that memory bounds, on a GPU: `benchmarks/memory_bound.py --target cuda`. Bytes per second beside a copy's.

    ours       the operator's default schedule, no trial, imported, compiled and run as it is deployed
    inductor   torch.compile of the same function
    copy       PyTorch's copy of half as many bytes to another place: it reads and writes as much

A row's bytes are what the operator has to read and to write, each once. Each side is called in a CUDA graph of its own,
every call on tensors of its own that exceed the L2 cache together: all come from memory, and nobody pays for launches.
Graphs take turns (rounds.py). Results are compared with PyTorch's in double precision first. The operators are in
memory_bound_cases.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from cuda_graphs import REPLAYS, captured, error_of, timed
from environment import environment, show, target_here
from rounds import geometric_mean

from pitchpipe.wire.target import Target

SHARE = 0.8
"""Of a copy's bandwidth, wanted where more than LARGE bytes are moved."""
LARGE = 4_000_000
OVER_INDUCTOR = 1.2
"""How many times inductor's time a kernel may take."""
CACHES = 3
"""How many times the L2 cache the tensors of all calls of a graph fill ..."""
LEAST_CALLS, MOST_CALLS = 4, 200
"""... within these numbers of calls."""
ROUNDS, QUICK_ROUNDS = 12, 4
LARGEST_ERROR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4, "int64": 0.0}
"""Of a result, relative to its size and the root mean square of all."""
QUICK = ("softmax 4096x1024", "layer norm 1024x768", "transpose 4096x4096", "gelu 4096x3072")


def main(options: Any) -> None:
    """Runs every case and prints the result; ends with an error where a result is wrong."""
    import torch
    from memory_bound_cases import cases

    target = target_here("cuda")
    rounds, found = QUICK_ROUNDS if options.quick else ROUNDS, cases()
    names = QUICK if options.quick else tuple(found)
    result: dict[str, Any] = {"environment": environment(gpu=True, rounds=rounds, replays=REPLAYS), "rows": []}
    with torch.no_grad():
        for name in names:
            result["rows"].append({"operator": name, **row_of(torch, found[name], target, rounds)})
    result["summary"] = summary(result["rows"])
    show(result, options.json)
    if not result["summary"]["all_agree"]:
        raise SystemExit("a result of ours is out of tolerance")


def row_of(torch: Any, case: Any, target: Target, rounds: int) -> dict[str, Any]:
    """Bytes, launches, error and seconds of a case."""
    module = module_of(torch, case)
    generator = torch.Generator("cuda").manual_seed(0)
    first = drawn(torch, case, generator)
    ours = compiled(module, [each.cpu() for each in first], target)
    result = ours(*first)
    expected = module(*(each.double() if each.is_floating_point() else each for each in first))
    error = error_of(torch, result, expected)
    moved = sum(each.numel() * each.element_size() for each in (*first, result)) - case.untouched
    row = {"bytes": moved, "launches": len(ours.program.run), "error": error}
    row["agrees"] = error <= LARGEST_ERROR[str(result.dtype).removeprefix("torch.")]
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    calls = min(max(math.ceil(CACHES * cache / moved), LEAST_CALLS), MOST_CALLS)
    sets = [first, *(drawn(torch, case, generator) for _ in range(calls - 1))]
    torch._dynamo.reset()  # All cases have one code, of which it compiles eight versions and no more.
    inductor = torch.compile(module, dynamic=False)
    for inputs in sets[:2]:
        inductor(*inputs)
    halves = [[torch.zeros(moved // 2, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(calls)]
    sides: dict[str, list[Callable[[], Any]]] = {
        "ours": [lambda inputs=inputs: ours(*inputs) for inputs in sets],
        "inductor": [lambda inputs=inputs: inductor(*inputs) for inputs in sets],
        "copy": [lambda to=to, of=of: to.copy_(of) for to, of in halves],
    }
    secs = timed(torch, {name: captured(torch, side) for name, side in sides.items()}, calls, rounds)
    row |= {f"{name}_secs": value for name, value in secs.items()}
    row |= {"ours_gb_per_sec": moved / secs["ours"] / 1e9, "copy_gb_per_sec": moved / secs["copy"] / 1e9}
    return row | {"share_of_copy": secs["copy"] / secs["ours"], "over_inductor": secs["ours"] / secs["inductor"]}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is met and what is not: the share of a copy's bandwidth of large kernels, and the ratio to inductor's time."""
    large = [row for row in rows if row["bytes"] > LARGE]
    return {
        "all_agree": all(row["agrees"] for row in rows),
        "geomean_share_of_copy": geometric_mean([row["share_of_copy"] for row in large]),
        "worst_share_of_copy": min(row["share_of_copy"] for row in large),
        "below_share": [row["operator"] for row in large if row["share_of_copy"] < SHARE],
        "geomean_over_inductor": geometric_mean([row["over_inductor"] for row in rows]),
        "worst_over_inductor": max(row["over_inductor"] for row in rows),
        "slower_than_inductor": [row["operator"] for row in rows if row["over_inductor"] > OVER_INDUCTOR],
    }


def module_of(torch: Any, case: Any) -> Any:
    """The operator as a module, to be exported and compiled."""

    class Operator(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *tensors: Any) -> Any:
            return case.function(*tensors)

    return Operator().eval()


def drawn(torch: Any, case: Any, generator: Any, device: str = "cuda") -> list[Any]:
    """Tensors for a call: numbers as activations are, and indices below the rows of the table."""
    dtype = getattr(torch, case.dtype)
    found = [torch.randn(shape, device=device, generator=generator).to(dtype) for shape in case.shapes]
    if case.indices_below is not None:
        found[-1] = torch.randint(0, case.indices_below, case.shapes[-1], device=device, generator=generator)
    return found


def compiled(module: Any, inputs: Sequence[Any], target: Target) -> Any:
    """The module as it is deployed, each of its tensor functions with its default schedule."""
    from pitchpipe.gpu.executable import GpuModel
    from pitchpipe.gpu.program import Place
    from tuner.deploy.finish import finish
    from tuner.deploy.gpu_model import compile_gpu_model
    from tuner.graph.prepare import prepare
    from tuner.ingest import parse_container
    from tuner.ingest.torch_export import from_torch
    from tuner.tvm_compat import load_ir, to_tvm_target

    container, *_ = from_torch(module, tuple(inputs))
    prepared = prepare(load_ir(parse_container(container).ir), target)
    with to_tvm_target(target):
        program = compile_gpu_model(finish(prepared, target), target)
    buffers = [program.buffers[at] for at in program.at(Place.INPUT)]
    specs = [SimpleNamespace(name=f"a{at}", shape=one.shape, dtype=one.dtype) for at, one in enumerate(buffers)]
    model = GpuModel(program, specs, [], graphs=False)
    model.bind({})
    return model
