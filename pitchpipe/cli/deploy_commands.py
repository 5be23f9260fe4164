"""Commands for deployments: packs and their keys, lock files, coverage."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pitchpipe.cli.options import HERE, Json, TargetText, Token, Url, client_of
from pitchpipe.cli.tables import milliseconds, share, show
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.lookup import nobody_to_ask, resolve_target
from pitchpipe.errors import InvalidInput, NotFound
from pitchpipe.model.local import detect_target, local_model
from pitchpipe.profile import RUNS, profile
from pitchpipe.wire.target import Target

FILE_NAME = "pitchpipe.lock"
Trust = Annotated[bool, typer.Option(help="accept a file that can run code (.pt2, .py)")]
PrecisionText = Annotated[str, typer.Option("--precision", help="that it was submitted with: ieee or tf32")]
Trusted = Annotated[
    list[Path] | None, typer.Option(help="a public key's file; default: those in PITCHPIPE_TRUSTED_KEYS")
]

packs = typer.Typer(no_args_is_help=True, help="Signed files with schedules and compiled models.")
keys = typer.Typer(no_args_is_help=True, help="Keys that sign packs.")


def add_commands(app: typer.Typer) -> None:
    """Attaches every command of this file."""
    app.add_typer(packs, name="pack")
    app.add_typer(keys, name="keys")
    app.command("lock")(lock)
    app.command("coverage")(show_coverage)
    app.command("profile")(show_profile)


@keys.command("create")
def create_keys(file: Path) -> None:
    """Writes a private key, and the public one beside it as FILE.pub; prints the key's id."""
    from pitchpipe.deploy import signing

    print(signing.create_keys(file))


@packs.command("create")
def create_pack(
    model_or_job: str,
    out: Annotated[Path, typer.Option(help="the pack's file")],
    key: Annotated[Path, typer.Option(help="a private key's file; see `pitchpipe keys create`")],
    objects: Annotated[bool, typer.Option("--objects", help="with the compiled model, built here")] = False,
    days: Annotated[int, typer.Option(min=1, max=36500, help="until it expires")] = 365,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trust: Trust = False,
    precision: PrecisionText = "ieee",
    as_json: Json = False,
) -> None:
    """Writes what the service knows for a model's file or a job into one signed file."""
    from pitchpipe.deploy.packs import create_pack as create

    is_file = not model_or_job.startswith(("job_", "mdl_"))
    model = local_model(Path(model_or_job), trust=trust, precision=precision) if is_file else None
    if objects and model is None:
        raise InvalidInput("a compiled model needs the model's file, not a job")
    with client_of(url, token) as client:
        found = fetch(model or model_or_job, target=target, client=client)
    name = model.name if model is not None else model_or_job
    manifest = create(out, found, key, model=model if objects else None, name=name, valid_days=days)
    print(manifest.model_dump_json(by_alias=True) if as_json else f"{out}: {len(found.traces)} schedules")


@packs.command("verify")
def verify_pack(file: Path, trusted: Trusted = None, as_json: Json = False) -> None:
    """Checks signature, digests and expiry; exits 1 when the pack is not what a trusted key signed."""
    from pitchpipe.deploy import packs as read
    from pitchpipe.deploy import signing

    manifest = read.verify(file, signing.trusted_keys(trusted))
    print(manifest.model_dump_json(by_alias=True) if as_json else f"signed by {manifest.key[:16]}")


@packs.command("show")
def show_pack(file: Path, as_json: Json = False) -> None:
    """What a pack claims to hold. Verifies nothing."""
    from pitchpipe.deploy.packs import read_unverified

    manifest = read_unverified(file)
    if as_json:
        print(manifest.model_dump_json(by_alias=True))
        return
    rows = [
        ("name", manifest.name),
        ("target", manifest.target.key),
        ("made", f"{manifest.created_at:%Y-%m-%d %H:%M} UTC with {' / '.join(manifest.compiler)}"),
        ("expires", f"{manifest.expires_at:%Y-%m-%d %H:%M} UTC"),
        ("key", manifest.key[:16]),
        *([("library", str(manifest.comparison))] if manifest.comparison is not None else []),
        *((member.kind.value, f"{member.size} bytes") for member in manifest.members),
    ]
    show(Console(), f"{file} (not verified)", ("", ""), rows)


def lock(
    models: Annotated[list[Path], typer.Argument(help="the files of the models that are deployed together")],
    file: Annotated[Path, typer.Option(help="the lock file")] = Path(FILE_NAME),
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="pin what is served now in place of what is pinned")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 if the file would change")] = False,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trust: Trust = False,
    precision: PrecisionText = "ieee",
) -> None:
    """Pins the schedules of models, so that all replicas run the same; says which pins no longer resolve."""
    from pitchpipe.deploy import identity, lockfile
    from pitchpipe.deploy.artifact import cache_dir
    from pitchpipe.wire.pin import Pin

    wanted = resolve_target(_target(target), cache_dir())
    found_models = [local_model(path, trust=trust, precision=precision) for path in models]
    known = [identity.identify(cache_dir(), each, wanted) for each in found_models]
    try:
        before = lockfile.read(file)
    except NotFound:
        before = lockfile.Lock()
    with client_of(url, token) as client:
        section = lockfile.update(before.section(wanted), known, wanted, client, upgrade=upgrade, cache=cache_dir())
        pins = [Pin(workload=workload, record=pin.record) for workload, pin in section.workloads.items() if pin]
        gone = [found for found in lockfile.resolve(client, wanted, pins) if found.trace is None]
    for found in gone:
        print(f"{found.workload[:16]} {found.record}: {found.reason}", file=sys.stderr)
    text = before.with_section(section).text()
    changed = text != before.text()
    if changed and not check:
        file.write_text(text)
    state = ("would change" if check else "written") if changed else "unchanged"
    print(f"{file} {state}: {len(pins)} pinned, {len(section.workloads) - len(pins)} on the baseline")
    if gone or (check and changed):
        raise typer.Exit(1)


def show_coverage(
    model: Path,
    pack: Annotated[Path | None, typer.Option(help="of a pack, in place of the service")] = None,
    trusted: Trusted = None,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    trust: Trust = False,
    precision: PrecisionText = "ieee",
    as_json: Json = False,
) -> None:
    """What share of a model's expected time runs on exact schedules, on near ones, and on the baseline."""
    from pitchpipe.deploy.coverage import coverage

    schedules = None
    if pack is not None:
        from pitchpipe.deploy.packs import open_pack

        schedules = open_pack(pack, trusted=trusted, target=_target(target))
    with client_of(url, token) as client:
        given = local_model(model, trust=trust, precision=precision)
        found = coverage(given, target=_target(target), schedules=schedules, client=client)
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    rows = [
        (row.operators[:44] or row.workload[:16], str(row.weight), row.group.value, milliseconds(row.secs), row.reason)
        for row in found.workloads
    ]
    show(Console(), model.name, ("workload", "weight", "covered", "ms", "why"), rows)
    totals = [
        (
            each.group.value,
            str(each.workloads),
            milliseconds(each.secs if each.unknown < each.workloads else None),
            share(each.of_known_time),
            share(each.of_flops),
            f"{each.unknown} of unknown time" if each.unknown else "",
        )
        for each in found.shares
    ]
    headings = ("covered", "workloads", "ms", "of time" if found.complete else "of known time", "of FLOPs", "")
    show(Console(), "coverage", headings, totals, numbers_from=1)


def show_profile(
    model: Path,
    runs: Annotated[int, typer.Option(min=1, help="of the model; times are medians")] = RUNS,
    trace: Annotated[Path | None, typer.Option(help="also a JSON trace, for Perfetto")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PITCHPIPE_URL",
            help="of the service; default: the database that `pitchpipe tune` filled, and without one the default schedules",
        ),
    ] = None,
    token: Token = "",
    target: TargetText = "auto",
    trust: Trust = False,
    precision: PrecisionText = "ieee",
    as_json: Json = False,
) -> None:
    """Where a model's time goes: each kernel inside the running model beside its time as a task, and what is between."""
    given = local_model(model, trust=trust, precision=precision)
    if not url and nobody_to_ask():
        words = "there is no service (--url, PITCHPIPE_URL) and no database (`pitchpipe tune MODEL` makes one)"
        print(f"{words}: this is the model with its default schedules", file=sys.stderr)
    with client_of(url, token) if url else nullcontext() as source:
        found = profile(given, target=_target(target), source=source, runs=runs)
    if trace is not None:
        trace.write_text(found.chrome_trace())
    if as_json:
        print(found.model_dump_json(by_alias=True))
        return
    rows = [
        (
            kernel.name[:44],
            str(kernel.calls),
            milliseconds(kernel.secs),
            share(kernel.secs / found.secs),
            milliseconds(kernel.task_secs),
            f"{kernel.secs / kernel.task_secs:.2f}" if kernel.task_secs else "",
            kernel.tier.value if kernel.workload is not None else "no task",
        )
        for kernel in found.kernels
    ]
    headings = ("kernel", "calls", "in the model ms", "share", "as a task ms", "ratio", "served")
    show(Console(), f"{found.model}, {found.runs} runs", headings, rows, numbers_from=1)
    whole = [
        ("model", milliseconds(found.secs), ""),
        ("kernels", milliseconds(found.kernel_secs), share(found.kernel_secs / found.secs)),
        *((each.name, milliseconds(each.secs), share(each.secs / found.secs)) for each in found.between),
        ("dispatch", milliseconds(found.dispatch_secs), share(found.dispatch_secs / found.secs)),
        ("tasks, each alone", milliseconds(found.task_secs), share(found.task_secs and found.task_secs / found.secs)),
    ]
    show(Console(), "whole model", ("", "ms", "of the model"), whole, numbers_from=1)


def _target(text: str) -> Target | str:
    return text if text == "auto" else detect_target(text)
