"""The lock file: which record each workload of some models runs, so that every replica runs the same kernels.

    {
     "version": 1,
     "targets": [
      {
       "target": {"kind":"llvm","mcpu":"znver5","num-cores":2},
       "toolchain": "tvm ...",
       "workloads": {
        "04f3...": {"record":"rec_01k...","trace":"9b2e..."},
        "5c11...": null
       }
      }
     ]
    }

One line per workload, in the order of digests: a change is one line of a diff. `null` pins the baseline. A pin
has the digest of its trace, so what a service answers is checked, and what was fetched once is read from the cache.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from pitchpipe.client import Client
from pitchpipe.deploy import identity, lookup
from pitchpipe.errors import IntegrityError, InvalidInput, NotFound, PitchpipeError
from pitchpipe.processes.deadline import within
from pitchpipe.wire._base import Digest, Seconds, Wire
from pitchpipe.wire.ids import canonical_json, sha256
from pitchpipe.wire.pin import Pin, PinnedSchedule, PinRequest
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target

FILE_NAME = "pitchpipe.lock"
MAX_PINS = 4096
"""Of one request."""


class Pinned(Wire):
    """A record, and the digest of its trace."""

    record: str = Field(min_length=1, max_length=64)
    trace: Digest


class LockedTarget(Wire):
    """The pins for one target."""

    target: Target
    toolchain: str
    workloads: dict[Digest, Pinned | None]


class Lock(Wire):
    """A lock file."""

    version: int = 1
    targets: tuple[LockedTarget, ...] = ()

    def section(self, target: Target) -> LockedTarget | None:
        """The pins for exactly this target."""
        return next((found for found in self.targets if found.target.key == target.key), None)

    def with_section(self, section: LockedTarget) -> Lock:
        """The same with this target's pins replaced."""
        others = [found for found in self.targets if found.target.key != section.target.key]
        return Lock(targets=tuple(sorted([*others, section], key=lambda found: found.target.key)))

    def text(self) -> str:
        """The file: equal locks have equal text."""
        sections = []
        for section in self.targets:
            pins = ",\n".join(
                f'    "{workload}": {_line(pin.model_dump() if pin is not None else None)}'
                for workload, pin in sorted(section.workloads.items())
            )
            sections.append(
                f'  {{\n   "target": {_line(section.target.attributes())},\n   "toolchain": {_line(section.toolchain)},\n'
                f'   "workloads": {{\n{pins}\n   }}\n  }}'
            )
        return '{\n "version": 1,\n "targets": [\n' + ",\n".join(sections) + "\n ]\n}\n"


@dataclass(frozen=True, kw_only=True)
class Locked(lookup.Schedules):
    """The schedules that a lock file pins. `response` has no answers: nothing was looked up."""

    pinned: dict[Digest, str]
    """Traces by workload; the others have none."""
    secs: dict[Digest, Seconds]
    """Median seconds in the confirming run, where the service was asked."""

    @property
    def traces(self) -> dict[str, str]:
        return dict(self.pinned)


def read(path: Path) -> Lock:
    """Raises NotFound when there is no file, InvalidInput when it is no lock file of this version."""
    try:
        lock = Lock.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}: `pitchpipe lock` writes it") from error
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidInput(f"{path} is no lock file: {error.errors()[0]['msg']}") from error
    if lock.version != 1:
        raise InvalidInput(f"{path} has version {lock.version}; this is for version 1")
    return lock


def update(
    before: LockedTarget | None,
    known: Iterable[identity.Identity],
    target: Target,
    client: Client,
    *,
    upgrade: bool,
    cache: Path,
) -> LockedTarget:
    """The pins of these models for the target.

    What was pinned stays so unless `upgrade`; new workloads get what is served now, and others are dropped.
    """
    models = list(known)
    old = before.workloads if before is not None and not upgrade else {}
    pins: dict[str, Pinned | None] = {}
    for model in models:
        found = lookup.look_up([model], target, client, here=True, cache=cache)
        for answer in found.response.answers:
            best = answer.best
            served = Pinned(record=best.record, trace=sha256(best.trace.encode())) if best and best.record else None
            pins[answer.workload] = old.get(answer.workload, served)
    return LockedTarget(target=target, toolchain=models[0].toolchain, workloads=pins)


def locked(
    path: Path,
    known: identity.Identity,
    target: Target,
    client: Callable[[], Client],
    *,
    cache: Path,
    deadline_secs: float | None = None,
) -> Locked:
    """Exactly the schedules that the file pins for a model. `client` is called only for traces that are not kept here.

    Raises InvalidInput when the file does not cover the model with this compiler, NotFound naming the pins that no longer
    resolve, IntegrityError for an answer that is not what was pinned, and errors of the service.
    """
    section = read(path).section(target)
    if section is None:
        raise InvalidInput(f"{path} has nothing for the target {target.key}: run `pitchpipe lock`")
    if section.toolchain != known.toolchain:
        raise InvalidInput(
            f"{path} is of {section.toolchain}, here is {known.toolchain}: run `pitchpipe lock --upgrade`"
        )
    if missing := [workload for workload in known.workloads if workload not in section.workloads]:
        raise InvalidInput(f"{path} lacks {len(missing)} of {len(known.workloads)} workloads: run `pitchpipe lock`")
    pins = {workload: pin for workload in known.workloads if (pin := section.workloads[workload]) is not None}
    traces = {workload: text for workload, pin in pins.items() if (text := _kept(cache, pin.trace)) is not None}
    wanted = [Pin(workload=workload, record=pins[workload].record) for workload in pins if workload not in traces]
    secs: dict[str, float] = {}
    if wanted:
        service = client()
        answers = within(deadline_secs, lambda: resolve(service, target, wanted), "the look-up")
        if gone := [f"{answer.record}: {answer.reason}" for answer in answers if answer.trace is None]:
            raise NotFound(f"{len(gone)} of {len(pins)} pins of {path} do not resolve: {'; '.join(gone)}")
        for answer in answers:
            trace = answer.trace or ""
            if sha256(trace.encode()) != pins[answer.workload].trace:
                raise IntegrityError(f"{answer.record} has another trace than the one that {path} pins")
            _keep(cache, trace)
            traces[answer.workload] = trace
            if answer.secs is not None:
                secs[answer.workload] = answer.secs
    return Locked(target=target, response=LookupResponse(answers=()), pinned=traces, secs=secs)


def resolve(client: Client, target: Target, pins: list[Pin]) -> list[PinnedSchedule]:
    """What the service says of the pins, in their order."""
    answers: list[PinnedSchedule] = []
    for start in range(0, len(pins), MAX_PINS):
        answers += client.pinned(PinRequest(target=target, pins=tuple(pins[start : start + MAX_PINS]))).schedules
    if [(answer.workload, answer.record) for answer in answers] != [(pin.workload, pin.record) for pin in pins]:
        raise PitchpipeError("the service answered for other pins than it was asked for")
    return answers


def _line(value: object) -> str:
    return canonical_json(value).decode() if not isinstance(value, str) else json.dumps(value)


def _kept(cache: Path, digest: str) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = (cache / "traces" / digest).read_text()
        return text if sha256(text.encode()) == digest else None
    return None


def _keep(cache: Path, trace: str) -> None:
    identity.write_text(cache / "traces" / sha256(trace.encode()), trace)
