"""Lock files: stable text, pins that stay, and exactly what is pinned or a reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.deploy.coverage import Group, covered
from pitchpipe.deploy.identity import Identity
from pitchpipe.deploy.lockfile import Lock, LockedTarget, Pinned, locked, read, update
from pitchpipe.errors import IntegrityError, InvalidInput, NotFound, PitchpipeError
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.pin import PinnedSchedule, PinRequest, PinResponse
from pitchpipe.wire.record import Best, LookupRequest, LookupResponse, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature

TARGET = Target(kind="llvm", mcpu="znver5", num_cores=2)
OTHER = Target(kind="cuda", arch="sm_90")
A, B, C = (sha256(name.encode()) for name in "abc")


def identity(*workloads: str, toolchain: str = "t") -> Identity:
    signature = Signature(operators="op", anchor="S elements", extents=(1,), arguments=(), flops=100.0)
    weights = {workload: 1 + at for at, workload in enumerate(workloads)}
    return Identity(
        workloads=workloads, weights=weights, signatures=dict.fromkeys(workloads, signature), toolchain=toolchain
    )


def best(trace: str, *, record: bool = True, secs: float = 1e-3) -> Best:
    return Best(
        record=new_id("rec") if record else None,
        trace=trace,
        secs=secs,
        secs_low=secs,
        secs_high=secs,
        baseline_secs=secs,
        device_class="0" * 64,
        toolchain="t",
        confirmed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


class Service:
    """Serves `best` by workload; resolves whatever it ever served, unless it was made to forget."""

    def __init__(self, **served: Best) -> None:
        self.asked = 0
        self.known: dict[str, str] = {}
        self.best: dict[str, Best] = {}
        self.serve(**served)

    def serve(self, **served: Best) -> None:
        for name, each in served.items():
            self.best[sha256(name.encode())] = each
            if each.record is not None:
                self.known[each.record] = each.trace

    def lookup(self, request: LookupRequest, **_: Any) -> LookupResponse:
        return LookupResponse(answers=tuple(self.answer(workload) for workload in request.workloads))

    def answer(self, workload: str) -> ScheduleAnswer:
        found = self.best.get(workload)
        tier = Tier.EXACT if found is not None else Tier.NONE
        return ScheduleAnswer(workload=workload, tier=tier, reason="why", best=found)

    def pinned(self, request: PinRequest) -> PinResponse:
        self.asked += 1
        answers = []
        for pin in request.pins:
            trace = self.known.get(pin.record)
            reason = "" if trace else "no such record"
            answers.append(
                PinnedSchedule(workload=pin.workload, record=pin.record, trace=trace, secs=1e-3, reason=reason)
            )
        return PinResponse(schedules=tuple(answers))


def lock_of(service: Any, *known: Identity, before: Lock | None = None, upgrade: bool = False, cache: Path) -> Lock:
    before = before or Lock()
    section = update(before.section(TARGET), known, TARGET, service, upgrade=upgrade, cache=cache)
    return before.with_section(section)


digests = st.text("0123456789abcdef", min_size=64, max_size=64)
pinned = st.none() | st.builds(Pinned, record=st.text(min_size=1, max_size=64), trace=digests)


@given(st.dictionaries(digests, pinned, max_size=5), st.text(max_size=20))
def test_the_text_is_json_that_reads_as_what_was_written(workloads: dict[str, Any], toolchain: str) -> None:
    lock = Lock().with_section(LockedTarget(target=TARGET, toolchain=toolchain, workloads=workloads))
    lock = lock.with_section(LockedTarget(target=OTHER, toolchain="cuda", workloads={A: None}))
    text = lock.text()
    assert Lock.model_validate_json(text) == lock
    assert Lock.model_validate_json(json.dumps(json.loads(text))).text() == text
    lines = [line.strip() for line in text.splitlines()]
    for workload in workloads:
        assert sum(line.startswith(f'"{workload}"') for line in lines) == 1


def test_pins_stay_until_an_upgrade_and_what_is_gone_is_dropped(tmp_path: Path) -> None:
    service: Any = Service(a=best("[1]"), b=best("[2]", record=False))
    first = lock_of(service, identity(A, B), identity(B), cache=tmp_path)
    section = first.section(TARGET)
    assert section is not None
    assert section.workloads == {A: Pinned(record=service.best[A].record, trace=sha256(b"[1]")), B: None}
    service.serve(a=best("[3]"), c=best("[4]"))
    assert lock_of(service, identity(A, B), before=first, cache=tmp_path) == first
    grown = lock_of(service, identity(A, C), before=first, cache=tmp_path).section(TARGET)
    assert grown is not None
    assert (grown.workloads[A], set(grown.workloads)) == (section.workloads[A], {A, C})
    moved = lock_of(service, identity(A, B), before=first, upgrade=True, cache=tmp_path).section(TARGET)
    assert moved is not None
    assert moved.workloads[A] == Pinned(record=service.best[A].record, trace=sha256(b"[3]"))


@pytest.fixture
def service() -> Any:
    return Service(a=best("[1]"), b=best("[2]", record=False))


@pytest.fixture
def file(tmp_path: Path, service: Any) -> Path:
    path = tmp_path / "pitchpipe.lock"
    path.write_text(lock_of(service, identity(A, B), cache=tmp_path).text())
    return path


def test_exactly_what_is_pinned_is_run_and_the_second_time_nobody_is_asked(
    file: Path, service: Any, tmp_path: Path
) -> None:
    service.serve(a=best("[3]"), b=best("[4]"))
    found = locked(file, identity(A, B), TARGET, lambda: service, cache=tmp_path, deadline_secs=5.0)
    assert found.traces == {A: "[1]"}
    again = locked(file, identity(A), TARGET, lambda: pytest.fail("it was asked"), cache=tmp_path)
    assert again.traces == {A: "[1]"}
    (tmp_path / "traces" / sha256(b"[1]")).write_text("[2]")
    assert locked(file, identity(A), TARGET, lambda: service, cache=tmp_path).traces == {A: "[1]"}
    assert service.asked == 2


def test_what_does_not_resolve_is_named(file: Path, service: Any, tmp_path: Path) -> None:
    record = service.best[A].record
    service.known[record] = "[9]"
    with pytest.raises(IntegrityError, match=record):
        locked(file, identity(A), TARGET, lambda: service, cache=tmp_path)
    del service.known[record]
    with pytest.raises(NotFound, match=f"{record}: no such record"):
        locked(file, identity(A, B), TARGET, lambda: service, cache=tmp_path)
    service.pinned = lambda _: PinResponse(schedules=())
    with pytest.raises(PitchpipeError, match="other pins"):
        locked(file, identity(A), TARGET, lambda: service, cache=tmp_path)


def test_a_file_that_does_not_cover_the_model_is_refused(file: Path, service: Any, tmp_path: Path) -> None:
    def refused(known: Identity, target: Target = TARGET) -> str:
        with pytest.raises(InvalidInput) as caught:
            locked(file, known, target, lambda: service, cache=tmp_path)
        return caught.value.detail

    assert "lacks 1 of 2 workloads" in refused(identity(A, C))
    assert "here is another" in refused(identity(A, toolchain="another"))
    assert "nothing for the target" in refused(identity(A), OTHER)
    file.write_text("{}" * 2)
    assert "is no lock file" in refused(identity(A))
    with pytest.raises(NotFound, match="pitchpipe lock"):
        read(tmp_path / "absent")


def test_coverage_weighs_by_time_and_says_what_is_unknown() -> None:
    known = identity(A, B, C)
    near = ScheduleAnswer(workload=B, tier=Tier.COMPATIBLE_ISA, reason="why", best=best("[2]", secs=0.5))
    exact = ScheduleAnswer(workload=A, tier=Tier.EXACT, reason="why", best=best("[1]", secs=3.0))
    none = ScheduleAnswer(workload=C, tier=Tier.NONE, reason="nobody tuned it")
    found = covered(known, [exact, near, none])
    assert [(row.workload, row.secs) for row in found.workloads] == [(A, 3.0), (B, 1.0), (C, None)]
    shares = {share.group: share for share in found.shares}
    assert [shares[group].of_known_time for group in Group] == [0.75, 0.25, 0.0]
    assert [shares[group].of_flops for group in Group] == [1 / 6, 2 / 6, 3 / 6]
    assert (shares[Group.BASELINE].unknown, found.known_secs, found.complete) == (1, 4.0, False)
    assert covered(identity(A, B), [exact, near]).complete
    nothing = covered(identity(A), [])
    assert {share.of_known_time for share in nothing.shares} == {None}
