"""Default schedules that were checked: what a build gives the workloads that have no trial.

A default schedule is the one that models of the hardware rank best; nobody has measured it. So each is checked once before
a build uses it, on a machine that can run it: in a fork, on the input sets and with the tolerances of every candidate
(tuner/measure/check.py), against the reference program. `TargetKind.check_defaults` says which schedules a kind of target
has beside the baseline, and checks them. The verdict is kept in a folder by workload and target. The folder stands for what
else decides it: the versions of the compiler and of this code.

What fails its check, or ends the fork, runs the baseline, and the build says so by name.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from pydantic import ValidationError

from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.deploy.default_check import Answer, Checked, Named
from tuner.deploy.forks import Lost, in_forks

CHECK_SECS = 120.0
"""Longest check of a fork's schedules: a fifth of a second each on an idle core, except for the largest embeddings."""
MOST_AT_ONCE = 8
"""Schedules that a fork checks, where there are so many. If it ends before it has answered, each gets a fork of its own."""
MOST_ON_DEVICE = 8
"""Forks at a time that hold memory of a GPU: about half a gigabyte each for a context alone."""
TURNS = 4
"""Forks that each core has at least, where there are so many schedules: checks differ in how long they take."""


def checked_defaults(
    asked: Sequence[Named], target: Target, folder: Path, *, made: MutableMapping[str, bytes] | None = None
) -> Mapping[str, Checked]:
    """The default schedules by workload digest, checked now unless they were before.

    made: gets object code by workload digest, of schedules that were checked now and are right; see `Answer.code`.
    Empty for a target whose code this machine does not run: there nothing can be checked. Forks; at most one thread of the
    process calls it.
    """
    found = dict(remembered_defaults(asked, target, folder))
    unknown = [one for one in asked if one.workload.digest not in found]
    if not unknown or not kind_of(target).prepare_checks(target):
        return found
    at_once = max(1, min(MOST_AT_ONCE, len(unknown) // (TURNS * usable_cores())))
    # Neighbours in a model are alike, so they go to different forks.
    count = -(-len(unknown) // at_once)
    for one, answer in _answers([unknown[at::count] for at in range(count)], target):
        digest = one.workload.digest
        if isinstance(answer, Lost):
            checked, final = Checked(trace=BASELINE_TRACE, fault=answer.reason), answer.final
        else:
            checked, final = answer.checked, True
            if made is not None and checked.fault is None and answer.code:
                made[digest] = answer.code
        found[digest] = checked
        if final:
            _remember(_file(folder, one.workload, target), checked)
    return found


def _answers(groups: Sequence[Sequence[Named]], target: Target) -> list[tuple[Named, Answer | Lost]]:
    """Of every workload, those of a group from one fork. A group whose fork was lost is taken apart."""
    told, again = list[tuple[Named, Answer | Lost]](), list[Named]()
    kind = kind_of(target)
    lines = in_forks(
        lambda at: kind.check_defaults(groups[at], target),
        len(groups),
        processes=min(usable_cores(), MOST_ON_DEVICE) if kind.checks_on_device else usable_cores(),
        limit_secs=CHECK_SECS,
        confined=not kind.checks_on_device,
    )
    for group, line in zip(groups, lines, strict=True):
        if not isinstance(line, Lost):
            told += zip(group, Answer.decode_all(line), strict=True)
        elif len(group) == 1:
            told.append((group[0], line))
        else:
            again += group
    return [*told, *(_answers([[one] for one in again], target) if again else [])]


def remembered_defaults(asked: Sequence[Named], target: Target, folder: Path) -> Mapping[str, Checked]:
    """The same of those that were checked before."""
    found = {}
    for one in asked:
        with suppress(OSError, ValidationError):
            data = _file(folder, one.workload, target).read_bytes()
            found[one.workload.digest] = Checked.model_validate_json(data)
    return found


def _file(folder: Path, workload: Workload, target: Target) -> Path:
    return folder / f"{json_digest([workload.digest, target.key])}.json"


def _remember(path: Path, checked: Checked) -> None:
    """In one step. A folder that cannot be written forgets: the next build checks again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
            part.write(checked.model_dump_json())
        Path(part.name).replace(path)
