"""Whole models as two checkouts of the code deploy them, with schedules from one database: did a change make them slower.

    python benchmarks/before_after.py --other ../before --database ~/.local/share/pitchpipe/pitchpipe.db --json

`before` is the checkout that `--other` names, `after` the one that this script lies in. Each has a virtual environment of
its own in .venv, in which its code is installed; without `--other` this checkout is compared with itself, which shows the
noise. Each side gets a copy of the database and asks it, by its own code, for the schedules of the workloads that it makes
of the model; what it found is counted in `tiers`, since a workload whose digest has changed finds nothing. Without a
database nothing is found, and both run the compiler's default schedules.

Both are set up in processes of their own (peers/contestant.py) and timed in turn (rounds.py), those whose turn it is not
stopped. Their outputs, of the same weights and inputs, are compared first. `before_over_after` is above 1 where the change
made the model faster.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant, take_turns
from environment import ROOT, commit, environment, kernel_threads, models_parser, names_chosen, show
from latency import TOLERANCE, deviation
from model_file import models_of
from rounds import geometric_mean, ratio_of, time_of

SIDES = ("before", "after")
MODELS = 5
"""The first of the file: those that the figures are made with."""
ROUNDS, QUICK_ROUNDS = 24, 6
"""Six are the fewest that give a 95 % interval."""
SCRIPT = ROOT / "benchmarks" / "peers" / "contestant.py"


def copied(database: Path, folder: Path) -> None:
    """Copies an SQLite database, and the blobs beside it, to pitchpipe.db in the folder: a side's code may migrate it."""
    original = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
    with closing(original), closing(sqlite3.connect(folder / "pitchpipe.db")) as copy:
        original.backup(copy)
    if (blobs := database.with_suffix(".blobs")).exists():
        shutil.copytree(blobs, folder / "pitchpipe.blobs", dirs_exist_ok=True)


def measure(name: str, models: Path, checkouts: dict[str, Path], database: Path | None, work: Path, rounds: int) -> Any:
    """The row of a model."""
    told: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        contestants = []
        for side, checkout in checkouts.items():
            folder = work / side
            folder.mkdir(parents=True)
            if database is not None:
                copied(database, folder)
            variables = {
                "TVM_NUM_THREADS": str(kernel_threads()),
                "PITCHPIPE_CACHE_DIR": str(folder / "cache"),
                "PITCHPIPE_BLOB_URL": f"file://{folder}/pitchpipe.blobs",
                "PITCHPIPE_URL": "",
            }
            command = [str(SCRIPT), "deployed", str(models.absolute()), name, str(folder)]
            python = checkout / ".venv" / "bin" / "python"
            contestant = stack.enter_context(Contestant(side, command, variables, folder / "log", python))
            told[side] = contestant.ready() | json.loads((folder / "deployed.json").read_text())
            if Path(told[side]["code"]) != checkout:
                raise SystemExit(f"{python} runs the code of {told[side]['code']}: install {checkout} in it")
            contestants.append(contestant)
        before, after = (np.load(told[side]["output"]) for side in SIDES)
        error = deviation(after, before)
        blocks = take_turns(contestants, rounds)
    return row(name, blocks, error) | {
        f"{side}_{key}": told[side][key] for side in SIDES for key in ("tiers", "setup_secs")
    }


def row(name: str, blocks: dict[str, list[list[float]]], error: float) -> dict[str, Any]:
    """From the seconds of each run by round, and how far the outputs are apart."""
    over = ratio_of(blocks["before"], blocks["after"])
    times = {side: time_of(blocks[side]) for side in SIDES}
    return {
        "model": name,
        **{f"{side}_secs": found.value for side, found in times.items()},
        **{f"{side}_secs_interval": [found.low, found.high] for side, found in times.items()},
        "before_over_after": over.value,
        "before_over_after_interval": [over.low, over.high],
        "deviation": error,
        "within_tolerance": error <= TOLERANCE,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Slower for certain: the whole interval is below 1."""
    return {
        "geomean_before_over_after": geometric_mean([row["before_over_after"] for row in rows]),
        "worst_before_over_after": min(row["before_over_after"] for row in rows),
        "slower_for_certain": [row["model"] for row in rows if row["before_over_after_interval"][1] < 1],
        "other_tiers": [row["model"] for row in rows if row["before_tiers"] != row["after_tiers"]],
        "outputs_within_tolerance": all(row["within_tolerance"] for row in rows),
    }


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--other", type=Path, default=ROOT, help="the checkout before the change; default: this one")
    arguments.add_argument("--database", type=Path, help="SQLite file with schedules; it is read only")
    arguments.add_argument("--only", help="names of models, with commas between; default: the first five of the file")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    options = arguments.parse_args()
    checkouts = {"before": options.other.resolve(), "after": ROOT}
    for checkout in checkouts.values():
        if not (checkout / ".venv" / "bin" / "python").exists():
            arguments.error(f"{checkout} has no .venv: `make setup` there makes it")
    names = names_chosen(arguments, options, models_of(options.models), MODELS)
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    commits = {side: commit(checkout) for side, checkout in checkouts.items()}
    result: dict[str, Any] = {"environment": environment(rounds=rounds, commits=commits), "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            work = Path(scratch) / name
            result["rows"].append(measure(name, options.models, checkouts, options.database, work, rounds))
            print(json.dumps(result["rows"][-1]), file=sys.stderr, flush=True)
    result["summary"] = summary(result["rows"])
    show(result, options.json)
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("the two checkouts' outputs differ")


if __name__ == "__main__":
    main()
