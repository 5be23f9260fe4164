"""`tune`: a model in, a faster one out.

    fast = pitchpipe.tune(module, (x,), seconds=60)
    fast(x)                     # as the module; what is not faster runs as before
    print(fast.report)
    fast.save("net.pitchpipe")  # pitchpipe.open_pack reads it

A model's way: exported -> built with default schedules and compared with its framework -> a job, of the service that is
named or of one that lives as long as the call -> on a GPU, the fastest schedules tried inside the model -> built with what
was found, compared again, and timed in turns with the default build and with what ran it before, in this process and on the
examples -> the fastest runs from then on.
"""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pitchpipe.client import Client
from pitchpipe.deploy.artifact import cache_dir, lacks_linker
from pitchpipe.deploy.building import BuildSpec, make
from pitchpipe.deploy.lookup import Schedules, resolve_target, service_of
from pitchpipe.deploy.proof import proof_of
from pitchpipe.deploy.safe import FallbackWarning
from pitchpipe.deploy.verify import with_operator
from pitchpipe.embedded import DEFAULT_SECONDS, Embedded
from pitchpipe.errors import InvalidInput, PitchpipeError, WrongResult
from pitchpipe.model.local import arguments_of
from pitchpipe.places import own_database
from pitchpipe.processes.launch import start_server
from pitchpipe.tuning.inside import Inside, outside, tune_inside_or_tell
from pitchpipe.tuning.job import Ended, history, submit_or_resume, watched_or_ended_early
from pitchpipe.tuning.progress import Progress, Silent
from pitchpipe.tuning.report import Figures, Report, report_of
from pitchpipe.tuning.subjects import WORTHWHILE, ArraySubject, Build, ModuleSubject, Subject
from pitchpipe.tuning.tuned import Padded, TunedModel, Variant
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.job import Budget, JobEvent
from pitchpipe.wire.target import Target

FIRST_RUNS = 3
"""Of the default build, for the progress; the report's figures come in the end."""


def tune(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    keywords: Mapping[str, Any] | None = None,
    *,
    seconds: float | None = None,
    trials: int | None = None,
    batch: range | tuple[int, int] | None = None,
    target: Target | str = "auto",
    client: Client | None = None,
    fallback: Callable[..., Any] | None = None,
    seed: int = 0,
    precision: str = "ieee",
    trust: bool = False,
    compare: bool = True,
    cache: Path | None = None,
    progress: bool = True,
) -> TunedModel:
    """Tunes a model on this device and gives a function that is called like it.

    model: a torch module in eval mode, a path, an ONNX model or its bytes, TorchScript, or a jitted function of JAX.
    example_inputs, keywords: arguments to call it with, nested as it takes them; their shapes are tuned for.
    seconds, trials: the budget, of each batch size a part; without either 150 s.
    batch: smallest and largest extent of the first axis of the inputs that share that of the first one. Powers of two
        between them are tuned; a torch module's other batches are padded to the next one where its rows are proved
        independent, and run as before where they are not.
    target: as for `load`; by default the device on which a module lies.
    client: of a service that tunes, with a worker for this device's target. Without one that of PITCHPIPE_URL, and without
        that everything runs in here, on the database of PITCHPIPE_DATABASE_URL.
    fallback: what runs a file where its tuned build does not; a module is its own.
    progress: whether a bar, or lines, are shown.
    seed, precision, trust, compare: as for `submit`.

    Ctrl-C while it tunes keeps what was measured: what confirming runs of a few seconds say is the best so far is used. A
    second one ends it; all measurements stay for the next call.

    The module stays as it is: a copy of it is run and compared. Raises InvalidInput and its kinds for a model, examples or a
    budget that cannot be used, NoDevice, Unreachable, and WrongResult for a model that, compiled, does not compute what its
    framework does. A tuned build that fails in the end is told by a FallbackWarning, and runs no call.
    """
    try:
        wanted = Budget(trials=trials, seconds=DEFAULT_SECONDS if trials is None and seconds is None else seconds)
    except ValidationError as error:
        raise InvalidInput(f"the budget is not valid: {error.errors()[0]['msg']}") from error
    start_server()
    given = _subjects(model, example_inputs, keywords or {}, batch, fallback, trust=trust, precision=precision)
    for subject in given:
        subject.compare = compare
    with Progress() if progress else Progress(Silent()) as shown:
        works = []
        for subject in given:
            shown.say(f"{subject.model.name}: building it with default schedules")
            works.append(_begun(subject, target, cache or cache_dir()))
        _run_jobs(works, _part(wanted, len(works)), seed, client, shown)
        shown.say(f"{works[0].subject.model.name}: building and comparing what was found")
        variants = [_finished(work) for work in works if work.ended is not None]
    return TunedModel(variants, cache or cache_dir(), _padded(variants))


@dataclass(kw_only=True)
class _Work:
    """A model on its way."""

    subject: Subject
    target: Target
    cache: Path
    default: Build
    default_secs: float
    comparison: Comparison
    ended: Ended | None = None
    schedules: Schedules | None = None
    inside: Inside | None = None
    events: Sequence[JobEvent] = field(default=())


def _subjects(
    model: Any,
    examples: Sequence[Any] | None,
    keywords: Mapping[str, Any],
    batch: range | tuple[int, int] | None,
    fallback: Callable[..., Any] | None,
    *,
    trust: bool,
    precision: str,
) -> list[Subject]:
    """One for each batch size."""
    is_module = hasattr(model, "named_modules") and not hasattr(model, "save_to_buffer")  # the latter is TorchScript
    if not is_module:
        if batch is not None:
            raise InvalidInput("a range of batches is for torch modules; a file has the shapes that it says")
        if keywords:
            raise InvalidInput("only a torch module takes example inputs by name")
        return [ArraySubject(model, examples, fallback, trust=trust, precision=precision)]
    if examples is None and not keywords:
        raise InvalidInput(f"{type(model).__name__} needs example inputs: pitchpipe.tune(module, (x,))")
    arguments = arguments_of(examples) or ()
    if batch is None:
        return [ModuleSubject(model, arguments, keywords, precision)]
    from pitchpipe.tuning.batches import batch_sizes, resized

    return [ModuleSubject(model, *resized(arguments, keywords, size), precision) for size in batch_sizes(batch)]


def _part(budget: Budget, parts: int) -> Budget:
    """What each of so many jobs may spend."""
    if parts == 1:
        return budget
    trials = None if budget.trials is None else budget.trials // parts
    return Budget(trials=trials, seconds=None if budget.seconds is None else budget.seconds / parts)


def _begun(subject: Subject, target: Target | str, cache: Path) -> _Work:
    """With its default build, which was compared with its framework."""
    wanted = resolve_target(subject.target_name if target == "auto" else target, cache)
    if lacks_linker(wanted):
        raise InvalidInput("no C++ compiler is here to link the model: install one (on Debian, apt-get install g++)")
    build, comparison = _built(subject, wanted, {}, cache)
    secs = subject.side(build)(1 + FIRST_RUNS)[1:]
    return _Work(
        subject=subject,
        target=wanted,
        cache=cache,
        default=build,
        default_secs=statistics.median(secs),
        comparison=comparison,
    )


def _built(subject: Subject, target: Target, traces: Mapping[str, str], cache: Path) -> tuple[Build, Comparison]:
    spec = BuildSpec(model=subject.model, target=target, traces=traces)
    try:
        folder = make(spec, cache, evidence=lambda: subject.evidence)
    except WrongResult as error:
        raise WrongResult(with_operator(error.detail, subject.model.source, target)) from error
    verdict = proof_of(folder)
    told = verdict.comparison if verdict is not None else None
    return subject.open(folder, target), told or not_compared("nobody who tried it here asked its framework")


@contextmanager
def _service(client: Client | None, target: Target) -> Iterator[Client]:
    """The one that is named, or one that lives as long as the block."""
    if _is_named(client):
        with service_of(client) as service:
            yield service
    else:
        with Embedded(own_database(), target) as own:
            yield own
            own.close()


def _is_named(client: Client | None) -> bool:
    return client is not None or bool(os.environ.get("PITCHPIPE_URL"))


def _run_jobs(works: Sequence[_Work], budget: Budget, seed: int, client: Client | None, shown: Progress) -> None:
    """One after another; an interrupt leaves out those behind it."""
    resume = not _is_named(client)
    with _service(client, works[0].target) as service:
        for work in works:
            shown.default_secs = work.default_secs
            model = work.subject.model
            alone = outside(budget, work.target)
            job = submit_or_resume(service, model, work.target, alone, seed, work.comparison, resume=resume)
            try:
                ended = watched_or_ended_early(service, job, shown.show)
            except KeyboardInterrupt:
                if work is works[0]:
                    raise
                return
            response = service.job_schedules(ended.view.id, work.target)
            work.schedules = Schedules(target=work.target, response=response)
            work.events = history(service, service.job(job.id))
            work.ended = ended
            if ended.interrupted:
                return
            try:
                found, work.inside = tune_inside_or_tell(service, model, work.target, work.cache, budget, shown.say)
            except KeyboardInterrupt:
                work.ended = replace(ended, interrupted=True)  # what was confirmed stands
                return
            work.schedules = found or work.schedules


def _finished(work: _Work) -> Variant:
    assert work.ended is not None
    assert work.schedules is not None
    builds = [work.default]
    reason = ""
    try:
        tuned, comparison = _built(work.subject, work.target, work.schedules.traces, work.cache)
        builds.append(tuned)
    except PitchpipeError as error:
        reason, comparison = error.detail, work.comparison
        warnings.warn(f"the tuned build cannot be used: {reason}", FallbackWarning, stacklevel=4)
    secs, peer, peer_secs = work.subject.timed(builds, work.target)
    figures = Figures(
        default_secs=secs[0], tuned_secs=secs[1] if len(secs) > 1 else None, peer=peer, peer_secs=peer_secs
    )
    fastest = len(builds) - 1 if secs[-1] * WORTHWHILE <= secs[0] else 0
    goes_on = work.subject.before is not None and peer_secs is not None and secs[fastest] > WORTHWHILE * peer_secs
    report = report_of(
        work.ended.view,
        work.events,
        figures=figures,
        runs=_told(figures, fastest, goes_on, reason),
        inside=work.inside,
        interrupted=work.ended.interrupted,
    )
    return Variant(
        subject=work.subject,
        schedules=work.schedules,
        report=_with(report, comparison),
        build=None if goes_on else builds[fastest],
    )


def _padded(variants: Sequence[Variant]) -> Padded | None:
    """What runs the batches between several tuned sizes."""
    if len(variants) < 2:
        return None
    from pitchpipe.tuning.padding import padded

    return padded(variants)


def _with(report: Report, comparison: Comparison) -> Report:
    return report.model_copy(update={"comparison": comparison})


def _told(figures: Figures, fastest: int, goes_on: bool, reason: str) -> str:
    """Which of them runs, and why."""
    name = ("default", "tuned")[fastest]
    secs = (figures.default_secs, figures.tuned_secs)[fastest]
    assert secs is not None
    failed = f"; the tuned build cannot be used: {reason}" if reason else ""
    if goes_on:
        return f"{figures.peer} goes on: the {name} build is not faster{failed}"
    if figures.peer_secs is None:
        return f"the {name} build runs{failed}"
    return f"the {name} build runs, {figures.peer_secs / secs:.2f} times as fast as {figures.peer}{failed}"
