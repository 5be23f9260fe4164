"""Several processes of one model on one machine: what each gets when all compute at once.

    python benchmarks/side_by_side.py --threads 2 --models benchmarks/small.py --json > benchmarks/results/side_by_side.json

As many processes of `--threads` threads as the machine has cores for, of each side:

    untuned       what `pitchpipe.load` gives without schedules
    eager, onnxruntime, openvino    as latency.py has them, where they are installed

In each round a side's first process has a turn alone, then all of its processes have one together; those of the other sides
are stopped. `alone_secs` and `together_secs` are medians over rounds (and processes) of the median run of a turn.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contestants import Contestant
from environment import environment, models_parser, names_chosen, show
from latency import LIBRARIES
from model_file import models_of

from pitchpipe.processes.cores import usable_cores

SCRIPT = str(Path(__file__).parent / "peers" / "contestant.py")
ROUNDS, QUICK_ROUNDS = 6, 2


def rows_of(name: str, options: Any, folder: Path) -> list[dict[str, Any]]:
    """A row for each side."""
    libraries = [peer for peer, library in LIBRARIES.items() if find_spec(library) is not None]
    threads = {"TVM_NUM_THREADS": str(options.threads)}
    count = usable_cores() // options.threads
    with ExitStack() as stack:
        sides: dict[str, list[Contestant]] = {}
        for side in ("untuned", "eager", *libraries):
            command = [SCRIPT, side, str(options.models.absolute()), name, str(folder)]
            sides[side] = []
            for many in (1, count - 1):  # The first builds what the others find in the cache.
                begun = [
                    stack.enter_context(Contestant(side, command, threads, folder / f"{side}.log")) for _ in range(many)
                ]
                for contestant in begun:
                    contestant.ready()
                sides[side] += begun
        alone: dict[str, list[float]] = {side: [] for side in sides}
        together: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
            for side, contestants in sides.items():
                alone[side].append(statistics.median(contestants[0].block()))
                together[side] += map(statistics.median, at_once(contestants))
    return [
        {
            "model": name,
            "side": side,
            "processes": count,
            "alone_secs": statistics.median(alone[side]),
            "together_secs": statistics.median(together[side]),
            "slowest_together_secs": max(together[side]),
        }
        for side in sides
    ]


def at_once(contestants: Sequence[Contestant]) -> list[list[float]]:
    """The seconds of each run of each contestant, in a turn that all have together."""
    with ThreadPoolExecutor(len(contestants)) as turns:
        return list(turns.map(Contestant.block, contestants))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By side the median over models of what company costs."""
    costs: dict[str, list[float]] = {}
    for row in rows:
        costs.setdefault(row["side"], []).append(row["together_secs"] / row["alone_secs"])
    return {"together_over_alone": {side: statistics.median(found) for side, found in costs.items()}}


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--only", help="names of models, with commas between; default: all")
    arguments.add_argument("--threads", type=int, default=2, help="of each process; default 2")
    options = arguments.parse_args()
    names = names_chosen(arguments, options, models_of(options.models))
    where = environment(threads_each=options.threads)
    rows: list[dict[str, Any]] = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            rows += rows_of(name, options, Path(folder))
    show({"environment": where, "rows": rows, "summary": summary(rows)}, options.json)


if __name__ == "__main__":
    main()
