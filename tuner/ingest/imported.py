"""What is kept of MetaSchedule's pair of files once it was read: workloads, and the traces found for each.

JSON, made in the disposable child (metaschedule_reader.py) and read by whoever splits it into tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pitchpipe.errors import InvalidModel

IMPORT_VERSION = 1
"""Version of this form."""


@dataclass(frozen=True, kw_only=True)
class ImportedWorkload:
    """A tensor program of a stock database."""

    ir: str
    """TVM JSON of a module with one function main, named and normalised as our own workloads are."""
    traces: Mapping[str, tuple[str, ...]]
    """Target kind -> canonical traces that apply to it, those that were reported fastest first."""


def pack_imported(workloads: Sequence[ImportedWorkload]) -> bytes:
    """The bytes to keep; the same workloads give the same bytes."""
    value = {"schema_version": IMPORT_VERSION, "workloads": [asdict(workload) for workload in workloads]}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse_imported(data: bytes) -> list[ImportedWorkload]:
    """Reads what `pack_imported` made; raises InvalidModel for anything else."""
    try:
        value = json.loads(data)
        if value["schema_version"] != IMPORT_VERSION:
            raise InvalidModel(
                f"the import has schema_version {str(value['schema_version'])[:40]}, not {IMPORT_VERSION}"
            )
        return [
            ImportedWorkload(ir=found["ir"], traces={kind: tuple(traces) for kind, traces in found["traces"].items()})
            for found in value["workloads"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModel("the import is not what reading MetaSchedule's files gives") from error
