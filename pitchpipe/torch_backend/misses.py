"""Telling the service which schedules were missing, so that a later process may find them."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from typing import Any

from pitchpipe.client import Client
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.schedules import Found, Wanted
from pitchpipe.wire.record import Tier


def report(wanted: Wanted, found: Found, options: Options) -> None:
    """Sends the misses from a thread that nobody waits for, where the client has a way to."""
    missing = [answer.workload for answer in found.answers.values() if answer.tier is Tier.NONE]
    send: Any = getattr(Client, "report_misses", None)
    if not missing or send is None or options.url is None or found.source != options.url:
        return
    threading.Thread(target=_send, args=(send, options, wanted, missing), name="pitchpipe-misses", daemon=True).start()


def _send(send: Any, options: Options, wanted: Wanted, missing: list[str]) -> None:
    """Uploads the partitions first: a workload that the service does not know is not counted."""
    wire: Any = importlib.import_module("pitchpipe.wire.miss")
    lost = set(missing)
    with suppress(Exception), Client(options.url) as client:
        for model, identity in zip(wanted.models, wanted.identities, strict=True):
            runs = {workload: times for workload, times in identity.weights.items() if workload in lost}
            if not runs:
                continue
            uploaded = client.upload_model(model.data, name=model.name, format=model.format)
            counts = tuple(wire.MissCount(workload=workload, runs=times) for workload, times in runs.items())
            report = wire.MissReport(target=wanted.target, model=uploaded.id, misses=counts[: wire.MAX_REPORTED])
            send(client, report)
