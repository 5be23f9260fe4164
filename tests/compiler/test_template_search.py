"""Points of templates in a search: beside traces, the best by the estimate first, then by what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.task import Workload
from tests.compiler.attention import attention
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tuner.ingest.metaschedule_files import export
from tuner.schedule.trace import apply_trace
from tuner.search.evolution import propose
from tuner.search.requests import Donor, ProposeRequest
from tuner.search.templates import (
    LEAST_MEASURED,
    LEAST_TRACES,
    SHARE,
    TEMPLATES_FIRST,
    propose_templates,
    share_of,
    traces_are_far_behind,
)
from tuner.templates.text import is_template, parse
from tuner.tvm_compat import load_ir


@pytest.fixture(scope="module")
def workload() -> Workload:
    return TEN["128x768x3072, residual"]()


def request(workload: Workload, n: int = 16) -> ProposeRequest:
    return ProposeRequest(
        workload=workload, target=HOPPER, measured=(), seen=frozenset(), model=None, n=n, seed=3
    )  # fmt: skip


def texts(wanted: ProposeRequest) -> list[str]:
    return [proposal.candidate.trace for proposal in propose_templates(wanted, 12)]


def test_a_batch_holds_templates_beside_traces_and_each_applies(workload: Workload) -> None:
    points = [one.text for one in kind_of(HOPPER).templates(workload, HOPPER)[:TEMPLATES_FIRST]]
    seen = frozenset(candidate_digest(workload.digest, text) for text in points)
    wanted = replace(request(workload), n=8, measured=tuple((text, 1e-5) for text in points), seen=seen)
    proposals = propose(wanted)
    traces = [proposal.candidate.trace for proposal in proposals]
    assert len(set(traces)) == 8
    assert sum(map(is_template, traces)) == 8 * SHARE
    for trace in traces:
        apply_trace(load_ir(workload.ir), trace)
    assert traces == [proposal.candidate.trace for proposal in propose(wanted)]


def test_a_task_is_searched_by_templates_alone_until_some_were_measured(workload: Workload) -> None:
    points = [one.text for one in kind_of(HOPPER).templates(workload, HOPPER)[: TEMPLATES_FIRST - 1]]
    few = replace(request(workload), n=8, measured=tuple((text, 1e-5) for text in points))
    assert all(is_template(proposal.candidate.trace) for proposal in propose(few))


def test_a_trace_of_another_workload_does_not_wait_for_templates(workload: Workload) -> None:
    donated = replace(request(workload), n=8, donors=(Donor(workload="0" * 64, trace='[["made up"],[]]'),))
    assert share_of(donated) == 8 * SHARE


def test_traces_that_are_far_behind_get_no_more_trials(workload: Workload) -> None:
    points = [one.text for one in kind_of(HOPPER).templates(workload, HOPPER)[:3]]
    known = [(f'[["made up"],[{n}]]', secs) for n, secs in enumerate([None] * 20 + [2e-5] * LEAST_TRACES)]
    behind = replace(request(workload), measured=((points[0], 1e-5), *known))
    assert traces_are_far_behind(behind)
    assert all(is_template(proposal.candidate.trace) for proposal in propose(behind))
    assert len(propose(behind)) == behind.n
    assert not traces_are_far_behind(replace(behind, measured=behind.measured[:-1])), "too few to tell"
    assert not traces_are_far_behind(replace(behind, measured=((points[0], 1.7e-5), *known))), "nearly as fast"
    assert not traces_are_far_behind(replace(behind, measured=known)), "no template has a time"


def test_where_templates_are_used_up_and_traces_far_behind_nothing_is_left() -> None:
    small = attention(1, 2, 32, 32, 16)
    points = kind_of(HOPPER).templates(small, HOPPER)
    seen = frozenset(candidate_digest(small.digest, one.text) for one in points)
    known = tuple((f'[["made up"],[{n}]]', 2e-5) for n in range(LEAST_TRACES))
    wanted = replace(request(small), seen=seen, measured=((points[0].text, 1e-5), *known))
    assert propose(wanted) == []


def test_nothing_seen_comes_again_and_the_first_ones_differ_in_their_tiles(workload: Workload) -> None:
    wanted = request(workload)
    first = propose_templates(wanted, 12)
    again = propose_templates(replace(wanted, seen=frozenset(one.candidate.digest for one in first)), 12)
    assert not {one.candidate.trace for one in first} & {one.candidate.trace for one in again}
    tiles = {
        tuple(parse(one.candidate.trace).arguments[name] for name in ("rows", "columns", "parts")) for one in first
    }
    assert len(tiles) >= 4


def hidden(arguments: Mapping[str, int]) -> float:
    """A device that differs from the estimate: it wants 32 columns, four parts and deep pipelines."""
    off = abs(math.log2(arguments["columns"] / 32)) + abs(math.log2(arguments["parts"] / 4))
    return 1e-5 * (1 + 0.3 * off + 0.1 * abs(arguments["stages"] - 4) + 0.1 * abs(math.log2(arguments["rows"] / 64)))


def searched(wanted: ProposeRequest, secs_of: Callable[[Mapping[str, int]], float], rounds: int, first: int) -> float:
    """The least time found. first: the seed of the first round."""
    measured: dict[str, float | None] = {}
    seen: set[str] = set()
    for seed in range(first, first + rounds):
        found = propose_templates(
            replace(wanted, measured=tuple(measured.items()), seen=frozenset(seen), seed=seed), 12
        )
        for proposal in found:
            measured[proposal.candidate.trace] = secs_of(parse(proposal.candidate.trace).arguments)
            seen.add(proposal.candidate.digest)
    return min(secs for secs in measured.values() if secs is not None)


@pytest.mark.long
def test_what_was_measured_corrects_the_estimate(workload: Workload) -> None:
    points = [parse(one.text).arguments for one in kind_of(HOPPER).templates(workload, HOPPER)]
    times = sorted(map(hidden, points))
    found = float(np.median([searched(request(workload), hidden, rounds=4, first=10 * n) for n in range(5)]))
    assert found <= 1.15 * times[0]
    drawn = np.random.default_rng(0).choice(times, size=(200, 48))
    assert found <= float(np.median(drawn.min(axis=1)))


def test_a_template_of_another_workload_is_tried_with_the_same_arguments(workload: Workload) -> None:
    donor = kind_of(HOPPER).templates(TEN["197x768x768, residual"](), HOPPER)[7].text
    wanted = replace(request(workload), donors=(Donor(workload="0" * 64, trace=donor),), donors_only=True)
    (proposal,) = propose(wanted)
    assert proposal.candidate.trace == donor
    assert proposal.source == "0" * 64


def test_failures_count_as_slow(workload: Workload) -> None:
    first = [proposal.candidate.trace for proposal in propose_templates(request(workload), 24)]
    measured = tuple((text, None if parse(text).arguments["rows"] == 64 else 1e-5) for text in first)
    assert sum(secs is not None for _, secs in measured) >= LEAST_MEASURED
    wanted = replace(request(workload, n=8), measured=measured, seed=5)
    rows = [parse(text).arguments["rows"] for text in texts(wanted)]
    assert rows.count(64) < len(rows) / 2


def test_where_traces_are_few_templates_take_their_place() -> None:
    """MetaSchedule has no schedule for rows of attention that it does not divide among threads."""
    small = attention(1, 2, 32, 32, 16)
    points = kind_of(HOPPER).templates(small, HOPPER)
    proposals = propose(replace(request(small), n=len(points) + 2))
    assert {one.text for one in points} <= {proposal.candidate.trace for proposal in proposals}


def test_exports_leave_templates_out(workload: Workload, tmp_path: object) -> None:
    assert export([(workload, texts(request(workload))[0], 1e-5)], HOPPER, tmp_path) == 0  # type: ignore[arg-type]


def test_other_devices_and_other_workloads_have_none() -> None:
    older = HOPPER.model_copy(update={"arch": "sm_75"})
    assert not kind_of(older).templates(TEN["attention, scores"](), older)
    ampere = HOPPER.model_copy(update={"arch": "sm_86"})
    points = kind_of(ampere).templates(TEN["attention, scores"](), ampere)
    assert points
    assert not any(parse(one.text).arguments["early"] for one in points)
