"""Submit, fetch, load: a model's way through a Pitchpipe service, from Python.

A model is a file's path, the bytes of an ONNX file, a `torch.nn.Module`, TorchScript or a `jax.jit` function with example
inputs, or what `jax.export` made. Its weights never leave this process: what is sent is the graph.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy import identity, misses
from pitchpipe.deploy.artifact import CompiledModel, Manifest, cache_dir, intact, linker
from pitchpipe.deploy.building import Recipe, make
from pitchpipe.deploy.evidence import Evidence, compared, gather
from pitchpipe.deploy.proof import open_proved
from pitchpipe.errors import IntegrityError, NotFound, PitchpipeError, WrongResult
from pitchpipe.model.comparison import Agreement
from pitchpipe.model.local import LocalModel, detect_target, local_model
from pitchpipe.model.reference import Expected, NoSource
from pitchpipe.model.verify import ASKED_NOT_TO, compare_default, with_operator
from pitchpipe.processes.deadline import within
from pitchpipe.processes.plugins import step
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.job import Budget, JobRequest, JobView, ModelView
from pitchpipe.wire.record import LookupRequest, LookupResponse
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")
MAX_WORKLOADS = 4096
"""Of one look-up."""
_compiling = threading.Lock()
"""Held while a model is compiled in this process: the compiler keeps global state."""


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """Schedules fetched for a model and a target: what `load` applies."""

    target: Target
    response: LookupResponse
    stale: str | None = None
    """What kept the service from answering, where this is what it answered before."""

    @property
    def traces(self) -> dict[str, str]:
        """Workload digest -> trace, for every workload that has a best."""
        return {answer.workload: answer.best.trace for answer in self.response.answers if answer.best is not None}

    def install(self, recipe: Recipe, cache: Path) -> None:
        """Puts the artifact of the recipe into the cache, if it came along; a look-up brings none."""

    def expected(self, model: LocalModel) -> Expected | None:  # noqa: ARG002 - of those that bring some
        """What the model's framework computes, as whoever ran it elsewhere found; a look-up brings nothing."""
        return None


def submit(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    client: Client | None = None,
    trust: bool = False,
    compare: bool = True,
    cache: Path | None = None,
) -> JobView:
    """Exports the model, compares it with its framework, sends its graph without weights, and starts a tuning job.

    The comparison builds the model here, once (see verify.py); the service is told of it with the model. `compare=False`
    leaves it out.

    The budget is `trials`, `seconds` of tuning, or both (whichever ends first); without either it is 1,000 trials.
    Raises InvalidInput and its kinds for a model or target that is not valid, NoDevice when no worker serves the target,
    WrongResult for a model that, compiled, does not compute what its framework does.
    """
    with service_of(client) as service:
        found = local_model(model, example_inputs, trust=trust)
        budget = Budget(trials=1000 if trials is None and seconds is None else trials, seconds=seconds)
        wanted = target if isinstance(target, Target) else detect_target(target)
        told = compare_default(found, wanted, cache or cache_dir()) if compare else not_compared(ASKED_NOT_TO)
        uploaded = service.upload_model(found.data, name=found.name, format=found.format)
        service.tell_comparison(uploaded.id, told)
        return service.submit(JobRequest(model=uploaded.id, targets=(wanted,), budget=budget, seed=seed))


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
) -> Schedules:
    """The best known schedules for a job or an uploaded model (a view or an id), or for any model.

    The last may never have been submitted: its workloads are looked up by their digests. With the target "auto" an answer
    is `exact` where it was confirmed on hardware like this machine's, with the same compiler.

    `deadline_secs` is of what the service is asked, in all, repetitions included: whatever the service does, or is, the
    answer or an error of pitchpipe.errors comes by then. Finding out which workloads a model has takes a compiler: seconds,
    once per model and machine.

    With a `lock` file exactly what it pins is fetched, and what was fetched before is taken from the cache without asking
    (see lockfile.py). `report_misses` tells the service what
    a model here is about to run without a schedule, so that idle workers may tune it; a report that fails is logged.
    """
    if lock is not None:
        return _fetch_locked(
            local_model(model_or_job, example_inputs, trust=trust), target, client, Path(lock), deadline_secs, cache
        )
    if isinstance(model_or_job, (JobView, ModelView)):
        model_or_job = model_or_job.id
    with service_of(client) as service:
        if isinstance(model_or_job, str) and model_or_job.startswith(("job_", "mdl_")):
            named, wanted = model_or_job, target if isinstance(target, Target) else detect_target(target)
            found = within(deadline_secs, lambda: service.fetch(named, wanted), "look-up")
            return Schedules(target=wanted, response=found)
        folder = cache or cache_dir()
        wanted = resolve_target(target, folder)
        model = local_model(model_or_job, example_inputs, trust=trust)
        known = identity.identify(folder, model, wanted)
        schedules = look_up(known, wanted, service, here=target == "auto", cache=folder, deadline_secs=deadline_secs)
        if report_misses and (workloads := misses.missed(schedules.response)):
            try:
                misses.report(service, model, wanted, workloads)
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
    from pitchpipe.deploy.lockfile import locked  # which imports this module

    folder = cache or cache_dir()
    wanted = resolve_target(target, folder)
    known = identity.identify(folder, model, wanted)
    with contextlib.ExitStack() as stack:
        ask = lambda: stack.enter_context(service_of(client))  # noqa: E731 - only if something is not in the cache
        return locked(lock, known, wanted, ask, cache=folder, deadline_secs=deadline_secs)


@contextlib.contextmanager
def service_of(client: Client | None) -> Iterator[Client]:
    """The client, or one of the environment for as long as the block runs."""
    if client is not None:
        yield client
    else:
        with Client() as own:
            yield own


def look_up(
    known: identity.Identity,
    target: Target,
    service: Client,
    *,
    here: bool,
    cache: Path,
    deadline_secs: float | None = None,
    or_earlier: bool = False,
) -> Schedules:
    """The schedules of a model that is known on the target; `here` says that this machine will run it.

    Raises errors of pitchpipe.errors, DeadlineExceeded for an answer that is late; with `or_earlier` only where the cache
    does not hold what the service answered before.
    """
    device = device_class(target) if here else None
    requests = [
        LookupRequest(
            target=target,
            workloads=known.workloads[at : at + MAX_WORKLOADS],
            device_class=device,
            toolchain=known.toolchain,
        )
        for at in range(0, len(known.workloads), MAX_WORKLOADS)
    ]
    stale = None
    try:
        responses = within(
            deadline_secs, lambda: [service.lookup(request, cache=cache) for request in requests], "look-up"
        )
    except PitchpipeError as error:
        earlier = [service.earlier_lookup(request, cache) for request in requests] if or_earlier else []
        responses, stale = [found for found in earlier if found is not None], error.detail
        if len(responses) < len(requests):
            raise
    answers = tuple(answer for response in responses for answer in response.answers)
    if sorted(answer.workload for answer in answers) != sorted(known.workloads):
        raise PitchpipeError("the service answered for other workloads than it was asked for")
    return Schedules(target=target, response=LookupResponse(answers=answers), stale=stale)


def device_class(target: Target) -> str:
    """Of this machine's device for such targets."""
    found: str = step("fingerprint")("cuda" if target.kind == "cuda" else "cpu").device_class
    return found


def resolve_target(target: Target | str, cache: Path) -> Target:
    """The target itself, parsed, or this machine's for "auto"."""
    if isinstance(target, Target):
        return target
    return identity.this_target(cache) if target == "auto" else detect_target(target)


def load(
    model: Any,
    schedules: Schedules | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    weights: Mapping[str, Any] | None = None,
    target: Target | str = "auto",
    cache: Path | None = None,
    trust: bool = False,
    lock: str | Path | None = None,
) -> CompiledModel:
    """Builds the model with the fetched schedules, or takes it from the local cache, and binds its weights once.

    Without schedules, or where one is missing, a workload runs the compiler's default: correct, not fast. `weights` adds
    to those of the model, or replaces them, by parameter name. `lock` is as for `fetch`.
    The result is called with NumPy or DLPack arrays.

    Building happens in a child process, which needs a linker (`pitchpipe doctor` says whether there is one). Without one
    the model is compiled in this process, anew each time. What was built is opened and run in another child before this
    process opens it, once per machine, and compared there with the model's framework, where that is installed
    (`CompiledModel.comparison` tells). Raises InvalidInput for weights that are missing or misshapen, ArtifactRefused when
    that proof run fails, WrongResult when the outputs differ; `load_safely` runs something else instead.
    """
    found = local_model(model, example_inputs, trust=trust)
    folder = cache or cache_dir()
    if schedules is None and lock is not None:
        schedules = fetch(found, target=target, lock=lock, cache=folder)
    wanted = schedules.target if schedules is not None else resolve_target(target, folder)
    recipe = Recipe(model=found, target=wanted, traces=schedules.traces if schedules is not None else {})
    bound = {**found.weights, **(weights or {})}
    try:
        return open_proved(recipe.folder(folder), wanted, bound, source=found.source)
    except (IntegrityError, NotFound):
        pass  # absent, damaged, or not tried and compared on this machine
    if schedules is not None:
        schedules.install(recipe, folder)

    spare = schedules.expected(found) if schedules is not None else None

    def evidence() -> Evidence | Comparison:
        return gather(found, weights or {}, spare)

    if linker() is None and not intact(recipe.folder(folder)):
        return _built_here(recipe, bound, evidence())
    alone = isinstance(found.source, NoSource) and spare is None
    try:
        made = make(recipe, folder, evidence=None if alone else evidence)
    except WrongResult as error:
        raise WrongResult(with_operator(error.detail, found.source, wanted)) from error
    return open_proved(made, wanted, bound, source=found.source)


def _built_here(recipe: Recipe, bound: Mapping[str, Any], evidence: Evidence | Comparison) -> CompiledModel:
    """Compiled and compared in this process. Raises WrongResult."""
    with _compiling:
        manifest, executable = step("build_here")(
            recipe.model.data,
            model_format=recipe.model.format.value,
            target=recipe.target.key,
            traces=recipe.traces,
        )
    model = CompiledModel(Manifest.model_validate(manifest), executable, bound)
    if isinstance(evidence, Evidence):
        model.bind(evidence.weights)
        found = compared(model, evidence)
        model.bind(bound)
        if isinstance(found, Agreement) and found.difference is not None:
            raise WrongResult(f"{found.difference}, compared with {evidence.expected.reference}")
        model.comparison = evidence.expected.comparison(found) if isinstance(found, Agreement) else found
    else:
        model.comparison = evidence
    return model
