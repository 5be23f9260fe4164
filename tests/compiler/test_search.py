"""The search: pure, seeded, never the same candidate twice, and better than drawing at random."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import programs
from tests.compiler.test_transfer import refit
from tuner.schedule.trace import decode_trace, encode_trace, without_postproc
from tuner.search import evolution as search
from tuner.search.cost_model import CostModel, train, unpack_features
from tuner.search.evolution import propose
from tuner.search.population import family_of
from tuner.search.requests import Donor, Proposal, ProposeRequest, Sample
from tuner.space import Space, space_of
from tuner.target_kinds.cpu import CpuKind
from tuner.tvm_compat import relax


def request(workload: Workload, n: int = 6, seed: int = 0, **changes: Any) -> ProposeRequest:
    base: dict[str, Any] = {"target": programs.TARGET, "measured": (), "seen": frozenset(), "model": None}
    return ProposeRequest(workload=workload, n=n, seed=seed, **(base | changes))


def proxy_secs(features: bytes | None) -> float:
    """A time that is a formula over the lowered program: for each store arithmetic over lanes, cache lines touched
    (dearer the more bytes pass before they are used again), a little for every parallel chunk, over at most two
    cores."""
    rows = unpack_features(features or b"").astype(np.float64)
    amounts = np.exp2(rows) - 1
    arithmetic = amounts[:, 0:7].sum(axis=1) / np.clip(amounts[:, 18], 1, 16)
    lines = (amounts[:, 57:147].reshape(-1, 5, 18)[:, :, 5] * (1 + rows[:, 57:147].reshape(-1, 5, 18)[:, :, 11])).sum(
        axis=1
    )
    return float(((arithmetic + lines / 8) / np.clip(amounts[:, 40], 1, 2) + 100 * amounts[:, 40]).sum() * 1e-9)


def measured_of(proposals: list[Proposal]) -> list[tuple[str, float]]:
    return [(p.candidate.trace, proxy_secs(p.features)) for p in proposals]


def model_of(workload: Workload, proposals: list[Proposal]) -> bytes:
    samples = [
        Sample(workload=workload.digest, features=p.features or b"", secs=proxy_secs(p.features)) for p in proposals
    ]
    trained = train(samples, 0)
    assert trained is not None
    return trained.data


@pytest.fixture(scope="module")
def first() -> list[Proposal]:
    """So many that a cost model ranks the next ones."""
    return propose(request(programs.conv(), n=CpuKind.ranked_after))


@pytest.fixture(scope="module")
def model(first: list[Proposal]) -> bytes:
    return model_of(programs.conv(), first)


def test_proposals_are_distinct_valid_candidates_with_features(first: list[Proposal]) -> None:
    workload = programs.conv()
    assert len({p.candidate.digest for p in first}) == len(first) == CpuKind.ranked_after
    for proposal in first[:4]:
        assert decode_trace(proposal.candidate.trace) == proposal.candidate.trace
        assert proposal.candidate.digest == candidate_digest(workload.digest, proposal.candidate.trace)
        assert proposal.features is not None
        assert np.isfinite(unpack_features(proposal.features)).all()


@pytest.mark.long
def test_the_same_request_gives_the_same_proposals(
    first: list[Proposal], model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = tuple(measured_of(first))
    guided = request(programs.conv(), measured=measured, model=model, seen=frozenset(p.candidate.digest for p in first))
    once = propose(guided)
    assert propose(guided) == once
    space_of.cache_clear()
    monkeypatch.setattr(search, "usable_cores", lambda: 1)
    assert propose(guided) == once, "neither a cold cache nor the number of threads matters"
    assert propose(request(programs.conv(), n=16, seed=1)) != propose(request(programs.conv(), n=16, seed=0))


ELSEWHERE = """
import pickle, sys
from tuner.execution.steps import propose
print("\\n".join(p.candidate.digest for p in propose(pickle.load(sys.stdin.buffer))))
"""


def test_another_process_gives_the_same_proposals(first: list[Proposal], model: bytes) -> None:
    guided = request(programs.conv(), measured=tuple(measured_of(first)), model=model)
    child = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps(guided),
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "3"},
    )
    assert child.stdout.decode().split() == [p.candidate.digest for p in propose(guided)]


@pytest.mark.long
def test_nothing_seen_is_proposed_again(first: list[Proposal], model: bytes) -> None:
    seen = frozenset(p.candidate.digest for p in first)
    again = propose(request(programs.conv(), n=24, seen=seen))
    assert len(again) == 24
    assert seen.isdisjoint(p.candidate.digest for p in again)
    measured = tuple(measured_of(first))
    guided = propose(request(programs.conv(), n=24, seen=seen, measured=measured, model=model))
    assert len(guided) == 24
    assert seen.isdisjoint(p.candidate.digest for p in guided)


def test_a_small_space_is_exhausted_without_repeating() -> None:
    workload = programs.workload(lambda builder, x: relax.op.nn.relu(x), (4, 4))
    seen: set[str] = set()
    for seed in range(20):
        proposals = propose(request(workload, n=8, seen=frozenset(seen), seed=seed))
        assert seen.isdisjoint(p.candidate.digest for p in proposals)
        seen |= {p.candidate.digest for p in proposals}
        if not proposals:
            break
    assert not proposals
    assert 1 <= len(seen) < 100


def test_zero_wanted_is_zero_proposed() -> None:
    assert propose(request(programs.conv(), n=0)) == []


def test_the_best_predicted_come_first(first: list[Proposal], model: bytes) -> None:
    guided = propose(request(programs.conv(), n=8, model=model, measured=tuple(measured_of(first))))
    predicted = [p.candidate.predicted for p in guided]
    assert predicted == sorted(predicted, key=lambda s: -(s or 0))
    recomputed = CostModel.load(model).predict([unpack_features(p.features or b"") for p in guided])
    assert predicted == [pytest.approx(score) for score in recomputed]


def test_while_few_are_measured_seeds_come_first_and_nothing_is_predicted(model: bytes) -> None:
    seeds = [encode_trace(seed) for seed in space_of(programs.conv(), programs.TARGET).analytic_seeds]
    proposals: list[Proposal] = []
    for _ in range(2):
        seen = frozenset(p.candidate.digest for p in proposals)
        measured = tuple(measured_of(proposals))
        proposals += propose(request(programs.conv(), n=5, model=model, measured=measured, seen=seen))
    assert [without_postproc(p.candidate.trace) for p in proposals] == seeds[:10]
    assert all(p.candidate.predicted is None for p in proposals)


def test_children_of_the_fastest_follow_the_seeds() -> None:
    workload = programs.dense(rows=128, reduction=256, columns=256)
    seeds = propose(request(workload, n=len(space_of(workload, programs.TARGET).analytic_seeds)))
    seen, measured = frozenset(p.candidate.digest for p in seeds), tuple(measured_of(seeds))
    children = propose(request(workload, n=6, seen=seen, measured=measured))
    parents = {family_of(without_postproc(trace)) for trace, _ in sorted(measured, key=lambda pair: pair[1])[:8]}
    assert len(children) == 6
    # A child that is known already gives its place to a random point.
    assert sum(family_of(without_postproc(p.candidate.trace)) in parents for p in children) >= 4


@pytest.mark.parametrize("poison", [b"", b"PPCM\x01", b"\x00" * 500])
def test_a_poisoned_model_slows_the_search_and_changes_nothing_else(poison: bytes) -> None:
    assert propose(request(programs.conv(), model=poison)) == propose(request(programs.conv(), model=None))


def test_measured_traces_that_do_not_apply_are_no_parents() -> None:
    foreign = propose(request(programs.dense(), n=3))
    measured = tuple((p.candidate.trace, 1e-3) for p in foreign)
    assert len(propose(request(programs.conv(), n=3, measured=measured))) == 3


def test_failures_are_no_parents_but_are_remembered(first: list[Proposal]) -> None:
    failed = tuple((p.candidate.trace, None) for p in first)
    again = propose(request(programs.conv(), n=24, measured=failed))
    assert {p.candidate.trace for p in again}.isdisjoint(trace for trace, _ in failed)


def test_a_candidate_that_fails_in_the_search_is_refused_alone(
    first: list[Proposal], monkeypatch: pytest.MonkeyPatch
) -> None:
    extract, failed = Space.features, []

    def features(self: Space, schedule: Any) -> Any:
        if zlib.crc32((trace := encode_trace(schedule.trace)).encode()) % 4 == 0:
            failed.append(trace)
            raise RuntimeError("the feature extractor met what it does not know")
        return extract(self, schedule)

    monkeypatch.setattr(Space, "features", features)
    found = propose(request(programs.conv(), n=24))
    assert failed
    assert len(found) == 24
    assert {p.candidate.trace for p in found}.isdisjoint(failed)


def test_a_space_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(mod: Any, target: Target) -> list[Any]:
        raise RuntimeError("a workload that nobody thought of")

    monkeypatch.setattr(CpuKind, "design_spaces", lambda _: (broken,))
    space_of.cache_clear()
    assert len(propose(request(programs.conv(), n=4))) == 4
    space_of.cache_clear()


def test_the_first_round_has_the_analytic_seeds_and_something_of_every_sketch(
    first: list[Proposal], model: bytes
) -> None:
    """With or without a model, which may have learnt from other tasks."""
    whole = space_of(programs.conv(), programs.TARGET)
    sketches = {family_of(encode_trace(schedule.trace.simplified(True))) for schedule in whole.schedules}
    seeds = {encode_trace(seed) for seed in whole.analytic_seeds}
    assert len(seeds) > 3
    for proposals in (first, propose(request(programs.conv(), n=24, model=model))):
        keys = {without_postproc(p.candidate.trace) for p in proposals}
        assert seeds <= keys
        assert sketches <= {family_of(key) for key in keys}


def test_without_a_model_the_analytic_seeds_come_first_in_their_order(first: list[Proposal]) -> None:
    """Of a large workload few are measured before a job's seconds are over; the default schedule is the first of them."""
    seeds = [encode_trace(seed) for seed in space_of(programs.conv(), programs.TARGET).analytic_seeds]
    keys = [without_postproc(p.candidate.trace) for p in first]
    assert keys[: len(seeds)] == seeds


def test_analytic_seeds_that_a_small_round_left_come_in_the_next() -> None:
    seeds = {encode_trace(seed) for seed in space_of(programs.conv(), programs.TARGET).analytic_seeds}
    taken: set[str] = set()
    measured: list[tuple[str, float]] = []
    seen: set[str] = set()
    while len(taken) < len(seeds):
        fresh = propose(request(programs.conv(), n=4, measured=tuple(measured), seen=frozenset(seen)))
        of_round = {without_postproc(p.candidate.trace) for p in fresh} & seeds
        assert len(of_round) >= min(3, len(seeds - taken))
        assert taken.isdisjoint(of_round)
        taken |= of_round
        measured += measured_of(fresh)
        seen |= {p.candidate.digest for p in fresh}


def test_a_design_space_is_a_list_of_schedules_of_the_workload() -> None:
    schedules = space_of(programs.conv(), programs.TARGET).schedules
    assert len(schedules) >= 3
    assert all(json.loads(encode_trace(schedule.trace))[0] for schedule in schedules)
    other = Target.parse(programs.TARGET.attributes() | {"num-cores": 64})
    assert space_of(programs.conv(), other) is not space_of(programs.conv(), programs.TARGET)


def random_best(workload: Workload, trials: int, seed: int) -> float:
    """Best of as many candidates drawn from the same space with no feedback at all."""
    return min(secs for _, secs in measured_of(propose(request(workload, n=trials, seed=seed))))


def searched_best(workload: Workload, trials: int, batch: int, seed: int) -> float:
    """Best of a search that learns from every batch."""
    proposals: list[Proposal] = []
    measured: list[tuple[str, float]] = []
    for start in range(0, trials, batch):
        seen = frozenset(p.candidate.digest for p in proposals)
        model = model_of(workload, proposals) if start else None
        fresh = propose(request(workload, batch, seed + start, measured=tuple(measured), seen=seen, model=model))
        proposals += fresh
        measured += measured_of(fresh)
    return min(secs for _, secs in measured)


@pytest.mark.long
def test_the_search_is_no_worse_than_random(monkeypatch: pytest.MonkeyPatch) -> None:
    # MetaSchedule's space alone: in a space shaped by the hardware most candidates are good, and random is hard to beat.
    monkeypatch.setattr(CpuKind, "design_spaces", lambda _: ())
    space_of.cache_clear()
    workload = programs.conv(height=14, channels=32, outputs=32)
    seeds = (1, 1001, 2001)
    random = np.array([random_best(workload, 48, seed) for seed in seeds])
    searched = np.array([searched_best(workload, 48, 16, seed) for seed in seeds])
    space_of.cache_clear()
    # Geometric mean over seeds: one lucky draw of the random side does not decide.
    assert np.log(searched).mean() <= np.log(random).mean()


def test_what_other_workloads_schedules_become_is_proposed_first(first: list[Proposal]) -> None:
    wide = programs.conv(20, 32, 48)
    donors = tuple(Donor(workload=str(n), trace=p.candidate.trace) for n, p in enumerate(first[:3]))
    found = propose(request(wide, n=8, donors=donors))
    assert len(found) == 8
    refitted = {p.source: p.candidate for p in found if p.source is not None}
    assert {d.trace: refit(d.trace, wide, programs.TARGET) for d in donors} == {
        donors[int(source)].trace: candidate.trace for source, candidate in refitted.items()
    }
    alone = propose(request(wide, n=8, donors=donors, donors_only=True))
    assert {p.candidate.digest for p in alone} == {candidate.digest for candidate in refitted.values()}
    assert all(p.features for p in alone)
    seen = frozenset(p.candidate.digest for p in alone)
    assert propose(request(wide, n=8, donors=donors, donors_only=True, seen=seen)) == []
    assert propose(request(wide, n=8, donors_only=True)) == []
