"""A model that nobody tuned beside the same model tuned, PyTorch eager, ONNX Runtime and OpenVINO, in turn.

    python benchmarks/untuned.py --json > benchmarks/results/untuned.json
    python benchmarks/untuned.py --work build/latency --only swin_tiny

`default` is what `pitchpipe.load` gives without schedules: the default build, whose schedules were checked and never timed.
`tuned` has the schedules of a job of --seconds, as benchmarks/latency.py tunes: what lies in --work from there is used, and
`tuning_secs` and `tuned_on` tell what that took and when. Each contestant is a process of its own (peers/contestant.py), set
up from empty caches one after another, then timed in turn on the same threads, those whose turn it is not stopped; rounds.py
says how the figures are made.

    load_secs              of the default build from an empty cache: export, build, checks of schedules, comparison with
                           the framework, weights
    default_over_tuned     the aim is 1.5 at most
    best_peer_over_default the fastest of the others whose outputs are within latency.py's tolerance; None where none is

Models are those of models.py, or of the file that `--models` names: MODELS, name -> builder() -> (module, example inputs).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant, ContestantFailed, take_turns
from environment import environment, kernel_threads, models_parser, names_chosen, show
from latency import LIBRARIES, TOLERANCE, deviation
from model_file import models_of
from model_tuning import tune_ours, write
from rounds import geometric_mean, ratio_of, time_of

from pitchpipe.wire.target import Target
from workers.device import detect_target

HERE = Path(__file__).parent
SECONDS, QUICK_SECONDS = 60.0, 25.0
ROUNDS, QUICK_ROUNDS = 10, 6
AIM = 1.5
"""Of `default_over_tuned`."""
REFERENCE, DEFAULT, TUNED = "eager", "default", "ours"
"""Contestants' names; outputs are compared with the reference's."""


def measured(name: str, options: Any, folder: Path, target: Target) -> dict[str, Any]:
    """The row of one model; tunes it unless its folder has what a tuning left."""
    tuning = folder / "ours.json"
    if not tuning.exists():
        database = f"sqlite:///{folder.absolute()}/pitchpipe.db"
        write(tuning, tune_ours(name, options.models, options.seconds, database, target))
    script, threads = str(HERE / "peers" / "contestant.py"), {"TVM_NUM_THREADS": str(target.num_cores or 1)}
    peers = [REFERENCE, *(peer for peer, library in LIBRARIES.items() if find_spec(library) is not None)]
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        contestants = []
        for side in (*peers, TUNED, DEFAULT):
            command = [script, side, str(options.models.absolute()), name, str(folder.absolute())]
            contestant = stack.enter_context(Contestant(side, command, threads, folder / f"{side}.log"))
            try:
                told[side] = contestant.ready()
            except ContestantFailed as error:
                if side in (REFERENCE, TUNED, DEFAULT):
                    raise
                print(error, file=sys.stderr)
                continue
            contestants.append(contestant)
        blocks = take_turns(contestants, QUICK_ROUNDS if options.quick else ROUNDS)
    return row(name, told, blocks, json.loads(tuning.read_text()))


def row(
    name: str, told: dict[str, dict[str, Any]], blocks: dict[str, list[list[float]]], tuning: dict[str, Any]
) -> dict[str, Any]:
    """told: what each contestant said once it was set up. blocks: seconds of each run, by contestant and round. tuning: what
    `tune_ours` gave."""
    reference = np.load(told[REFERENCE]["output"])
    errors = {side: deviation(np.load(told[side]["output"]), reference) for side in blocks}
    secs = {side: time_of(found) for side, found in blocks.items()}
    peers = [side for side in blocks if side not in (TUNED, DEFAULT) and errors[side] <= TOLERANCE]
    best = min(peers, key=lambda side: secs[side].value, default=None)
    over_tuned = ratio_of(blocks[DEFAULT], blocks[TUNED])
    over_default = None if best is None else ratio_of(blocks[best], blocks[DEFAULT])
    return {
        "model": name,
        "load_secs": told[DEFAULT]["setup_secs"],
        "default_secs": secs[DEFAULT].value,
        "default_secs_interval": [secs[DEFAULT].low, secs[DEFAULT].high],
        "tuned_secs": secs[TUNED].value,
        "tuning_secs": tuning["tuning_secs"],
        "tuned_on": tuning["tuned_on"],
        "default_over_tuned": over_tuned.value,
        "default_over_tuned_interval": [over_tuned.low, over_tuned.high],
        "best_peer": best,
        "best_peer_over_default": None if over_default is None else over_default.value,
        "best_peer_over_default_interval": None if over_default is None else [over_default.low, over_default.high],
        "peers": {side: secs[side].value for side in blocks if side not in (TUNED, DEFAULT)},
        "deviation": max(errors[DEFAULT], errors[TUNED]),
        "within_tolerance": max(errors[DEFAULT], errors[TUNED]) <= TOLERANCE,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    over_tuned = [row["default_over_tuned"] for row in rows]
    compared = [row["best_peer_over_default"] for row in rows if row["best_peer"] is not None]
    return {
        "geomean_default_over_tuned": geometric_mean(over_tuned),
        "worst_default_over_tuned": max(over_tuned),
        "over_the_aim": [row["model"] for row in rows if row["default_over_tuned"] > AIM],
        "geomean_best_peer_over_default": geometric_mean(compared) if compared else None,
        "slower_than_a_peer": [row["model"] for row in rows if (row["best_peer_over_default"] or 1.0) < 1.0],
        "longest_load_secs": max(row["load_secs"] for row in rows),
        "outputs_within_tolerance": all(row["within_tolerance"] for row in rows),
    }


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help="names of models, with commas between; default: all")
    arguments.add_argument(
        "--work", type=Path, help="folder of tunings, as latency.py has it; default: a new one, removed"
    )
    arguments.add_argument("--seconds", type=float, help=f"of tuning, all included; default {SECONDS:g}")
    options = arguments.parse_args()
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    names = names_chosen(arguments, options, models_of(options.models))
    threads = kernel_threads()
    target = detect_target("llvm").model_copy(update={"num_cores": threads})
    result: dict[str, Any] = {"environment": environment(seconds=options.seconds), "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = (options.work or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            result["rows"].append(measured(name, options, folder, target))
            print(f"{name}: load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    result["summary"] = summary(result["rows"])
    show(result, options.json)
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("an output of ours is out of tolerance")


if __name__ == "__main__":
    main()
