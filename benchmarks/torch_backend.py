"""torch.compile(backend="pitchpipe"): against eager, inductor and pitchpipe.load, inference and training steps.

    python benchmarks/torch_backend.py --json > benchmarks/results/torch_backend.json
    python benchmarks/torch_backend.py --models benchmarks/irregular.py --seconds 40 --json
    python benchmarks/torch_backend.py --work build/torch_backend --only resnet18 --phase tune
    python benchmarks/torch_backend.py --work build/torch_backend --only resnet18 --phase time
    python benchmarks/torch_backend.py --work build/torch_backend --phase report --json

Inference is that of the models of models.py, or of the file that `--models` names; the training steps are those of
peers/training.py.

*Tune*: a model is submitted as anybody submits one (model_tuning.py), into the database that `pitchpipe tune` fills; a
training step is tuned by the backend itself, in mode max-autotune, --trials a partition. What is in --work is not redone.
*Time*: every contestant in a process of its own, the program unchanged but for the backend's name, which finds the schedules
in that database; then in turn, as in latency.py. Setting up a contestant includes everything its first call does: the
backend's look-ups, builds and paired benchmarks. Training steps, and models that are not tuned, have no pitchpipe.load.

Outputs (of a training step: its loss and all gradients, after the same number of steps) are compared with eager's as in
latency.py. `worst_vs_eager`, `worst_vs_inductor`, `worst_vs_load`: the other's time over the backend's, the least there is.
Where the backend kept to eager mode, eager would be compared with itself: `kept_eager` counts such rows, and no ratio has
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant, take_turns
from environment import environment, models_parser, names_chosen, show
from latency import TOLERANCE, deviation
from model_file import models_of
from model_tuning import tune_ours, write
from rounds import geometric_mean, ratio_of, time_of

from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.target import Target
from workers.device import detect_target

HERE = Path(__file__).parent
TRAINING = HERE / "peers" / "training.py"
CONTESTANT = HERE / "peers" / "contestant.py"
SECONDS, QUICK_SECONDS = 300.0, 40.0
TRIALS, QUICK_TRIALS = 300, 16
ROUNDS, QUICK_ROUNDS = 16, 6
"""With four contestants, each has every place equally often in 8 rounds; six are the fewest that give an interval."""
OURS = "torch_backend"
TUNE_STEP = f"""
import sys, torch
sys.path.append({str(Path(__file__).parent)!r})
from model_file import models_of
torch.manual_seed(0)
module, inputs = models_of(sys.argv[1])[sys.argv[2]]()
options = {{"mode": "max-autotune", "trials": int(sys.argv[3])}}
torch.compile(module, backend="pitchpipe", options=options)(*inputs).backward()
"""


def variables(folder: Path, threads: int) -> dict[str, str]:
    """The environment of a case: a database, a cache and threads of its own, and no service."""
    return {
        "TVM_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "XDG_DATA_HOME": str(folder.absolute() / "data"),
        "PITCHPIPE_CACHE_DIR": str(folder.absolute() / "cache"),
        "PITCHPIPE_URL": "",
        "TORCHINDUCTOR_CACHE_DIR": str(folder.absolute() / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # No pool of compilers that lives on beside the timing.
    }


def tune(name: str, models: Path, folder: Path, options: Any, target: Target) -> None:
    """What the folder does not have yet."""
    if models == TRAINING:
        if not (folder / "tuned").exists():
            trials = options.trials or (QUICK_TRIALS if options.quick else TRIALS)
            command = [sys.executable, "-c", TUNE_STEP, str(models), name, str(trials)]
            environment = {**os.environ, **variables(folder, options.threads)}
            subprocess.run(command, check=True, env=environment)
            (folder / "tuned").touch()
    elif not (folder / "ours.json").exists():
        database = folder.absolute() / "data" / "pitchpipe" / "pitchpipe.db"
        database.parent.mkdir(parents=True, exist_ok=True)
        seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
        write(folder / "ours.json", tune_ours(name, models, seconds, f"sqlite:///{database}", target))


def time_case(name: str, models: Path, folder: Path, options: Any) -> dict[str, Any]:
    """The row of a case."""
    load = os.getloadavg()[0]
    names = ["eager", "inductor", *(["ours"] if (folder / "ours.json").exists() else []), OURS]
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        contestants = []
        for peer in names:
            command = [str(CONTESTANT), peer, str(models.absolute()), name, str(folder.absolute())]
            log = folder / f"{peer}.log"
            contestant = stack.enter_context(Contestant(peer, command, variables(folder, options.threads), log))
            told[peer] = contestant.ready()
            contestants.append(contestant)
        blocks = take_turns(contestants, QUICK_ROUNDS if options.quick else options.rounds)
    return {**row(name, told, blocks), "load_before": load}


def row(name: str, told: dict[str, dict[str, Any]], blocks: dict[str, list[list[float]]]) -> dict[str, Any]:
    reference = np.load(told["eager"]["output"])
    found: dict[str, Any] = {"model": name}
    for peer, block in blocks.items():
        secs, over = time_of(block), ratio_of(block, blocks[OURS])
        label = {OURS: "ours", "ours": "load"}.get(peer, peer)
        found[f"{label}_secs"], found[f"{label}_secs_interval"] = secs.value, [secs.low, secs.high]
        found[f"{label}_setup_secs"] = told[peer]["setup_secs"]
        if peer != OURS:
            found[f"{label}_over_ours"], found[f"{label}_over_ours_interval"] = over.value, [over.low, over.high]
    error = deviation(np.load(told[OURS]["output"]), reference)
    return {**found, "runs_ours": told[OURS]["runs_ours"], "deviation": error, "within_tolerance": error <= TOLERANCE}


def runs_ours(row: dict[str, Any]) -> bool:
    """Whether anything that the backend compiled ran. Rows from before that was told say it by their outputs, which are
    eager's to the last bit only where eager made them."""
    return bool(row.get("runs_ours", row["deviation"] > 0.0))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    compiled = [row for row in rows if runs_ours(row)]
    found: dict[str, Any] = {"kept_eager": len(rows) - len(compiled)}
    for peer in ("eager", "inductor", "load"):
        over = [row[f"{peer}_over_ours"] for row in compiled if f"{peer}_over_ours" in row]
        found[f"worst_vs_{peer}"] = min(over) if over else None
        found[f"geomean_vs_{peer}"] = geometric_mean(over) if over else None
    return {**found, "outputs_within_tolerance": all(row["within_tolerance"] for row in rows)}


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help="names of cases, with commas between; default: all")
    arguments.add_argument("--phase", choices=("tune", "time", "report", "all"), default="all")
    arguments.add_argument("--work", type=Path, help="folder of databases and caches; default: a new one, removed")
    arguments.add_argument("--seconds", type=float, help=f"of tuning a model; default {SECONDS}")
    arguments.add_argument("--trials", type=int, help=f"of tuning a partition of a training step; default {TRIALS}")
    arguments.add_argument("--threads", type=int, default=usable_cores(), help="of everybody")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    options = arguments.parse_args()
    if options.phase in ("time", "report") and options.work is None:
        arguments.error(f"--phase {options.phase} needs --work: the folder of an earlier phase")
    sources = {name: models for models in (options.models, TRAINING) for name in models_of(models)}
    names = names_chosen(arguments, options, sources)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    target = detect_target("llvm").model_copy(update={"num_cores": options.threads})
    with tempfile.TemporaryDirectory() as scratch:
        budget = {"seconds": options.seconds or SECONDS, "trials": options.trials or TRIALS, "rounds": options.rounds}
        result: dict[str, Any] = {"environment": environment(**budget), "rows": []}
        for name in names:
            folder = (options.work or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            if options.phase in ("tune", "all"):
                tune(name, sources[name], folder, options, target)
            if options.phase in ("time", "all"):
                write(folder / "row.json", time_case(name, sources[name], folder, options))
            if options.phase != "tune" and (folder / "row.json").exists():
                result["rows"].append(json.loads((folder / "row.json").read_text()))
    if not result["rows"]:
        return
    result["summary"] = summary(result["rows"])
    show(result, options.json)
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("an output of ours is out of tolerance")


if __name__ == "__main__":
    main()
