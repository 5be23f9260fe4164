"""Latency of whole models: PyTorch eager, inductor, ONNX Runtime, OpenVINO, stock MetaSchedule and this, in turn.

    python benchmarks/latency.py --json > benchmarks/results/latency.json
    python benchmarks/latency.py --work build/latency --only resnet18 --phase tune
    python benchmarks/latency.py --work build/latency --only resnet18 --phase time --json
    python benchmarks/latency.py --models benchmarks/recurrent.py --json > benchmarks/results/recurrent.json
    python benchmarks/latency.py --target cuda --json > benchmarks/results/latency_cuda.json     (latency_cuda.py says how)

Models are those of models.py, or of the file that `--models` names: MODELS, name -> builder() -> (module, example inputs).

Phases. *Tune*: ours through the SDK on an embedded service, from an empty database, everything included (export,
service start, ingest, search, confirming) within the model's seconds; then stock MetaSchedule for as many seconds as that
took, and on to --stock-seconds where that is longer. Results stay in --work; what is there is not done again, and the row
says that it was reused. *Time*: every peer and ours in a process of its own (peers/contestant.py), set up one after
another, then timed in turn on the same threads, those whose turn it is not stopped; rounds.py says how the figures are
made. *Report* puts the rows together that timing phases left in --work, so that a long run can be made model by model.

Outputs are compared with eager's on the same weights and input: an element may differ by TOLERANCE * (|r_i| + s), r the
reference and s its root mean square, so that cancelled elements are judged by the size of their terms. What is outside is
no peer, and of ours a failure. A model that no peer is left of has no `best_peer`, and is in no mean.

`flops` are those of products and convolutions, direct, as PyTorch counts them; `floor_secs` is flops over the peak measured
beside the timing (peak.py); `share_of_floor` = floor_secs / ours, which Winograd may bring above 1.

Time to stock's final latency: at each second of our tuning the model is taken to run every task's best candidate so far,
the baseline before there is one; the sum of these times is scaled by (latency measured in the end) / (last sum)
where that is above 1, since a model costs more than its parts. `time_to_stock_secs` is when that first was at most stock's
measured final latency, counted from before the service started. The series begins when the model has been split into tasks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import latency_cuda
import numpy as np
from contestants import Contestant, ContestantFailed, take_turns
from environment import environment, models_parser, names_chosen, show
from model_file import models_of
from model_tuning import tune_ours, tune_stock, write
from peak import peak
from peers.contestant import PEERS
from rounds import first_at_most, geometric_mean, ratio_of, time_of

from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.target import Target
from workers.device import detect_target

HERE = Path(__file__).parent
SECONDS, QUICK_SECONDS = {"resnet18": 300.0, "bert_base_s128": 300.0}, 40.0
OTHERS_SECONDS = 600.0
ROUNDS, QUICK_ROUNDS = 14, 6
"""With seven contestants, each has every place once in 14 rounds; six are the fewest that give a 95 % interval."""
TOLERANCE = 1e-3
"""Of float32 through 50 layers and more, with transforms of Winograd's kind allowed; measured: 1e-6 to 1e-5."""
STOCK = ("metaschedule", "metaschedule_longer")
OF_OTHERS = {"torch_backend"}
"""Contestants of another script, which take part only where they are named."""
QUICK_PEERS = ("eager", "inductor", "onnxruntime", "openvino")
"""Those that are set up in seconds."""
LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Of peers that need not be installed: the module that they are imported by."""


def tune(name: str, options: Any, folder: Path, target: Target) -> bool:
    """The tuning phase of one model: what is not in the folder yet. Whether ours was tuned."""
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS.get(name, OTHERS_SECONDS))
    if new := not (folder / "ours.json").exists():
        database = options.database or f"sqlite:///{folder.absolute()}/pitchpipe.db"
        write(folder / "ours.json", tune_ours(name, options.models, seconds, database, target))
    if STOCK[0] in options.peers and not (folder / "stock.json").exists():
        same = json.loads((folder / "ours.json").read_text())["tuning_secs"]
        longer = max(same, options.stock_seconds or 0.0)
        write(folder / "stock.json", tune_stock(name, options.models, same, longer, folder, target))
    return new


def time_model(name: str, options: Any, folder: Path, target: Target) -> dict[str, Any]:
    """The timing phase of one model: its row."""
    variables = {
        "TVM_NUM_THREADS": str(target.num_cores or 1),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.absolute() / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # No pool of compilers that lives on beside the timing.
    }
    load = os.getloadavg()[0]
    script = str(HERE / "peers" / "contestant.py")
    for needed in ("ours.json", *(["stock.json"] if STOCK[0] in options.peers else [])):
        if not (folder / needed).exists():
            raise SystemExit(f"{folder} has no {needed}: --phase tune makes it")
    stock = json.loads((folder / "stock.json").read_text()) if STOCK[0] in options.peers else None
    names = [peer for peer in PEERS if peer in options.peers]
    if stock is not None and stock["stock_longer"]["trials"] > stock["stock"]["trials"]:
        names.append(STOCK[1])
    names.append("ours")
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        contestants = []
        for peer in names:
            command = [script, peer, str(options.models.absolute()), name, str(folder.absolute())]
            contestant = stack.enter_context(Contestant(peer, command, variables, folder / f"{peer}.log"))
            try:
                told[peer] = contestant.ready()
            except ContestantFailed as error:
                if peer == "ours":
                    raise
                print(error, file=sys.stderr)
                continue
            contestants.append(contestant)
        before = peak(target.num_cores or 1)
        blocks = take_turns(contestants, QUICK_ROUNDS if options.quick else options.rounds)
        peak_flops = max(before, peak(target.num_cores or 1))
    found = row(name, told, blocks, peak_flops, json.loads((folder / "ours.json").read_text()), stock)
    return {**found, "timed_on": datetime.now(UTC).date().isoformat(), "load_before": load}


def row(
    name: str,
    told: dict[str, dict[str, Any]],
    blocks: dict[str, list[list[float]]],
    peak_flops: float,
    tuned: dict[str, Any],
    stock: dict[str, Any] | None,
) -> dict[str, Any]:
    reference = np.load(told["eager"]["output"])
    peers: dict[str, dict[str, Any]] = {}
    for peer, found in blocks.items():
        secs, over = time_of(found), ratio_of(found, blocks["ours"])
        error = deviation(np.load(told[peer]["output"]), reference)
        peers[peer] = {
            "secs": secs.value,
            "secs_interval": [secs.low, secs.high],
            "over_ours": over.value,
            "over_ours_interval": [over.low, over.high],
            "deviation": error,
            "within_tolerance": error <= TOLERANCE,
            "setup_secs": told[peer]["setup_secs"],
            "runs": sum(map(len, found)),
        }
    mine = peers.pop("ours")
    for peer in peers:
        if not peers[peer]["within_tolerance"]:
            print(
                f"{name}: {peer} is no peer, its output is {peers[peer]['deviation']:.1e} off eager's", file=sys.stderr
            )
    compared = [peer for peer in peers if peers[peer]["within_tolerance"]]
    best = min(compared, key=lambda peer: peers[peer]["secs"], default=None)
    flops = told["eager"]["flops"]
    return {
        "model": name,
        "ours_secs": mine["secs"],
        "ours_secs_interval": mine["secs_interval"],
        "best_peer": best,
        "best_peer_over_ours": None if best is None else peers[best]["over_ours"],
        "best_peer_over_ours_interval": None if best is None else peers[best]["over_ours_interval"],
        "deviation": mine["deviation"],
        "within_tolerance": mine["within_tolerance"],
        "flops": flops,
        "peak_flops_per_sec": peak_flops,
        "floor_secs": flops / peak_flops,
        "share_of_floor": flops / peak_flops / mine["secs"],
        "peers": peers,
        **{
            key: tuned[key]
            for key in ("tuning_secs", "trials", "failed_trials", "reused_tasks", "database", "tuned_on")
        },
        "load_secs": mine["setup_secs"],
        **against_stock(tuned, mine["secs"], stock, peers),
        "tasks": tuned["tasks"],
        "series": tuned["series"],
    }


def against_stock(
    tuned: dict[str, Any], ours_secs: float, stock: dict[str, Any] | None, peers: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """How soon ours was as fast as what stock ended with."""
    last = next((peer for peer in reversed(STOCK) if peer in peers), None)
    if stock is None or last is None:
        return {"stock": stock}
    final, spent = peers[last]["secs"], stock["stock_longer" if last == STOCK[1] else "stock"]["secs"]
    scale = max(1.0, ours_secs / tuned["series"][-1][1])
    reached = first_at_most([(when, scale * secs) for when, secs in tuned["series"]], final)
    return {
        "stock": stock,
        "stock_final_secs": final,
        "stock_tuning_secs": spent,
        "time_to_stock_secs": reached,
        "stock_tuning_over_time_to_stock": None if not reached else spent / reached,
    }


def deviation(output: np.ndarray, reference: np.ndarray) -> float:
    """Largest |a_i - r_i| / (|r_i| + s), s the root mean square of r; infinite for another shape or a number that is
    none."""
    if output.shape != reference.shape or not np.isfinite(output).all():
        return float("inf")
    r = reference.astype(np.float64)
    off = np.abs(output - r)
    allowed = np.abs(r) + np.sqrt(np.mean(r * r))
    with np.errstate(divide="ignore"):  # where all of r is zero
        return float(np.divide(off, allowed, out=np.zeros_like(off), where=off != 0).max())


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row is to be read on a terminal."""
    names = ("model", "ours_secs", "best_peer", "best_peer_over_ours", "share_of_floor", "tuning_secs", "trials")
    return {name: row[name] for name in names} | {peer: found["secs"] for peer, found in row["peers"].items()}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    compared = [row for row in rows if row["best_peer"] is not None]
    over = [row["best_peer_over_ours"] for row in compared]
    return {
        "geomean_vs_best_peer": geometric_mean(over) if over else None,
        "worst_vs_best_peer": min(over, default=None),
        "lost_to_a_peer": [row["model"] for row in compared if row["best_peer_over_ours"] < 1],
        "outputs_within_tolerance": all(row["within_tolerance"] for row in rows),
        "longest_tuning_secs": max(row["tuning_secs"] for row in rows),
    }


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help="names of models, with commas between; default: all")
    arguments.add_argument("--phase", choices=("tune", "time", "report", "all"), default="all")
    arguments.add_argument("--work", type=Path, help="folder of tuning results and caches; default: a new one, removed")
    arguments.add_argument("--database", help="SQLAlchemy URL for all models; default: a new one for each, in --work")
    arguments.add_argument("--seconds", type=float, help=f"of tuning; default {SECONDS}, others {OTHERS_SECONDS}")
    arguments.add_argument("--stock-seconds", type=float, help="stock's own, longer tuning; default: as ours")
    arguments.add_argument("--threads", type=int, default=usable_cores(), help="of everybody")
    arguments.add_argument("--rounds", type=int, help=f"default {ROUNDS}, on a GPU {latency_cuda.ROUNDS}")
    arguments.add_argument("--peers", help="names, with commas between; default: all. Eager always takes part")
    arguments.add_argument("--target", choices=("llvm", "cuda"), default="llvm")
    arguments.add_argument("--dtypes", help="on a GPU: element types, with commas between; default: all")
    arguments.add_argument("--batches", help="on a GPU: batch sizes, with commas between; default: 1,8")
    arguments.add_argument(
        "--compile-ahead", type=int, help="on a GPU: processes that compile the peers' programs first"
    )
    arguments.add_argument("--jobs", type=int, default=1, help="on a GPU: cases that are set up side by side")
    arguments.add_argument("--tasks", type=int, default=10, help="on a GPU: costliest tasks to compare with PyTorch's")
    options = arguments.parse_args()
    known = models_of(options.models)
    if options.target == "cuda":
        latency_cuda.main(options, names_chosen(arguments, options, known, latency_cuda.MODELS))
        return
    options.rounds = options.rounds or ROUNDS
    peers = options.peers.split(",") if options.peers else QUICK_PEERS if options.quick else {*PEERS} - OF_OTHERS
    options.peers = {"eager", *peers} - {"ours", STOCK[1]}
    absent = sorted(peer for peer in options.peers & {*LIBRARIES} if find_spec(LIBRARIES[peer]) is None)
    options.peers -= {*absent}
    for peer in absent:
        print(f"{peer} is absent: `make bench-setup` installs it", file=sys.stderr)
    if options.phase in ("time", "report") and options.work is None:
        arguments.error(f"--phase {options.phase} needs --work: the folder of an earlier phase")
    names = names_chosen(arguments, options, known)
    if unknown := options.peers - {*PEERS}:
        arguments.error(f"unknown: {', '.join(sorted(unknown))}")
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    target = detect_target("llvm").model_copy(update={"num_cores": options.threads})
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        budget = {"seconds": options.seconds or SECONDS, "others_seconds": OTHERS_SECONDS, "rounds": options.rounds}
        budget |= {"absent_peers": absent}
        result: dict[str, Any] = {"environment": environment(**budget), "rows": []}
        for name in names:
            folder = work / name
            folder.mkdir(parents=True, exist_ok=True)
            tuned = options.phase in ("tune", "all") and tune(name, options, folder, target)
            if options.phase in ("time", "all"):
                timed = time_model(name, options, folder, target)
                write(folder / "row.json", {**timed, "tuned_in_this_run": tuned})
            if options.phase != "tune" and (folder / "row.json").exists():
                result["rows"].append(json.loads((folder / "row.json").read_text()))
    if not result["rows"]:
        return
    result["summary"] = summary(result["rows"])
    show(result if options.json else {**result, "rows": [shown(row) for row in result["rows"]]}, options.json)
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("an output of ours is out of tolerance")


if __name__ == "__main__":
    main()
