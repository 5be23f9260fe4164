"""Which points of templates are measured next.

Before anything is measured an estimate, which other workloads have corrected, ranks them (tuner/templates/space.py). Then
what was measured of the task corrects it: with e_i that estimate, t_i the time and x_i the features of a point, a ridge
regression finds w in

    log t_i = log e_i + w . x_i,        w = (X^T X + lambda I)^-1 X^T (log t - log e)

and the points with the least predicted times are next. The features are the template, logarithms of the arguments, and their
squares and products, so that an optimum inside of the space has a form. A share of the points is drawn at random from the
better half.
The XGBoost cost model, whose features are those of TIR, takes no part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitchpipe.errors import InvalidTrace
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import Candidate
from tuner.schedule.trace import decode_trace
from tuner.search.requests import Proposal, ProposeRequest
from tuner.templates.text import TEMPLATES, is_template, parse

SHARE = 0.75
"""Of a round's proposals, for templates where there are any: the others are MetaSchedule's, until they are far behind."""
TEMPLATES_FIRST = 16
"""Points of a task that are measured before any trace is proposed. The best of the first 16 is 1.01 times as slow as the
best of all (ADR 0087). A search for three points and a trace took 0.4 to 4.8 s, one for four points takes 0.04 to 0.2."""
LEAST_TRACES = 4
"""Traces with a time after which they are judged."""
FAR_BEHIND = 1.25
"""How many times the best template's time the best of them takes where no more are tried."""
EXPLORED = 0.125
"""Share of the templates that is drawn at random."""
RIDGE = 1.0
"""lambda: how much a feature must explain before it is believed."""
LEAST_MEASURED = 6
"""Points with a time from which a correction is learned."""
SLOWEST = 4.0
"""Times as long as the fastest that a point counts as, at most, as does one that failed."""


def propose_templates(request: ProposeRequest, wanted: int) -> list[Proposal]:
    """At most so many new points of templates, those of other workloads' schedules first."""
    ranked = kind_of(request.target).templates(request.workload, request.target)
    if not ranked or wanted <= 0:
        return []
    estimates = {one.text: one.estimate_secs for one in ranked}
    donors = [(_text(donor.trace), donor.workload) for donor in request.donors]
    given = {text: workload for text, workload in donors if text is not None and text in estimates}
    texts = list(given) if request.donors_only else [*given, *_chosen(request, estimates, wanted)]
    proposals: dict[str, Proposal] = {}
    for text in texts:
        if len(proposals) == wanted:
            break
        candidate = Candidate.of(request.workload.digest, text)
        if candidate.digest not in request.seen:
            proposals.setdefault(text, Proposal(candidate=candidate, features=None, source=given.get(text)))
    return list(proposals.values())


def share_of(request: ProposeRequest) -> int:
    """How many of a round's proposals are templates, while traces may be as fast. Traces that other workloads give do not
    wait for templates: they come with a task's first search alone."""
    known = sum(is_template(text) for text, _ in request.measured)
    if known < TEMPLATES_FIRST and all(is_template(donor.trace) for donor in request.donors):
        return request.n
    return max(1, round(request.n * SHARE)) if request.n > 0 else 0


def traces_are_far_behind(request: ProposeRequest) -> bool:
    """Whether so many traces were timed, none of them nearly as fast as the best template, that no more are tried."""
    timed = [(secs, is_template(text)) for text, secs in request.measured if secs is not None]
    templates = [secs for secs, template in timed if template]
    traces = [secs for secs, template in timed if not template]
    return bool(templates) and len(traces) >= LEAST_TRACES and min(traces) > FAR_BEHIND * min(templates)


def without_templates(request: ProposeRequest, n: int) -> ProposeRequest:
    """The request for `n` candidates that are traces, by what is known of traces."""
    return replace(
        request,
        n=n,
        measured=tuple(one for one in request.measured if not is_template(one[0])),
        donors=tuple(donor for donor in request.donors if not is_template(donor.trace)),
    )


def _text(trace: str) -> str | None:
    """The canonical text of a template; None for a trace, or for a template that is not known here."""
    try:
        return decode_trace(trace) if is_template(trace) else None
    except InvalidTrace:
        return None


def _chosen(request: ProposeRequest, estimates: dict[str, float], wanted: int) -> list[str]:
    """Texts in the order in which they are to be proposed."""
    measured = {text: secs for text, secs in request.measured if text in estimates}
    left = [text for text in estimates if candidate_digest(request.workload.digest, text) not in request.seen]
    if sum(secs is not None for secs in measured.values()) < LEAST_MEASURED:
        return left
    predicted = _predicted(left, measured, estimates)
    order = [left[int(at)] for at in np.argsort(predicted, kind="stable")]
    rng = np.random.default_rng([request.seed, int(request.workload.digest[:8], 16)])
    explored = round(wanted * EXPLORED)
    better = order[wanted - explored : max(wanted, len(order) // 2)]
    drawn = [better[int(at)] for at in rng.permutation(len(better))[:explored]]
    return [*order[: wanted - explored], *drawn, *order]


def _predicted(
    texts: Sequence[str], measured: dict[str, float | None], estimates: dict[str, float]
) -> NDArray[np.float64]:
    """Logarithms of the predicted times."""
    fastest = min(secs for secs in measured.values() if secs is not None)
    slowest = fastest * SLOWEST
    known = list(measured)
    times = np.array([min(measured[text] or slowest, slowest) for text in known])
    residual = np.log(times) - np.log([estimates[text] for text in known])
    both = _features([*known, *texts])
    mean, spread = both.mean(axis=0), np.maximum(both.std(axis=0), 1e-6)
    both = np.column_stack([np.ones(len(both)), (both - mean) / spread])
    x, rest = both[: len(known)], both[len(known) :]
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[0, 0] = 1e-6
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ residual)
    predicted: NDArray[np.float64] = np.log([estimates[text] for text in texts]) + rest @ weights
    return predicted


def _features(texts: Sequence[str]) -> NDArray[np.float64]:
    """Logarithms of the arguments, and their products of two."""
    chosen = [parse(text) for text in texts]
    numbers = [[list(TEMPLATES).index(one.template), *one.arguments.values()] for one in chosen]
    logs = np.log2(1.0 + np.array(numbers, dtype=np.float64))
    pairs: list[Any] = [
        logs[:, i] * logs[:, j] for i, j in itertools.combinations_with_replacement(range(logs.shape[1]), 2)
    ]
    return np.column_stack([logs, *pairs])
