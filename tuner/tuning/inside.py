"""Tuning inside the model: of each task the schedule with which the whole model is fastest.

A task's best was found among stand-ins for its neighbours (ADR 0047). In the model its neighbours are what they are, and the
schedules of a few tasks are faster there that were not alone. The search is by coordinates: task after task, the costliest
first, every candidate of it takes its turn in the model while the others stay as they are.

Notation: of a choice c (a schedule for each task) let T(c) be the median seconds of a run of the model, from samples taken
in turns with those of the choices it is compared with. A candidate takes the place of the present one if its interval lies
below the present one's (`median_interval`). A round visits every task; it gained 1 - T(c after) / T(c before), both timed
once more, and the search ends with the first round that gained less than ENOUGH. So noise alone changes a choice in few of a
hundred comparisons, and whatever it changed is compared again, at the end in fresh processes (`is_faster`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.measure.timing import median_interval, run_interval

ENOUGH = 0.01
"""Share of the model's time that a round must gain for another one to be worth its seconds."""
MOST_ROUNDS = 5

Choice = Mapping[str, int]
"""Task -> number of its schedule; 0 is what ran before."""
Race = Callable[[Sequence[Choice]], Sequence[Sequence[float]]]
"""Times variants of the model in turns: the seconds of a run of each, a few samples."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One visit of every task."""

    changed: int
    """Tasks whose schedule it replaced."""
    gain: float
    """Share of the model's time; 0 where nothing was changed, or where what was changed did not hold."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """What the search chose."""

    choice: dict[str, int]
    """Of the tasks whose schedule is another than before."""
    rounds: tuple[Round, ...]
    trials: int
    """Variants that were timed, the present one of each comparison not counted."""


def descend(
    tasks: Mapping[str, Sequence[int]],
    race: Race,
    over: Callable[[], bool] = lambda: False,
    guess: Choice | None = None,
) -> Descent:
    """Searches by coordinates.

    tasks: the numbers of each task's candidates beside 0, the costliest task first. over: whether the time is up; asked
    between two comparisons. guess: where the search begins if the model is faster there than with 0 of every task.
    """
    choice: dict[str, int] = {}
    rounds, trials = list[Round](), 0
    if guess:
        trials += 1
        choice = dict(guess) if fastest(race([choice, guess])) else choice
    while len(rounds) < MOST_ROUNDS and not over():
        before = dict(choice)
        for task, numbers in tasks.items():
            if over():
                break
            present = choice.get(task, 0)
            others = [number for number in (0, *numbers) if number != present]
            if not others:
                continue
            trials += len(others)
            samples = race([choice, *(_with(choice, task, number) for number in others)])
            choice = _with(choice, task, [present, *others][fastest(samples)])
        changed = sum(choice.get(task, 0) != before.get(task, 0) for task in tasks)
        gain = 0.0
        if changed:
            ran, runs = race([before, choice])
            gain = 1 - statistics.median(runs) / statistics.median(ran)
            if gain <= 0:
                choice, gain = before, 0.0
        rounds.append(Round(changed=changed, gain=gain))
        if gain < ENOUGH:
            break
    return Descent(choice=choice, rounds=tuple(rounds), trials=trials)


def fastest(samples: Sequence[Sequence[float]]) -> int:
    """The number of the variant that takes the place of the first, which is 0 unless another's interval lies below its."""
    low, _ = median_interval(samples[0])
    faster = [at for at, secs in enumerate(samples) if at and median_interval(secs)[1] < low]
    return min(faster, key=lambda at: statistics.median(samples[at]), default=0)


def is_faster(secs: Sequence[float], than_secs: Sequence[float], processes: int) -> bool:
    """Whether a variant is claimed to be faster than another: samples of both are from the same fresh processes, sample i
    from process i modulo `processes`, and the interval over samples and processes lies below the other's.
    """
    return run_interval(secs, processes)[1] < run_interval(than_secs, processes)[0]


def _with(choice: Mapping[str, int], task: str, number: int) -> dict[str, int]:
    """The choice with another schedule of one task; 0 is left out, so that equal choices are equal."""
    found = {other: at for other, at in choice.items() if other != task}
    return found | {task: number} if number else found
