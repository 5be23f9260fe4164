"""Look-ups of deployments: who is asked, what counts as an answer, and which workloads are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pitchpipe.client import Client
from pitchpipe.deploy import lookup, misses
from pitchpipe.deploy.identity import Identity
from pitchpipe.deploy.lookup import LocalDatabase, Schedules, look_up, source_of
from pitchpipe.errors import InvalidInput, PitchpipeError, Unreachable
from pitchpipe.model.local import LocalModel
from pitchpipe.wire.context import contexts_of
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.miss import MissReceipt, MissReport
from pitchpipe.wire.record import LookupRequest, LookupResponse, ScheduleAnswer, Tier
from pitchpipe.wire.target import Target

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
A, B, C = (sha256(name.encode()) for name in "abc")
SERVICE = "http://service"


def identity(**weights: int) -> Identity:
    named = {sha256(name.encode()): times for name, times in weights.items()}
    return Identity(workloads=tuple(named), weights=named, signatures={}, toolchain="tvm")


def answers(request: LookupRequest, tier: Tier = Tier.NONE) -> LookupResponse:
    return LookupResponse(
        answers=tuple(ScheduleAnswer(workload=one, tier=tier, reason="a test says so") for one in request.workloads)
    )


class Fake:
    """A source: it answers, or raises; what it answered is kept by request."""

    def __init__(self) -> None:
        self.asked: list[LookupRequest] = []
        self.kept: dict[str, LookupResponse] = {}
        self.fails: PitchpipeError | None = None

    def lookup(self, request: LookupRequest, *, cache: Path | None = None) -> LookupResponse:
        self.asked.append(request)
        if self.fails is not None:
            raise self.fails
        self.kept[request.model_dump_json()] = found = answers(request)
        return found

    def earlier_lookup(self, request: LookupRequest, cache: Path) -> LookupResponse | None:
        return self.kept.get(request.model_dump_json())


def ask(source: Any, cache: Path, **how: Any) -> Schedules:
    return look_up([identity(a=1, b=2), identity(b=1, c=1)], TARGET, source, here=False, cache=cache, **how)


def test_the_workloads_of_several_models_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Fake()
    found = ask(source, tmp_path)
    assert [answer.workload for answer in found.response.answers] == [A, B, C]
    (request,) = source.asked
    assert (request.workloads, request.toolchain, request.device_class) == ((A, B, C), "tvm", None)
    monkeypatch.setattr(lookup, "MAX_WORKLOADS", 2)
    assert ask(source, tmp_path) == found
    assert [one.workloads for one in source.asked[1:]] == [(A, B), (C,)]


def test_a_context_is_named_where_all_models_agree_on_it(tmp_path: Path) -> None:
    """b is between a and c in one model and at the end of the other; nobody can say which of them will run."""
    source = Fake()
    one = identity(a=1, b=1, c=1).model_copy(update={"contexts": contexts_of([A, B, C])})
    other = identity(a=1, b=1).model_copy(update={"contexts": contexts_of([A, B])})
    look_up([one], TARGET, source, here=False, cache=tmp_path)
    look_up([one, other], TARGET, source, here=False, cache=tmp_path)
    look_up([identity(a=1)], TARGET, source, here=False, cache=tmp_path)
    named = [{placed.workload: placed.context for placed in request.contexts} for request in source.asked]
    assert named[0] == {workload: context.digest for workload, context in one.contexts.items()}
    assert set(named[1]) == {A, C}
    assert named[2] == {}


def test_an_earlier_answer_counts_only_for_who_takes_it_and_only_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Fake()
    monkeypatch.setattr(lookup, "MAX_WORKLOADS", 2)
    first = ask(source, tmp_path)
    source.fails = Unreachable("it is away")
    with pytest.raises(Unreachable, match="it is away"):
        ask(source, tmp_path)
    again = ask(source, tmp_path, or_earlier=True)
    assert (again.response, again.stale) == (first.response, "it is away")
    source.kept.popitem()
    with pytest.raises(Unreachable, match="it is away"):
        ask(source, tmp_path, or_earlier=True)


def test_a_source_that_is_known_to_be_away_is_not_asked(tmp_path: Path) -> None:
    source = Fake()
    first = ask(source, tmp_path)
    assert ask(source, tmp_path, or_earlier=True, away="it failed").response == first.response
    with pytest.raises(Unreachable, match="it failed"):
        ask(Fake(), tmp_path, or_earlier=True, away="it failed")
    assert len(source.asked) == 1


def test_answers_for_other_workloads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Fake()
    monkeypatch.setattr(source, "lookup", lambda _request, cache: LookupResponse(answers=()))
    with pytest.raises(PitchpipeError, match="other workloads"):
        ask(source, tmp_path)


def test_a_service_is_asked_before_the_database_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "p.db"
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", f"sqlite:///{database}")
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    with pytest.raises(InvalidInput, match="PITCHPIPE_URL"), source_of(None):
        pass
    database.touch()
    with source_of(None) as source:
        assert isinstance(source, LocalDatabase)
    with source_of(None, SERVICE) as source:
        assert isinstance(source, Client)
    monkeypatch.setenv("PITCHPIPE_URL", SERVICE)
    with source_of(None) as source:
        assert isinstance(source, Client)


def test_a_database_that_is_none_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "p.db").write_text("this is no database")
    with pytest.raises(PitchpipeError, match=r"p\.db"):
        ask(LocalDatabase(f"sqlite:///{tmp_path / 'p.db'}"), tmp_path)


def test_a_miss_counts_as_often_as_it_occurs_and_an_earlier_answer_is_none() -> None:
    tiers = {A: Tier.NONE, B: Tier.TRANSFERRED, C: Tier.SAME_ARCH}
    given = tuple(ScheduleAnswer(workload=one, tier=tier, reason="why") for one, tier in tiers.items())
    found = Schedules(target=TARGET, response=LookupResponse(answers=given))
    assert misses.missed(found, identity(a=3, c=1)) == {A: 3}
    assert misses.missed(found, identity(b=2)) == {B: 2}
    stale = Schedules(target=TARGET, response=LookupResponse(answers=given), stale="it is away")
    assert misses.missed(stale, identity(a=3)) == {}


def test_a_model_is_uploaded_only_for_what_the_service_does_not_know() -> None:
    class Service:
        def __init__(self) -> None:
            self.told: list[tuple[str | None, dict[str, int]]] = []

        def report_misses(self, report: MissReport) -> MissReceipt:
            self.told.append((report.model, {one.workload: one.runs for one in report.misses}))
            unknown = tuple(one.workload for one in report.misses if one.workload == B and report.model is None)
            return MissReceipt(counted=len(report.misses) - len(unknown), unknown=unknown)

        def upload_model(self, data: bytes, *, name: str, format: ModelFormat) -> Any:
            assert (data, name, format) == (b"graph", "m", ModelFormat.RELAX)
            return type("Uploaded", (), {"id": "mdl_1"})

    service: Any = Service()
    model = LocalModel(name="m", format=ModelFormat.RELAX, data=b"graph", weights={})
    assert misses.report(service, model, TARGET, {A: 2, B: 5}) == MissReceipt(counted=2)
    assert service.told == [(None, {A: 2, B: 5}), ("mdl_1", {B: 5})]
    service.told.clear()
    assert misses.report(service, model, TARGET, {A: 1}) == MissReceipt(counted=1)
    assert service.told == [(None, {A: 1})]
