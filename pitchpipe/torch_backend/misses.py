"""Telling the service which schedules were missing, so that a later process may find them."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from contextlib import suppress
from typing import Any

from pitchpipe.client import Client
from pitchpipe.torch_backend.options import Options
from pitchpipe.torch_backend.schedules import Found, Wanted

REPORTING = "pitchpipe.deploy.misses"
"""The module that reports."""


def report(wanted: Wanted, found: Found, options: Options) -> None:
    """Sends the misses from a thread that nobody waits for. Failing costs the report and nothing else."""
    missing = {answer.workload for answer in found.answers.values() if answer.tier.is_miss}
    if missing and found.source == options.url and importlib.util.find_spec(REPORTING) is not None:
        threading.Thread(target=_send, args=(wanted, missing, options), name="pitchpipe-misses", daemon=True).start()


def _send(wanted: Wanted, missing: set[str], options: Options) -> None:
    """A workload that occurs so many times in a run of its partition is counted as many times."""
    reporting: Any = importlib.import_module(REPORTING)
    with suppress(Exception), Client(options.url) as client:
        for model, identity in zip(wanted.models, wanted.identities, strict=True):
            lost = {workload: times for workload, times in identity.weights.items() if workload in missing}
            for runs in sorted(set(lost.values())):
                workloads = [workload for workload, times in lost.items() if times == runs]
                reporting.report(client, model, wanted.target, workloads, runs=runs)
