"""All that would be refused of an ONNX file, found without building it. Runs in the child: the bytes are untrusted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from pitchpipe.errors import PitchpipeError
from tuner.ingest import IngestLimits
from tuner.ingest.onnx.scope import domain_of
from tuner.ingest.onnx.source import Source


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason why a file is refused."""

    node: str
    """Name of the node; empty where the reason is none of its nodes."""
    operator: str
    """With its domain before it where that is not ONNX's own; empty where the reason is no node."""
    code: str
    """Of the error, as on the wire."""
    reason: str


def survey(data: bytes, limits: IngestLimits) -> tuple[Refusal, ...]:
    """Every node that would be refused, in the order of their data; empty for a file that is read.

    A refused node's results are taken to be of the type that the standard gives them, so that the nodes behind it are
    looked at as well; those for which it gives none are left out.
    """
    found: list[tuple[Any, PitchpipeError]] = []
    try:
        Source(data, limits).convert(limits, found)
    except PitchpipeError as error:
        found.append((None, error))
    return tuple(_refusal(proto, error) for proto, error in found)


def survey_bytes(data: bytes, limits: IngestLimits) -> bytes:
    """The same as JSON, a list of objects: what the child answers."""
    return json.dumps([asdict(refusal) for refusal in survey(data, limits)]).encode()


def _refusal(proto: Any, error: PitchpipeError) -> Refusal:
    operator = "" if proto is None else f"{domain_of(proto)}::{proto.op_type}".removeprefix("::")
    return Refusal(node="" if proto is None else proto.name, operator=operator, code=error.code, reason=error.detail)
