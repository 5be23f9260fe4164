"""Commands that look into candidates: `pitchpipe records list`, `show` and `replay`."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from pitchpipe.cli.options import HERE, TARGET_HELP, Json, Token, Url, client_of
from pitchpipe.cli.tables import show
from pitchpipe.errors import InvalidInput, MeasurementFailed
from pitchpipe.model.local import detect_target
from pitchpipe.target_kind import describe
from pitchpipe.wire.measure import Failed, MeasureConfig, Measurement, Timed
from pitchpipe.wire.record import RecordView, WonInContext
from pitchpipe.wire.replayed import Replayed

LIMIT = 50
RecordArgument = Annotated[
    str, typer.Argument(metavar="RECORD", help="id of a record, or a JSON file that `records show --json` printed")
]

records = typer.Typer(no_args_is_help=True, help="Measured candidates.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.add_typer(records, name="records")


@records.command("list")
def list_records(
    url: Url = HERE,
    token: Token = "",
    workload: Annotated[str | None, typer.Option(help="digest: only records of it")] = None,
    target: Annotated[str | None, typer.Option(help=f"only records for it; {TARGET_HELP}")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="only candidates that have no time")] = False,
    served: Annotated[
        str | None, typer.Option(metavar="JOB", help="in place of all: those served for a job's or model's workloads")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="records at most")] = LIMIT,
    as_json: Json = False,
) -> None:
    """Measured candidates, failures included, newest first."""
    if served is not None and (failed or workload is not None):
        raise InvalidInput("--served names its own workloads, and what is served has a time")
    wanted = None if target is None else detect_target(target)
    with client_of(url, token) as client:
        if served is None:
            found = list(islice(client.records(workload, wanted, timed=False if failed else None), limit))
        else:
            bests = [answer.best for answer in client.fetch(served, wanted).answers if answer.best is not None]
            ids = [best.record for best in bests if best.record is not None]
            found = [client.record(record).record for record in ids[:limit]]
    if as_json:
        print(json.dumps([record.model_dump(mode="json") for record in found]))
        return
    rows = [
        (
            record.id,
            f"{record.created_at:%Y-%m-%d %H:%M:%S}",
            record.workload[:16],
            describe(record.target),
            outcome(record.result),
            _milliseconds(secs(record.result)),
        )
        for record in found
    ]
    headings = ("record", "measured (UTC)", "workload", "target", "outcome", "ms")
    show(Console(), "records", headings, rows, numbers_from=5)


@records.command("show")
def show_record(
    record: RecordArgument,
    url: Url = HERE,
    token: Token = "",
    lowered: Annotated[bool, typer.Option("--lowered", help="also the module that code is generated from")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="also the assembly; of a GPU's candidate CUDA C++ and PTX")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a record says, and its scheduled TIR. Needs a compiler, but not the device; exits 1 if it does not build."""
    from pitchpipe.deploy.candidate import listing, open_record

    with client_of(url, token) as client:
        view = open_record(record, client)
    if not as_json:
        print(view.record.id)
        for name, value in described(view):
            print(f"{name:<16} {value}")
        print()
    found = listing(view, compiled=lowered or code)
    forms = {"tir": found["tir"]} | {
        form: text for form, text in found["code"].items() if (lowered if form == "lowered" else code)
    }
    if as_json:
        print(json.dumps(view.model_dump(mode="json") | {"listing": forms | {"failed": found["failed"]}}))
    else:
        for form, text in forms.items():
            if text is not None:
                print(f"--- {form}\n{text.rstrip()}\n")
    if found["failed"] is not None:
        raise MeasurementFailed(found["failed"])


@records.command("replay")
def replay_record(
    record: RecordArgument,
    url: Url = HERE,
    token: Token = "",
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600, help="seconds of a build, and of a run, after which it is ended")
    ] = MeasureConfig().run_timeout_secs,
    as_json: Json = False,
) -> None:
    """Builds, checks and times a record's candidate on this device, beside the baseline; exits 1 unless that succeeds."""
    from pitchpipe.deploy.candidate import open_record, replay

    with client_of(url, token) as client:
        view = open_record(record, client)
    found = replay(view, timeout_secs=timeout)
    if as_json:
        print(json.dumps({"recorded": view.record.model_dump(mode="json"), **found.model_dump(mode="json")}))
    else:
        show(Console(), view.record.id, ("", "recorded", "here"), compared(view, found))
        for line in remarks(view, found):
            print(line)
    if isinstance(found.result, Failed):
        raise typer.Exit(1)


def described(view: RecordView) -> list[tuple[str, str]]:
    """What a record says, a line for each thing."""
    of = view.record
    rows = [
        ("task", view.name or "-"),
        ("workload", of.workload),
        ("target", of.target.key),
        ("outcome", outcome(of.result)),
        *_of_result(of.result).items(),
        ("detail", " ".join(of.result.detail.split()) if isinstance(of.result, Failed) else ""),
        ("measured", f"{of.created_at:%Y-%m-%d %H:%M:%S} UTC by {of.worker}"),
        ("device", f"{of.device.model}, {of.device.cores} cores, {of.device.driver}"),
        ("toolchain", of.toolchain.key),
        *(("won inside", _won(one)) for one in view.won_in),
        ("measure version", str(of.measure_version)),
    ]
    return [row for row in rows if row[1]]


def _won(won: WonInContext) -> str:
    times = f"{won.before_secs * 1e3:.4f} to {won.after_secs * 1e3:.4f} ms a run"
    places = len(won.context.neighbours)
    told = f"{won.model}, at {'1 kind of place' if places == 1 else f'{places} kinds of places'}: {times}"
    return told if won.stands else f"{told}; another won there since"


def compared(view: RecordView, found: Replayed) -> list[tuple[str, str, str]]:
    """What a record says beside what this device says."""
    then, now = _of_result(view.record.result), _of_result(found.result)
    baseline = _milliseconds(secs(found.baseline)) if found.baseline is not None else "-"
    return [
        ("outcome", outcome(view.record.result), outcome(found.result)),
        *((name, then.get(name, "-"), now.get(name, "-")) for name in then | now),
        ("baseline ms", "-", baseline),
    ]


def remarks(view: RecordView, found: Replayed) -> list[str]:
    """What is to be known of such a comparison, a sentence each."""
    lines = []
    for whose, result in (("the record", view.record.result), ("here", found.result), ("the baseline", found.baseline)):
        if isinstance(result, Failed):
            lines.append(f"{whose}: {result.kind.value}: {' '.join(result.detail.split())}")
    if isinstance(found.result, Timed) and isinstance(found.baseline, Timed):
        lines.append(f"here it is {found.baseline.secs / found.result.secs:.2f} times as fast as the baseline")
    lines += [f"another {each.subject}: recorded {each.recorded}; here {each.here}" for each in found.differences]
    if found.target != view.record.target:
        lines.append(f"built for {describe(found.target)}")
    if found.recorded_disturbed:
        lines.append("the device was disturbed when the record was timed")
    if found.disturbed:
        lines.append(
            "this device was disturbed while it was timed: replay it again before you conclude from these times"
        )
    return lines


def outcome(result: Measurement) -> str:
    """`timed`, or the kind of the failure."""
    return result.kind.value if isinstance(result, Failed) else result.outcome


def secs(result: Measurement) -> float | None:
    """The median, of a candidate that was timed."""
    return None if isinstance(result, Failed) else result.secs


def _of_result(result: Measurement) -> dict[str, Any]:
    if isinstance(result, Failed):
        return {}
    low, high = _milliseconds(result.secs_low), _milliseconds(result.secs_high)
    return {
        "median ms": _milliseconds(result.secs),
        "95 % interval ms": "-" if result.secs_low is None else f"{low} to {high}",
        "samples": str(len(result.run_secs)),
        "build s": f"{result.build_secs:.2f}",
        "check": f"passed on {result.check.input_sets} input sets",
        "largest error": f"{result.check.max_abs_error:g}",
        "tolerance": f"{result.check.tolerance:g}",
    }


def _milliseconds(secs: float | None) -> str:
    """Four digits: a candidate may take a microsecond, or a second."""
    return "-" if secs is None else f"{secs * 1e3:.4g}"
