"""Candidates that crash, hang, flood, fork and lie, leased by a real worker process from a real server.

    python benchmarks/isolation.py --json > benchmarks/results/isolation.json

Every kind of tests/hostile.py is measured 20 times (`--quick`: twice), each time in a batch with two harmless candidates
of the same workload; so is every disturbance from outside: a waiting child, the workload's process or the zygote killed
in the middle of a batch. A run is survived when

    right_kind        the candidate ended as the failure kind of the table (for `timed`: what it tried was refused)
    others_unharmed   both harmless candidates were timed, their outputs checked
    same_daemon       the worker is the process that it was
    nothing is left   no process below the worker but the zygote and one process per workload, none orphaned or
                      elsewhere on the host with the worker's environment, no zombie; no file in the worker's working,
                      home and temporary folders; no shared memory, queue or semaphore of its user's

and when at the end of its kind, compared with the first run, no descriptor is open in the worker, the zygote and the
workloads' processes that was not (memory files are descriptors), neither worker nor zygote has grown by more than
GROWTH_BYTES, and a harmless batch is still measured. What is being ended has SETTLE_SECS to be gone.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import environment, parser, show, target_here

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from worksite import SETTLE_SECS, Alone, Disturbance, NotDisturbed, Service, Site, State  # noqa: E402

from pitchpipe.processes.descendants import become_subreaper  # noqa: E402
from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig, Timed  # noqa: E402
from pitchpipe.wire.task import Workload  # noqa: E402
from tests.hostile import MISDEEDS, Misdeed, harmless, hostile, parallel  # noqa: E402

RUNS, QUICK_RUNS = 20, 2
GROWTH_BYTES = 8 << 20
"""Resident memory that the worker, or the zygote, may gain between the first and the last run of a kind."""
DEVICE_GROWTH_BYTES = 64 << 20
"""Likewise of the GPU's memory: the driver keeps some for itself."""
LIMITS = MeasureConfig(run_timeout_secs=10, memory_limit_bytes=1 << 30, max_secs=0.02)
TRIES = 5
"""Of a run, at most: one that was not disturbed is made again. Any other counts, whatever it gave."""
HANG_SECS = 2.0
"""The run limit for kinds that use it up."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row. `disturb` is done to the worker's processes while the misdeed runs: then it is the first of its batch."""

    name: str
    misdeed: Misdeed
    disturb: Disturbance | None = None


# -- disturbances from outside


def _kill_a_waiting_child(site: Site) -> bool:
    if found := site.asleep():
        found.waiting.kill()
    return found is not None


def _kill_the_workloads_process(site: Site) -> bool:
    if found := site.asleep():
        found.task.kill()
    return found is not None


def _kill_the_zygote(site: Site) -> bool:
    if found := site.asleep():
        site.zygote().kill()
    return found is not None


def cases(kind: str, *, alone: bool) -> list[Case]:
    """The table of a target kind. What is disturbed from outside is measured again, and then ends as it would have."""
    found = [Case(name=name, misdeed=misdeed) for name, misdeed in MISDEEDS[kind].items()]
    if kind == "llvm":
        sleeper = MISDEEDS["llvm"]["sleep_for_ever"]
        if not alone:  # It is the service that hands a candidate out again.
            found.append(Case(name="waiting_child_killed", misdeed=sleeper, disturb=_kill_a_waiting_child))
        found += [
            Case(name="workload_process_killed", misdeed=sleeper, disturb=_kill_the_workloads_process),
            Case(name="zygote_killed", misdeed=sleeper, disturb=_kill_the_zygote),
        ]
    return found


# -- the runs


@dataclass
class Tally:
    """Of one kind."""

    right_kind: int = 0
    others_unharmed: int = 0
    same_daemon: int = 0
    clean: int = 0
    survived: int = 0
    leaked_processes: int = 0
    leaked_files: int = 0
    complaints: list[str] = field(default_factory=list)


def run_case(site: Site, case: Case, runs: int) -> dict[str, Any]:
    """One row: the case `runs` times."""
    started = time.monotonic()
    kind, tally = site.target.kind, Tally()
    workload = hostile(case.misdeed, kind)
    bad, (first, second) = parallel(workload, kind), harmless(workload, kind)
    order = [first, bad, second] if case.disturb is None else [bad, first, second]
    hangs = case.misdeed.ends_as is FailureKind.RUN_TIMEOUT
    limits = LIMITS.model_copy(update={"run_timeout_secs": HANG_SECS}) if hangs else LIMITS
    before = site.settled(None)
    baseline: State | None = None
    for number in range(runs):
        results = {}
        for _ in range(TRIES):
            with suppress(NotDisturbed):
                results = site.measure(workload, order, limits, case.disturb)
                break
        if not site.alive():
            tally.complaints.append(f"run {number}: the worker ended")
            break
        state = site.settled(baseline)
        right = _ended_as(results.get(bad.digest), case.misdeed)
        unharmed = all(isinstance(results.get(other.digest), Timed) for other in (first, second))
        files = sorted(state.files - before.files)
        clean = not state.strays and not files
        tally.right_kind += right
        tally.others_unharmed += unharmed
        tally.same_daemon += 1
        tally.survived += right and unharmed and clean
        tally.leaked_processes = max(tally.leaked_processes, len(state.strays))
        tally.leaked_files = max(tally.leaked_files, len(files))
        if not (right and unharmed and clean):
            told = {digest[:8]: getattr(result, "detail", "timed") for digest, result in results.items()}
            tally.complaints.append(f"run {number}: {told}, left {sorted(state.strays)} {files}")
        baseline = baseline or state
    return _row(site, case, runs, tally, baseline, workload, [first, second]) | {
        "secs_per_run": (time.monotonic() - started) / runs
    }


def _row(
    site: Site,
    case: Case,
    runs: int,
    tally: Tally,
    baseline: State | None,
    workload: Workload,
    others: list[Candidate],
) -> dict[str, Any]:
    answers, descriptors, device = False, 0, 0
    grown = {"worker": 0, "zygote": 0}
    if baseline is not None and site.alive():
        after = site.settled(baseline)
        descriptors = max(0, after.descriptors - baseline.descriptors)
        grown = {name: max(0, after.resident_bytes[name] - size) for name, size in baseline.resident_bytes.items()}
        device = max(0, after.device_bytes - baseline.device_bytes)
        results = site.measure(workload, others, LIMITS)
        answers = len(results) == len(others) and all(isinstance(result, Timed) for result in results.values())
    kept = not descriptors and max(grown.values()) <= GROWTH_BYTES and device <= DEVICE_GROWTH_BYTES
    row: dict[str, Any] = {
        "kind": case.name,
        "ends_as": case.misdeed.ends_as.value if case.misdeed.ends_as else "timed",
        "runs": runs,
        "right_kind": tally.right_kind,
        "others_unharmed": tally.others_unharmed,
        "same_daemon": tally.same_daemon,
        "answers_after": answers,
        "leaked_processes": tally.leaked_processes,
        "leaked_files": tally.leaked_files,
        "leaked_descriptors": descriptors,
        "worker_grown_bytes": grown["worker"],
        "zygote_grown_bytes": grown["zygote"],
        "survived": tally.survived if kept and answers else 0,
    }
    if site.target.kind == "cuda":
        row["leaked_device_bytes"] = device
    if tally.complaints:
        row["complaints"] = tally.complaints[:3]
    return row


def _ended_as(result: Any, misdeed: Misdeed) -> bool:
    if misdeed.ends_as is None:
        return isinstance(result, Timed)
    return getattr(result, "kind", None) is misdeed.ends_as and misdeed.told in str(result.detail)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", choices=["llvm", "cuda"], default="llvm")
    arguments.add_argument("--alone", action="store_true", help="without a server: a sandbox in this process")
    arguments.add_argument("names", nargs="*", help="kinds to run; all by default")
    options = arguments.parse_args()
    runs = QUICK_RUNS if options.quick else RUNS
    target = target_here(options.target)
    become_subreaper()
    result: dict[str, Any] = {
        "environment": environment(
            gpu=options.target == "cuda",
            runs_per_kind=runs,
            target=options.target,
            **({"alone": True} if options.alone else {}),
            growth_bytes=GROWTH_BYTES,
            settle_secs=SETTLE_SECS,
            niceness=os.nice(0),
            user="root" if os.geteuid() == 0 else "not root",
        ),
        "rows": [],
    }
    kind = Alone if options.alone else Service
    chosen = [
        case for case in cases(options.target, alone=options.alone) if not options.names or case.name in options.names
    ]
    with tempfile.TemporaryDirectory() as folder, kind(Path(folder), target) as site:
        # The zygote and the first workload's process are there before anything is compared.
        warm = hostile(MISDEEDS[options.target]["wrong_output"], options.target)
        site.measure(warm, harmless(warm, options.target), LIMITS)
        for case in chosen:
            result["rows"].append(run_case(site, case, runs))
            print(f"{case.name}: {result['rows'][-1]['survived']} of {runs}", file=sys.stderr)
            if not site.alive():
                break
    rows = result["rows"]
    result["summary"] = {
        "cases": len(chosen) * runs,
        "survived": sum(row["survived"] for row in rows),
        "kinds": len(chosen),
        "leaked_processes": sum(row["leaked_processes"] for row in rows),
        "leaked_files": sum(row["leaked_files"] for row in rows),
        "leaked_descriptors": sum(row["leaked_descriptors"] for row in rows),
        "worst_grown_bytes": max(max(row["worker_grown_bytes"], row["zygote_grown_bytes"]) for row in rows),
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
