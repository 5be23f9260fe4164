"""How many kernels a run of a model needs on a GPU: calls of tensor functions after graph preparation. Needs no GPU.

    python benchmarks/kernels.py --json > benchmarks/results/kernels.json        # ten models in three types
    python benchmarks/kernels.py bert_base_s128 --dtypes float16

`calls` counts the calls in one run of a prepared model. `kernels` counts a call once where one kernel can compute its
tensor function, that is where it has one reduction, or where its stages share iterations that none reduces and what one
iteration holds between them fits into the shared memory of a block; else each of its reductions once. `exported` is what
lowering and fusion alone give, without the passes that can be left out. `moving` counts calls that compute nothing.

A model in half precision is the module after `.half()` or `.bfloat16()`, exported; `refused` says why one was not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from environment import environment, models_parser, show
from model_file import models_of

from pitchpipe.errors import PitchpipeError
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.ingest import parse_container
from tuner.space.chain import parallel_iterations
from tuner.space.inlining import inline_producers, is_reduction, root_blocks
from tuner.tvm_compat import Schedule, load_ir, tvm

TARGET = Target.parse(
    {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 232448,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
    }
)
DTYPES = ("float32", "float16", "bfloat16")
WANTED = {"resnet18": 24, "resnet50": 56, "mobilenet_v2": 56, "bert_base_s128": 90, "vit_b16": 95}
"""Kernels, at most."""


def counted(ir: str) -> dict[str, Any]:
    """The row of a model, without its name."""
    rewrites = kind_of(TARGET).rewrites()
    exported = prepare(load_ir(ir), TARGET, without=[*rewrites.products, *rewrites.layout])
    prepared = prepare(load_ir(ir), TARGET)
    counts = call_counts(prepared)
    functions = {name: prepared[name] for name in counts}
    return {
        "exported": sum(call_counts(exported).values()),
        "calls": sum(counts.values()),
        "kernels": sum(kernels(functions[name]) * count for name, count in counts.items()),
        "moving": sum(count for name, count in counts.items() if _only_moves(functions[name])),
        "functions": len(counts),
    }


def kernels(function: Any) -> int:
    """Kernels that a tensor function needs at least, as the module's docstring says."""
    schedule = Schedule(workload_module(function), debug_mask=0, error_render_level="none")
    inline_producers(schedule)
    blocks = root_blocks(schedule)
    reductions = sum(is_reduction(schedule, block) for block in blocks)
    if reductions < 2:
        return 1
    iterations = parallel_iterations(schedule)
    written = {region.source for block in blocks[:-1] for region in schedule.get(block).writes}
    held = sum(np.prod([int(extent) for extent in each.shape]) * _bytes(each) for each in written)
    limit = TARGET.max_shared_memory_per_block or 0
    return 1 if iterations is not None and held / iterations <= limit else reductions


def _bytes(buffer: Any) -> int:
    return int(tvm.DataType(buffer.dtype).bits + 7) // 8


def _only_moves(function: Any) -> bool:
    module = workload_module(function)
    schedule = Schedule(module, debug_mask=0, error_render_level="none")
    is_arithmetic = tvm.s_tir.analysis.estimate_tir_flops(module) > 0
    return not is_arithmetic and not any(is_reduction(schedule, block) for block in root_blocks(schedule))


def rows_of(name: str, builder: Any, dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """A row for every type."""
    import torch

    from tuner.ingest.torch_export import from_torch

    rows = []
    for dtype in dtypes:
        torch.manual_seed(0)
        module, inputs = builder()
        of_type = getattr(torch, dtype)
        given = tuple(each.to(of_type) if each.is_floating_point() else each for each in inputs)
        row: dict[str, Any] = {"model": name, "dtype": dtype}
        try:
            rows.append(row | counted(parse_container(from_torch(module.to(of_type).eval(), given)[0]).ir))
        except PitchpipeError as error:
            rows.append(row | {"refused": error.detail})
    return rows


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    arguments.add_argument("names", nargs="*")
    options = arguments.parse_args()
    models = models_of(options.models)
    names = options.names or (["resnet18"] if options.quick else list(models))
    rows = [row for name in names for row in rows_of(name, models[name], options.dtypes)]
    over = [
        f"{row['model']} {row['dtype']}"
        for row in rows
        if row["model"] in WANTED and row.get("kernels", np.inf) > WANTED[row["model"]]
    ]
    refused = [f"{row['model']} {row['dtype']}" for row in rows if "refused" in row]
    show(
        {"environment": environment(), "rows": rows, "summary": {"more_than_wanted": over, "refused": refused}},
        options.json,
    )


if __name__ == "__main__":
    main()
