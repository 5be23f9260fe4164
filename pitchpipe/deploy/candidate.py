"""The candidate of one record, looked into: as text, or built, checked and timed again on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pitchpipe.client import Client
from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import step
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.measure import MeasureConfig
from pitchpipe.wire.record import RecordView
from pitchpipe.wire.replayed import Replayed


def open_record(record: str, client: Client) -> RecordView:
    """The record of the service with this id, or of the JSON file at this path, which `pitchpipe records show --json` wrote.

    Raises NotFound, InvalidInput, and IntegrityError where the trace is not the one that the record's result is of.
    """
    view = client.record(record) if re.fullmatch(r"rec_[0-9a-z]+", record) else _from_file(Path(record))
    of = view.record
    if candidate_digest(of.workload, of.trace) != of.result.candidate:
        raise IntegrityError(f"{of.id}: its result is of another trace than the one it has")
    return view


def _from_file(path: Path) -> RecordView:
    try:
        value: Any = json.loads(path.read_text())
        return RecordView.model_validate({name: value[name] for name in RecordView.model_fields if name in value})
    except (OSError, ValidationError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{path} is neither a record's id nor a JSON file of one: {reason}") from error


def listing(view: RecordView, *, compiled: bool) -> dict[str, Any]:
    """The scheduled TIR of a record's candidate, and what it is compiled to: what `tuner.measure.listing.list_code` gives.

    Raises IntegrityError when its program is not the workload's, StepDied and StepTimeout when the compiler crashes or
    hangs on it, MissingExtra without a compiler.
    """
    of = view.record
    found: dict[str, Any] = run_step(
        "list_code", workload=of.workload, ir=view.ir, trace=of.trace, target=of.target.key, compiled=compiled
    )
    return found


def replay(view: RecordView, *, timeout_secs: float) -> Replayed:
    """Builds, checks and times a record's candidate on this machine's device, interleaved with its baseline.

    Build and run are ended after `timeout_secs` each. Raises NoDevice when the device cannot run it, IntegrityError when
    the program is not the workload's, MissingExtra without a compiler.
    """
    # Only the program's digest matters here; whether the trace applies is found out in the sandbox.
    listing(view, compiled=False)
    config = MeasureConfig(build_timeout_secs=timeout_secs, run_timeout_secs=timeout_secs)
    found: Replayed = step("replay")(view, config)
    return found
