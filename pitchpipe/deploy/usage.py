"""Use feedback: a deployment tells the service how often its workloads ran, those that are served and those that are missed.

Every call of a compiled model adds one to its Runs. One thread of the process, which nobody waits for, reports what came
since its last report: first after FIRST_SECS, then after twice as long each time, up to LAST_SECS. What ran after the last
report of a program, and what a failed report would have told, is not told later: the service knows the least that ran. (Of
misses it knows one run more: a look-up reports them at once, as one run; see misses.py.)
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pitchpipe.client import Client
from pitchpipe.deploy.artifact import Runs
from pitchpipe.deploy.identity import Identity
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.wire.miss import MAX_REPORTED, MissCount, MissReport, ServedCount
from pitchpipe.wire.target import Target

FIRST_SECS, LAST_SECS = 15.0, 900.0
"""Between reports. A fleet of a thousand programs sends about one report a second."""

Count = TypeVar("Count", MissCount, ServedCount)
Service = Callable[[], contextlib.AbstractContextManager[Client]]


@dataclass(kw_only=True)
class _Followed:
    """What one run of a model is, to the service."""

    service: Service
    target: Target
    served: Mapping[str, ServedCount]
    missed: Mapping[str, MissCount]
    told: int
    """Runs that were reported, or lost with a report that failed."""

    def reports(self, runs: int, tuned: set[str]) -> Iterator[MissReport]:
        """Of so many runs of a model, of whose workloads these run tuned schedules."""
        served = [_times(runs, each) for workload, each in self.served.items() if workload in tuned]
        missed = [_times(runs, each) for each in self.missed.values()]
        for start in range(0, max(len(served), len(missed)), MAX_REPORTED):
            part = slice(start, start + MAX_REPORTED)
            yield MissReport(target=self.target, misses=tuple(missed[part]), served=tuple(served[part]))


_followed: weakref.WeakKeyDictionary[Runs, _Followed] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def follow(runs: Runs, schedules: Schedules, known: Identity, service: Service) -> None:
    """Reports from now on what a model runs, whose look-up gave these schedules, until the model is gone.

    A schedule is served where it is no miss (see Tier.is_miss), and where it is not the baseline, which saves nothing.
    """
    served: dict[str, ServedCount] = {}
    missed: dict[str, MissCount] = {}
    for answer in schedules.response.answers:
        times, best = known.weights.get(answer.workload), answer.best
        if times is None:
            continue
        if answer.tier.is_miss:
            missed[answer.workload] = MissCount(workload=answer.workload, runs=times)
        elif best is not None and best.record is not None:
            served[answer.workload] = ServedCount(
                workload=answer.workload,
                runs=times,
                record=best.record,
                secs=best.secs,
                baseline_secs=best.baseline_secs,
            )
    if not served and not missed:
        return
    one = _Followed(service=service, target=schedules.target, served=served, missed=missed, told=runs.done)
    with _lock:
        _followed[runs] = one
    _start()


def report() -> None:
    """Reports what ran since the last call. Raises nothing: what cannot be reported is lost."""
    with _lock:
        followed = list(_followed.items())
    for runs, one in followed:
        done = runs.done
        since, one.told = done - one.told, done
        if since:
            with contextlib.suppress(Exception), one.service() as client:
                for each in one.reports(since, set(runs.tuned)):
                    client.report_misses(each)


def _times(runs: int, one: Count) -> Count:
    """The count of so many runs of the model, from that of one."""
    return one.model_copy(update={"runs": runs * one.runs})


def _start() -> None:
    """Starts the thread, unless it runs: a fork of this process has none."""
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_report_now_and_then, name="pitchpipe-usage", daemon=True)
            _thread.start()


def _report_now_and_then() -> None:
    wait_secs = FIRST_SECS
    while True:
        time.sleep(wait_secs)
        report()
        wait_secs = min(2 * wait_secs, LAST_SECS)
