"""`pitchpipe tune MODEL`: compare with its framework, submit to the embedded service, watch, build, compare and time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.identity import defaults_folder
from pitchpipe.deploy.verify import ASKED_NOT_TO, compare_default, framework_outputs, refusal
from pitchpipe.embedded import Embedded
from pitchpipe.errors import WrongResult
from pitchpipe.model.comparison import Agreement
from pitchpipe.model.local import LocalModel, parse_input, read_model
from pitchpipe.model.reference import Expected, FileSource
from pitchpipe.processes.child import run_step
from pitchpipe.processes.launch import start_server
from pitchpipe.target_kind import HOST
from pitchpipe.tuning.inside import outside, tune_inside_or_tell
from pitchpipe.tuning.job import history, submit_or_resume, watched
from pitchpipe.tuning.rendering import write_html
from pitchpipe.tuning.report import Figures, report_of
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.job import Budget, JobView
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What the command line asks for."""

    path: Path
    database: str
    target: Target | None
    """None: what the worker finds."""
    budget: Budget
    seed: int
    trust: bool = False
    inputs: tuple[str, ...] = ()
    """Types and shapes of a TorchScript file's inputs; see parse_input."""
    compare: bool = True
    """Whether the framework is asked."""
    precision: str = "ieee"
    """Of float32 products and convolutions: ieee or tf32."""
    html: Path | None = None
    """Where the job's report is written."""
    log_level: str = "warning"


def tune(
    options: TuneOptions, on_progress: Callable[[JobView], None], say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Runs the whole chain and returns the object that `--json` prints. Times are in seconds.

    say: called with what goes on before and after the job, and a link to the dashboard of the service that runs meanwhile.

    Raises WrongResult for a model that does not compute what its framework does, before or after tuning, and the error of
    whatever else failed; a KeyboardInterrupt leaves the database ready for the next run.
    """
    started = time.monotonic()
    start_server()
    examples = [parse_input(text) for text in options.inputs]
    model = read_model(options.path, trust=options.trust, example_inputs=examples, precision=options.precision)
    say(f"{model.name}: building it with default schedules")
    embedded = Embedded(options.database, options.target, log_level=options.log_level)
    with embedded as client:
        target = embedded.worker.target
        expected = framework_outputs(model) if options.compare else not_compared(ASKED_NOT_TO)
        default = compare_default(model, target, cache_dir(), expected=expected)
        say(f"dashboard while it runs: {client.url}{client.session_link().path}")
        job = submit_or_resume(client, model, target, outside(options.budget, target), options.seed, default)
        view = watched(client, job, on_progress)
        schedules = client.job_schedules(view.id, target)
        found, inside = tune_inside_or_tell(client, model, target, cache_dir(), options.budget)
        schedules = schedules if found is None else found.response
        events = history(client, view)
    say(f"{model.name}: building and comparing what was found")
    traces = {answer.workload: answer.best.trace for answer in schedules.answers if answer.best is not None}
    tuned, evaluation = _evaluate(model, target, traces, expected, options.seed)
    if options.html is not None:
        figures = Figures(**{name: evaluation[name] for name in Figures.model_fields})
        write_html(report_of(view, events, figures=figures, inside=inside).page(), options.html)
    return {
        "model": model.name,
        "target": target.attributes(),
        "device": embedded.worker.device.model,
        "tasks": [
            {
                "workload": task.workload,
                "name": task.name,
                "kind": task.kind.value,
                "weight": task.weight,
                "flops": task.flops,
                "bytes": task.bytes,
                "trials": task.trials,
                "untuned_secs": task.untuned_secs,
                "tuned_secs": task.tuned_secs,
                "bound_secs": task.bound_secs,
                "flops_per_sec": task.flops_per_sec,
                "bytes_per_sec": task.bytes_per_sec,
                "bound_share": task.bound_share,
                "replay": None if task.replay is None else task.replay.value,
                "replayed_from": _first_found(schedules, task.workload),
            }
            for task in view.tasks
        ],
        **evaluation,
        "untuned_secs": _unscheduled_secs(view),
        "comparison": {
            "default": default.model_dump(mode="json", exclude_none=True),
            "tuned": tuned.model_dump(mode="json", exclude_none=True),
        },
        "inside": None if inside is None else {"gain": inside.gain, **inside.model_dump(mode="json")},
        "trials": view.progress.trials,
        "failed_trials": view.progress.failed_trials,
        "reused_tasks": view.progress.reused_tasks,
        "replayed_tasks": sum(task.replay is not None for task in view.tasks),
        "seconds": time.monotonic() - started,
        "job": view.id,
    }


def _unscheduled_secs(view: JobView) -> float | None:
    """The sum over the tasks' baselines: the unscheduled program takes seconds a run, and nobody runs it."""
    known = [task.weight * task.untuned_secs for task in view.tasks if task.untuned_secs is not None]
    return sum(known) if len(known) == len(view.tasks) else None


def _evaluate(
    model: LocalModel, target: Target, traces: Mapping[str, str], expected: Expected | Comparison, seed: int
) -> tuple[Comparison, dict[str, Any]]:
    """The comparison of the tuned build, and its time beside the default build's and its best peer's. Raises WrongResult."""
    with tempfile.TemporaryDirectory(prefix="pitchpipe-tune-") as scratch:
        path = Path(scratch) / "expected.npz"
        if isinstance(expected, Expected):
            expected.write(path)
        peer = Path(scratch) / "peer" if isinstance(model.source, FileSource) and target.kind == HOST else None
        if peer is not None and isinstance(model.source, FileSource):
            model.source.ask(peer, {}, most=1)
        found = run_step(
            "evaluate",
            model.data,
            model.weights,
            model_format=model.format.value,
            target=target.key,
            traces=dict(traces),
            seed=seed,
            expected=str(path) if isinstance(expected, Expected) else None,
            peer=str(peer) if peer is not None else None,
            defaults=str(defaults_folder(cache_dir())),
        )
    judged, incomparable = Agreement(**found.pop("agreement")), found.pop("incomparable")
    if judged.difference is not None:
        if isinstance(expected, Comparison) or incomparable:
            raise WrongResult(f"tuned, {judged.difference}, compared with the baseline build")
        raise WrongResult(f"tuned, {refusal(model.source, expected, judged, target)}")
    if isinstance(expected, Comparison):
        return expected, found
    return (not_compared(incomparable) if incomparable else expected.comparison(judged)), found


def _first_found(schedules: LookupResponse, workload: str) -> dict[str, Any] | None:
    """Where the schedule of a workload was found, if that was not where it was confirmed."""
    bests = (answer.best for answer in schedules.answers if answer.workload == workload)
    earlier = next((best.replayed_from for best in bests if best is not None), None)
    return None if earlier is None else earlier.model_dump(mode="json")
