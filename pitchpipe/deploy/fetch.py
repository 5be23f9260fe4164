"""Fetching: the schedules of a job or of any model, from a service or as a lock file pins them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy import identity, misses
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.lockfile import locked
from pitchpipe.deploy.lookup import Schedules, look_up, resolve_target, service_of, source_of
from pitchpipe.deploy.named_target import named_target
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.processes.deadline import within
from pitchpipe.wire.job import JobView, ModelView
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")


def fetch(
    model_or_job: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    client: Client | None = None,
    trust: bool = False,
    deadline_secs: float | None = None,
    cache: Path | None = None,
    lock: str | Path | None = None,
    report_misses: bool = False,
    precision: str = "ieee",
) -> Schedules:
    """The best known schedules for a job or an uploaded model (a view or an id), or for any model.

    The last may never have been submitted: its workloads are looked up by their digests. With the target "auto" an answer
    is `exact` where it was confirmed on hardware like this machine's, with the same compiler.

    Without a client the service at PITCHPIPE_URL is asked for a model's schedules, and without that the database that
    `pitchpipe tune` fills on this machine. Raises InvalidInput where there is neither.

    `deadline_secs` is of the answer, repetitions included: whatever the service does, or is, the answer or an error of
    pitchpipe.errors comes by then. Finding out which workloads a model has takes a compiler: seconds, once per model and
    machine.

    `precision` is that which the model was submitted with (`pitchpipe.submit`); a job and an uploaded model have theirs.

    With a `lock` file exactly what it pins is fetched, and what was fetched before is taken from the cache without asking
    (see lockfile.py). `report_misses` tells the service, within as many seconds again, which workloads a model here misses,
    so that idle workers may tune them; a report that fails is logged. A local database takes no reports.
    """
    if lock is not None:
        return _fetch_locked(
            local_model(model_or_job, example_inputs, trust=trust, precision=precision),
            target,
            client,
            Path(lock),
            deadline_secs,
            cache,
        )
    if isinstance(model_or_job, (JobView, ModelView)):
        model_or_job = model_or_job.id
    if isinstance(model_or_job, str) and model_or_job.startswith(("job_", "mdl_")):
        named = model_or_job
        with service_of(client, deadline_secs=deadline_secs) as service:
            wanted = target if isinstance(target, Target) else named_target(target, service)
            found = within(deadline_secs, lambda: service.fetch(named, wanted), "the look-up")
        return Schedules(target=wanted, response=found)
    folder = cache or cache_dir()
    with source_of(client, deadline_secs=deadline_secs) as source:
        if isinstance(source, Client) and isinstance(target, str) and target != "auto":
            wanted = named_target(target, source)
        else:
            wanted = resolve_target(target, folder)
        model = local_model(model_or_job, example_inputs, trust=trust, precision=precision)
        known = identity.identify(folder, model, wanted)
        schedules = look_up([known], wanted, source, here=target == "auto", cache=folder, deadline_secs=deadline_secs)
        if report_misses and isinstance(source, Client) and (runs := misses.missed(schedules, known)):
            try:
                within(deadline_secs, lambda: misses.report(source, model, wanted, runs), "the report")
            except PitchpipeError as error:
                log.warning("misses were not reported: %s", error.detail)
        return schedules


def _fetch_locked(
    model: LocalModel,
    target: Target | str,
    client: Client | None,
    lock: Path,
    deadline_secs: float | None,
    cache: Path | None,
) -> Schedules:
    folder = cache or cache_dir()
    wanted = resolve_target(target, folder)
    known = identity.identify(folder, model, wanted)
    with contextlib.ExitStack() as stack:
        # Only if something is not in the cache.
        ask = lambda: stack.enter_context(service_of(client, deadline_secs=deadline_secs))  # noqa: E731
        return locked(lock, known, wanted, ask, cache=folder, deadline_secs=deadline_secs)
