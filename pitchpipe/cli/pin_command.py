"""`pitchpipe schedules pin`: what is served for a job or a model stays, whatever is confirmed later."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pitchpipe.cli.options import HERE, TargetText, Token, Url, client_of
from pitchpipe.deploy.fetch import fetch
from pitchpipe.deploy.named_target import named_target
from pitchpipe.wire.pin import ServedPin


def add_to(schedules: typer.Typer) -> None:
    """Attaches the command."""
    schedules.command("pin")(pin)


def pin(
    model_or_job: str,
    url: Url = HERE,
    token: Token = "",
    target: TargetText = "auto",
    off: Annotated[bool, typer.Option("--off", help="lets them be replaced again")] = False,
) -> None:
    """Pins what look-ups answer with for a job id, a model id or a model's file; prints how many schedules that are."""
    with client_of(url, token) as client:
        if target == "auto" and model_or_job.startswith("job_") and len(own := client.job(model_or_job).targets) == 1:
            wanted = own[0]
        else:
            wanted = named_target(target, client)
        answers = fetch(model_or_job, target=wanted, client=client).response.answers
        served = [answer for answer in answers if answer.best is not None and answer.provenance is not None]
        for answer in served:
            assert answer.best is not None
            assert answer.provenance is not None
            client.pin_schedule(
                ServedPin(
                    workload=answer.workload,
                    target=answer.provenance.target,
                    device_class=answer.best.device_class,
                    pinned=not off,
                )
            )
    if len(served) < len(answers):
        print(f"{len(answers) - len(served)} workloads have no schedule", file=sys.stderr)
    print(len(served))
