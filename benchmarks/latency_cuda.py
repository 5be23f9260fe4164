"""Latency of whole models on a GPU, `benchmarks/latency.py --target cuda`: PyTorch eager, modes of torch.compile, ours.

Each model runs in float16, bfloat16 and float32, with a batch of 1 and of 8 (`--dtypes`, `--batches`), each in a process of
its own, in which all contestants are set up and then take turns. torch.compile has what its best user gives it: evaluation
mode without gradients, frozen weights (batch norms are folded), images channels last, and inductor's own CUDA graphs in
`reduce-overhead` and `max-autotune`. In float32 everybody may use TF32 for products and convolutions. Ours is tuned through
the SDK on an embedded service from an empty database within --seconds, alone and inside the model, export, service and
confirming included, and called with GPU tensors. With `--seconds 0` it is not tuned: what runs are the default schedules.

    wall     seconds of a call and of waiting for it, the median of a block
    queued   seconds a call where the calls of a block are queued and waited for together: what the device takes
    kernels  sum of the durations of all kernels of a call, and their number, from PyTorch's profiler; of ours the number
             alone, since each begins before those before it have ended (ADR 0062)

Rounds are interleaved (rounds.py). `error` is the largest |a_i - r_i| / (|r_i| + s) with r from eager in float32 without
TF32 and s its root mean square, for every contestant: eager's own says what the type costs. `table` has the costliest
tasks beside cuDNN, cuBLAS and inductor (task_table.py), `failures` the failed trials by kind, `absent_peers` the modes of
torch.compile that fail, and how.

`--peers` may name `torch_backend` too: torch.compile(backend="pitchpipe") in its mode reduce-overhead, with what that tuning
left in its database and cache, beside `pitchpipe.load`. It is no peer, and a row has it apart. Its `partitions` tell who
serves each, as in pitchpipe.torch_backend.reports().

`--work FOLDER` keeps each row there as soon as it is measured, with its commit and date, and does not measure again what is
there, so that a long run can be made in parts. `--compile-ahead N` first compiles the peers' programs in N processes into
inductor's cache on disk: fewer minutes of the GPU; `setup_secs` are then those of these processes, which slow each other
down. max-autotune is never compiled ahead, since it times what it compiles. `--jobs N` sets up N cases side by side, and
times one after another while the others wait; with budgets of seconds they would share the cores that tune.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from case_process import row_of, rows_of, wait_for_turn
from cuda_contestants import (
    FACTOR,
    LEAST_ERROR,
    SEED,
    backend_call,
    error_of,
    first,
    partitions,
    reference_of,
    torch_call,
    tuned_model,
)
from environment import commit, environment, kernel_threads, show
from model_file import models_of
from rounds import geometric_mean, orders, ratio_of, time_of

DTYPES = ("float16", "bfloat16", "float32")
BATCHES = (1, 8)
PEERS = ("eager", "compile", "reduce-overhead", "max-autotune")
QUICK_PEERS = ("eager", "reduce-overhead")
BACKEND = "torch_backend"
MODELS = 5
"""The first so many of the file."""
SECONDS = 150.0
ROUNDS, QUICK_ROUNDS = 12, 6
BLOCK = 30
"""Calls of a block."""


def main(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Runs every case and prints the result."""
    dtypes = options.dtypes.split(",") if options.dtypes else DTYPES[:1] if options.quick else DTYPES
    batches = (
        [int(text) for text in options.batches.split(",")] if options.batches else BATCHES[: 1 if options.quick else 2]
    )
    peers = options.peers.split(",") if options.peers else QUICK_PEERS if options.quick else PEERS
    rounds = QUICK_ROUNDS if options.quick else options.rounds or ROUNDS
    seconds = options.seconds if options.seconds is not None else 40.0 if options.quick else SECONDS
    budget = {"seconds": seconds, "rounds": rounds, "block": BLOCK, "peers": list(peers)}
    result: dict[str, Any] = {"environment": environment(gpu=True, **budget), "rows": []}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/inductor"
        cases = [
            {"model": name, "dtype": dtype, "batch": batch, "peers": list(peers), "rounds": rounds, "seconds": seconds}
            | {"models": str(options.models.absolute()), "scratch": scratch, "tasks": options.tasks}
            for name in names
            for dtype in dtypes
            for batch in batches
        ]
        with suppress(KeyboardInterrupt):  # What is measured by then is printed.
            missing = [case for case in cases if not row_file(work, case).exists()]
            ahead = compiled_ahead(missing, options.compile_ahead) if options.compile_ahead else [{}] * len(missing)
            for first_of in range(0, len(missing), options.jobs):
                together = missing[first_of : first_of + options.jobs]
                setups = ahead[first_of : first_of + options.jobs]
                for case, setup, found in zip(together, setups, rows_of(__file__, together), strict=True):
                    row = {**identity(case), **found}
                    for peer, secs in setup.items():
                        if peer in row.get("peers", {}):
                            row["peers"][peer]["setup_secs"] = secs
                    if "wall_secs" in row:
                        row_file(work, case).write_text(json.dumps(row))
                    print(json.dumps({key: row.get(key) for key in SHOWN}), file=sys.stderr)
                    case["refused"] = row.get("refused")
        for case in cases:
            file = row_file(work, case)
            without = {**identity(case), "refused": case.get("refused") or "it was interrupted"}
            result["rows"].append(json.loads(file.read_text()) if file.exists() else without)
    result["summary"] = summary(result["rows"])
    show(
        result if options.json else {**result, "rows": [{k: r.get(k) for k in SHOWN} for r in result["rows"]]},
        options.json,
    )
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("an output of ours is out of tolerance, or a model did not run")


SHOWN = (
    "model",
    "dtype",
    "batch",
    "wall_secs",
    "queued_secs",
    "kernel_secs",
    "kernels",
    "best_peer_over_ours",
    "refused",
)


def identity(case: dict[str, Any]) -> dict[str, Any]:
    return {key: case[key] for key in ("model", "dtype", "batch")}


def row_file(work: Path, case: dict[str, Any]) -> Path:
    return work / f"{case['model']}-{case['dtype']}-{case['batch']}.json"


def compiled_ahead(cases: Sequence[dict[str, Any]], processes: int) -> list[dict[str, float]]:
    """By case: the seconds in which each of torch.compile's modes but max-autotune was compiled into the cache on disk."""

    def one(case: dict[str, Any]) -> dict[str, float]:
        modes = [peer for peer in case["peers"] if peer not in ("eager", "max-autotune", BACKEND)]
        row = row_of(__file__, {**case, "peers": modes, "only_compile": True})
        return {peer: row[peer] for peer in modes if peer in row}

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, cases))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all rows, and by type and batch."""
    ran = [row for row in rows if not row.get("refused")]
    groups = sorted({(row["dtype"], row["batch"]) for row in ran})
    return {
        "geomean_vs_best_peer": geometric_mean([row["best_peer_over_ours"] for row in ran]) if ran else None,
        "worst_vs_best_peer": min((row["best_peer_over_ours"] for row in ran), default=None),
        "worst_vs_eager": min((row["peers"]["eager"]["queued_over_ours"] for row in ran), default=None),
        "refused": [
            f"{row['model']} {row['dtype']} {row['batch']}: {row['refused']}" for row in rows if row.get("refused")
        ],
        "outputs_within_tolerance": len(ran) == len(rows) and all(row["within_tolerance"] for row in ran),
        "geomean_vs_best_peer_by_group": {
            f"{dtype} x{batch}": geometric_mean(
                [row["best_peer_over_ours"] for row in ran if (row["dtype"], row["batch"]) == (dtype, batch)]
            )
            for dtype, batch in groups
        },
    }


# -- the process of one case


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Sets all contestants up and lets them take turns; with `only_compile` the seconds of each one's set-up, by name."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("high")
    # Each contestant is captured for what it is given, whatever the others were given before.
    torch._dynamo.config.automatic_dynamic_shapes = False
    dtype = getattr(torch, case["dtype"])
    torch.manual_seed(SEED)
    module, inputs = models_of(case["models"])[case["model"]]()
    inputs = tuple(torch.cat([x] * case["batch"]) if x.dim() else x for x in inputs)
    reference = None if case.get("only_compile") else reference_of(torch, module, inputs)
    module = module.to("cuda", dtype)
    inputs = tuple(x.to("cuda", dtype if x.is_floating_point() else x.dtype) for x in inputs)
    images = tuple(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs)
    lasting = module.to(memory_format=torch.channels_last) if any(x.dim() == 4 for x in inputs) else module

    calls: dict[str, Callable[[], Any]] = {}
    setup: dict[str, float] = {}

    def set_up(name: str, made: Callable[[], Callable[[], Any]], warm: int = 5) -> None:
        began = time.perf_counter()
        calls[name] = made()
        for _ in range(warm):
            calls[name]()
        torch.cuda.synchronize()
        setup[name] = time.perf_counter() - began

    absent: dict[str, str] = {}  # modes of torch.compile that fail
    for peer in case["peers"]:
        if peer != BACKEND:
            try:
                set_up(peer, partial(torch_call, torch, lasting, images, peer))
            except Exception as error:
                if peer == "eager":
                    raise
                absent[peer] = f"{type(error).__name__}: {error}"[:300]
                calls.pop(peer, None)
    if case.get("only_compile"):
        return setup
    began, folder = time.perf_counter(), Path(tempfile.mkdtemp(dir=case["scratch"]))
    ours, tuned, table = tuned_model(module, inputs, case, folder)
    set_up("ours", lambda: partial(ours, *inputs), warm=1)
    setup["ours"] = time.perf_counter() - began
    if BACKEND in case["peers"]:
        set_up(BACKEND, partial(backend_call, torch, module, inputs, folder))

    wait_for_turn()
    errors = {name: error_of(first(call()), reference) for name, call in calls.items()}
    walls, queues = take_turns(torch, calls, case["rounds"])
    kernels = {name: kernels_of(torch, call) for name, call in calls.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name in calls:
        wall, queued = time_of(walls[name]), time_of(queues[name])
        over = ratio_of(queues[name], queues["ours"])
        rows[name] = {
            "wall_secs": wall.value,
            "wall_secs_interval": [wall.low, wall.high],
            "queued_secs": queued.value,
            "queued_secs_interval": [queued.low, queued.high],
            "queued_over_ours": over.value,
            "queued_over_ours_interval": [over.low, over.high],
            "wall_over_ours": ratio_of(walls[name], walls["ours"]).value,
            "kernel_secs": None if name in ("ours", BACKEND) else kernels[name][0],
            "kernels": kernels[name][1],
            "error": errors[name],
            "setup_secs": setup[name],
        }
    mine, backend = rows.pop("ours"), rows.pop(BACKEND, None)
    best = min(rows, key=lambda peer: rows[peer]["queued_secs"])
    allowed = max(LEAST_ERROR[case["dtype"]], FACTOR * rows["eager"]["error"])
    return {
        **{key: value for key, value in mine.items() if "over_ours" not in key},
        "commit": commit(),
        "measured_on": datetime.now(UTC).date().isoformat(),
        "within_tolerance": mine["error"] <= allowed,
        "best_peer": best,
        "best_peer_over_ours": rows[best]["queued_over_ours"],
        "peers": rows,
        **({"absent_peers": absent} if absent else {}),
        **({} if backend is None else {BACKEND: {**backend, "partitions": partitions()}}),
        **tuned,
        "table": table(),
    }


def take_turns(
    torch: Any, calls: dict[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[list[float]]], dict[str, list[list[float]]]]:
    """By contestant and round: seconds of each call with a wait, and of each call of a queue."""
    names = list(calls)
    walls: dict[str, list[list[float]]] = {name: [] for name in names}
    queues: dict[str, list[list[float]]] = {name: [] for name in names}
    for order in orders(len(names), rounds):
        for name in (names[place] for place in order):
            call = calls[name]
            call()
            torch.cuda.synchronize()
            block = []
            for _ in range(BLOCK):
                began = time.perf_counter()
                call()
                torch.cuda.synchronize()
                block.append(time.perf_counter() - began)
            walls[name].append(block)
            began = time.perf_counter()
            for _ in range(BLOCK):
                call()
            torch.cuda.synchronize()
            queues[name].append([(time.perf_counter() - began) / BLOCK])
    return walls, queues


def kernels_of(torch: Any, call: Callable[[], Any], calls: int = 5) -> tuple[float, float]:
    """Seconds of all kernels and copies of a call, and how many there are."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    events = [event for event in found.events() if event.device_type.name == "CUDA"]
    return sum(event.device_time for event in events) * 1e-6 / calls, len(events) / calls


if __name__ == "__main__":
    kernel_threads()
    print(json.dumps(run_case(json.loads(Path(sys.argv[1]).read_text()))))
