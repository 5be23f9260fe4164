"""What the parts of the search are worth, replayed on the replay set: needs no hardware.

    python benchmarks/learning.py --json > benchmarks/results/learning.json

Every search of `strategies` is replayed (replay_search.py) on every workload of the set that has enough candidates. A row of
`kind` search has its *regret* after 4, 8, 16, 32 and 64 trials: seconds of the fastest candidate so far over those of the
fastest in the set, the geometric mean over workloads and repetitions, with its range over repetitions. The row `default` has
that of the default schedules, without a trial, and the row `seeds` that of the best of the first 1, 2, 4 and 8 analytic
seeds, in their order. Pretrained cost models never see a network that they are judged on: networks
are divided into FOLDS, and for the workloads of each a model is trained on those workloads that no network of the fold has.
A model from nothing learns from the candidates of its own workload only, where that of a service learns from all of a job.

A row of `kind` marks has the quality of a model's ranking over all candidates of a workload, averaged over workloads:
*pairwise*, the share of pairs that are ordered rightly; *peak@k*, the mean over j <= k of (seconds of the fastest candidate)
over (seconds of the fastest of the j candidates with the highest scores); `pairwise_distinct` counts only pairs whose
intervals do not meet, since the order of the others is noise.

A row of `kind` part has what a part of the search is worth: the regret without it over the regret with it, after so many
trials, with its 95 % interval (bootstrap over workloads). It helps where the interval lies above 1, and harms where it lies
below. `summary` names the parts that help nowhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from environment import environment, parser, show
from numpy.typing import NDArray
from replay_models import Fixed, Learning, pretrained
from replay_search import RANKED_AFTER, TRIALS, Replayed, Scorer, Strategy, after, best_so_far, replay

from tuner.search.cost_model import CostModel, held_out_metrics

SET = Path(__file__).parent / "results" / "replay_set.parquet"
REPETITIONS, QUICK_REPETITIONS = 10, 2
LEARNING_REPETITIONS, QUICK_LEARNING_REPETITIONS = 2, 1
"""Of searches that train a model as they go, which takes a second each."""
FOLDS, QUICK_FOLDS = 5, 2
QUICK_WORKLOADS = 6
LEAST_CANDIDATES = 64
"""Of a workload whose searches are replayed: with fewer, any search finds the best."""
FIRST_SEEDS = (1, 2, 4, 8)
"""After so many analytic seeds the best of them is looked at."""
RESAMPLES = 2000
AIMS = {"pairwise": 0.88, "peak@1": 0.92, "peak@5": 0.97}
Scores = dict[str, NDArray[np.float64]]
"""Workload's digest to the scores of its candidates, by a model that has seen none of its networks."""
Regrets = NDArray[np.float64]
"""Logarithms, of shape [repetitions, workloads, TRIALS]."""


def folds(workloads: Sequence[Replayed], count: int) -> list[set[str]]:
    """The networks in at most `count` groups."""
    names = sorted({name for workload in workloads for name in workload.networks})
    return [set(names[i::count]) for i in range(min(count, len(names)))]


def divided(workloads: Sequence[Replayed], held_out: set[str]) -> tuple[list[Replayed], list[Replayed]]:
    """(workloads that no network of the fold has, workloads whose first network is of the fold)."""
    seen = [workload for workload in workloads if not held_out.intersection(workload.networks)]
    return seen, [workload for workload in workloads if workload.networks[0] in held_out]


def held_out_scores(workloads: Sequence[Replayed], count: int) -> Scores:
    """Scores of every workload by a model that has seen none of its networks."""
    found: Scores = {}
    for number, held_out in enumerate(folds(workloads, count)):
        seen, judged = divided(workloads, held_out)
        if not seen or not judged:
            continue
        model = CostModel.load(pretrained(seen))
        found |= {workload.digest: model.predict(workload.features) for workload in judged}
        print(f"fold {number + 1}: {len(seen)} workloads seen, {len(judged)} judged", file=sys.stderr, flush=True)
    return found


def strategies(scores: Scores) -> list[Strategy]:
    """The searches that are compared."""

    def known(workload: Replayed) -> Scorer:
        return Fixed(scores[workload.digest])

    return [
        Strategy(name="random", seeded=False, evolves=False),
        Strategy(name="analytic seeds, then random", evolves=False),
        Strategy(name="seeds and evolution, no cost model"),
        Strategy(name="cost model from nothing", scorer=Learning),
        Strategy(name="cost model from nothing, no evolution", scorer=Learning, evolves=False),
        Strategy(name="cost model from nothing, no seeds", scorer=Learning, seeded=False),
        Strategy(name="pretrained", scorer=known),
        Strategy(name="pretrained, after 32 trials", scorer=known, ranked_after=RANKED_AFTER),
        Strategy(name="pretrained, no evolution", scorer=known, evolves=False),
        Strategy(name="pretrained, no seeds", scorer=known, seeded=False),
        Strategy(name="pretrained, seeds in the order of scores", scorer=known, first="seeds by score"),
        Strategy(name="pretrained, first round of all kinds", scorer=known, first="all by score"),
        Strategy(name="pretrained, eight times the random points", scorer=known, random_ratio=4.0),
    ]


PARTS = {
    "analytic seeds": ("seeds and evolution, no cost model", "random"),
    "evolution without a cost model": ("seeds and evolution, no cost model", "analytic seeds, then random"),
    "a cost model from nothing": ("cost model from nothing", "seeds and evolution, no cost model"),
    "seeds with a cost model from nothing": ("cost model from nothing", "cost model from nothing, no seeds"),
    "evolution with a cost model from nothing": ("cost model from nothing", "cost model from nothing, no evolution"),
    "a pretrained cost model": ("pretrained", "seeds and evolution, no cost model"),
    "a pretrained cost model in the first 32 trials": ("pretrained", "pretrained, after 32 trials"),
    "pretraining": ("pretrained", "cost model from nothing"),
    "pretraining where there are no seeds": ("pretrained, no seeds", "cost model from nothing, no seeds"),
    "seeds with a pretrained model": ("pretrained", "pretrained, no seeds"),
    "evolution with a pretrained model": ("pretrained", "pretrained, no evolution"),
    "a pretrained model's order of the seeds": ("pretrained, seeds in the order of scores", "pretrained"),
    "a first round of all kinds": ("pretrained, first round of all kinds", "pretrained"),
    "ranking eight times the random points": ("pretrained, eight times the random points", "pretrained"),
}
"""Part of the search -> the search with it and the one without."""


def regrets(strategy: Strategy, workloads: Sequence[Replayed], repetitions: int) -> Regrets:
    """Of a search, replayed so often on each workload."""
    found = np.empty((repetitions, len(workloads), len(TRIALS)))
    for seed in range(repetitions):
        for number, workload in enumerate(workloads):
            curve = best_so_far(workload, replay(workload, strategy, seed))
            found[seed, number] = [after(curve, trials) for trials in TRIALS]
    return np.log(found)


def search_row(name: str, found: Regrets) -> dict[str, Any]:
    """Regrets of a search; see above."""
    row: dict[str, Any] = {"kind": "search", "name": name, "workloads": found.shape[1], "repetitions": found.shape[0]}
    for at, trials in enumerate(TRIALS):
        of_seeds = np.exp(found[:, :, at].mean(axis=1))
        row[f"regret@{trials}"] = float(np.exp(found[:, :, at].mean()))
        row[f"regret@{trials}_range"] = [float(of_seeds.min()), float(of_seeds.max())]
    return row


def default_row(workloads: Sequence[Replayed]) -> dict[str, Any]:
    """Regret of the default schedules, where they have a time."""
    found = [workload.seconds[workload.default] for workload in workloads]
    ratios = [
        secs.min() / workload.best_secs
        for secs, workload in zip(found, workloads, strict=True)
        if len(secs) and np.isfinite(secs.min())
    ]
    return {"kind": "default", "workloads": len(ratios), "regret": float(np.exp(np.log(ratios).mean()))}


def seeds_row(workloads: Sequence[Replayed]) -> dict[str, Any]:
    """Regret of the first analytic seeds, where one of them has a time."""
    found: dict[int, list[float]] = {count: [] for count in FIRST_SEEDS}
    for workload in workloads:
        seeds = np.flatnonzero(workload.origin == "seed")
        secs = workload.seconds[seeds[np.argsort(workload.place[seeds])]]
        for count in FIRST_SEEDS:
            if len(secs) and np.isfinite(fastest := secs[:count].min()):
                found[count].append(np.log(fastest / workload.best_secs))
    of_seeds = {f"regret@{count}": float(np.exp(np.mean(values))) for count, values in found.items() if values}
    return {"kind": "seeds", "workloads": len(found[FIRST_SEEDS[0]]), **of_seeds}


def part_row(name: str, having: Regrets, lacking: Regrets) -> dict[str, Any]:
    """What a part is worth; see above."""
    differences = lacking.mean(axis=0) - having.mean(axis=0)
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.exp(np.quantile(differences[drawn].mean(axis=1), [0.025, 0.975], axis=0))
    row: dict[str, Any] = {"kind": "part", "name": name}
    for at, trials in enumerate(TRIALS):
        row[f"worth@{trials}"] = float(np.exp(differences[:, at].mean()))
        row[f"worth@{trials}_interval"] = [float(low[at]), float(high[at])]
    row["helps_at"] = [trials for at, trials in enumerate(TRIALS) if low[at] > 1]
    row["harms_at"] = [trials for at, trials in enumerate(TRIALS) if high[at] < 1]
    return row


def marks_row(name: str, workloads: Sequence[Replayed], scores: Scores) -> dict[str, Any]:
    """The quality of rankings."""
    distinct = [distinct_pairwise(workload, scores[workload.digest]) for workload in workloads]
    return {
        "kind": "marks",
        "name": name,
        "workloads": len(workloads),
        **held_out_metrics([(workload.speeds, scores[workload.digest]) for workload in workloads]),
        "pairwise_distinct": float(np.mean([value for value in distinct if value is not None])),
    }


def distinct_pairwise(workload: Replayed, scores: NDArray[np.float64]) -> float | None:
    """Share of the pairs with disjoint intervals that are ordered rightly; None where there is no such pair."""
    faster, slower = np.nonzero(workload.upper[:, None] < workload.lower[None, :])
    return float((scores[faster] > scores[slower]).mean()) if len(faster) else None


def compare(
    workloads: Sequence[Replayed], repetitions: int, learning: int, count: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and summary."""
    scores = held_out_scores(workloads, count)
    judged = [workload for workload in workloads if workload.digest in scores]
    rows = [marks_row("pretrained, networks held out", judged, scores)]
    searched = [workload for workload in judged if len(workload.seconds) >= LEAST_CANDIDATES] or judged
    rows += [default_row(searched), seeds_row(searched)]
    found: dict[str, Regrets] = {}
    for strategy in strategies(scores):
        found[strategy.name] = regrets(strategy, searched, learning if strategy.scorer is Learning else repetitions)
        rows.append(search_row(strategy.name, found[strategy.name]))
        print(f"{strategy.name}: {rows[-1]['regret@8']:.3f} after 8 trials", file=sys.stderr, flush=True)
    parts = [part_row(part, found[having], found[lacking]) for part, (having, lacking) in PARTS.items()]
    return [*rows, *parts], summary(rows, parts)


def summary(rows: Sequence[dict[str, Any]], parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The marks beside their aims, 8 trials with the pretrained model beside 64 random ones, and what does not help."""
    regret = {row["name"]: row for row in rows if row["kind"] == "search"}
    return {
        **{name: {"with networks held out": rows[0][name], "aim": aim} for name, aim in AIMS.items()},
        "8 pretrained trials over 64 random ones": {
            "seconds": regret["pretrained"]["regret@8"] / regret["random"]["regret@64"],
            "aim": 1.03,
        },
        "helps nowhere": [part["name"] for part in parts if not part["helps_at"]],
        "harms somewhere": [part["name"] for part in parts if part["harms_at"]],
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--set", type=Path, default=SET, help="the replay set")
    options = arguments.parse_args()
    try:
        from replay_file import read
    except ImportError as error:
        raise SystemExit(f"{error}: `make bench-setup` installs it") from error

    workloads = read(options.set)
    repetitions, learning, count = (
        (QUICK_REPETITIONS, QUICK_LEARNING_REPETITIONS, QUICK_FOLDS)
        if options.quick
        else (REPETITIONS, LEARNING_REPETITIONS, FOLDS)
    )
    if options.quick:
        workloads = workloads[:: max(1, len(workloads) // QUICK_WORKLOADS)][:QUICK_WORKLOADS]
    rows, found = compare(workloads, repetitions, learning, count)
    show(
        {
            "environment": environment(repetitions=repetitions, learning_repetitions=learning, folds=count),
            "rows": rows,
            "summary": found,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
