"""MetaSchedule's pair of JSON files. Runs in the child (child.py): the bytes are untrusted.

The upload is one document, {"workload": text of database_workload.json, "tuning_record": text of
database_tuning_record.json}. Every workload is judged like the tensor functions of a model, every trace goes through
the allow-list and must apply; times in the files only order the traces, since nobody vouches for them.
"""

from __future__ import annotations

import json

from pitchpipe.errors import InvalidInput, InvalidModel, InvalidTrace
from pitchpipe.target_kind import kinds
from tuner.ingest import IngestLimits
from tuner.ingest import metaschedule_files as exchange
from tuner.ingest.imported import ImportedWorkload, pack_imported

KEPT = 8
"""Traces of one workload for one kind of target: as many as a confirming run takes."""


def read_metaschedule(data: bytes, limits: IngestLimits) -> bytes:
    """The form of imported.py; raises InvalidModel, or InvalidTrace, naming the line."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"the file is not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict) or set(document) != {"workload", "tuning_record"}:
        raise InvalidModel("an import is an object of workload and tuning_record, the texts of MetaSchedule's files")
    texts = [document[name] for name in ("workload", "tuning_record")]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidModel("workload and tuning_record are the texts of MetaSchedule's files")
    _register_intrinsics(texts[1])
    try:
        records = exchange.parse(*texts, most=KEPT)
    except (InvalidModel, InvalidTrace):
        raise
    except InvalidInput as error:
        raise InvalidModel(error.detail) from error
    if not records:
        raise InvalidModel("no record has a valid time and a trace that applies to its workload")
    programs: dict[str, str] = {}
    traces: dict[str, dict[str, list[str]]] = {}
    for record in records:
        programs.setdefault(record.workload.digest, record.workload.ir)
        by_kind = traces.setdefault(record.workload.digest, {})
        if record.target_kind is not None:
            by_kind.setdefault(record.target_kind, []).append(record.trace)
    if len(programs) > limits.nodes:
        raise InvalidModel(f"the files hold {len(programs)} workloads; the limit is {limits.nodes}")
    return pack_imported(
        [
            ImportedWorkload(ir=ir, traces={kind: tuple(found) for kind, found in traces[digest].items()})
            for digest, ir in programs.items()
        ]
    )


def _register_intrinsics(records: str) -> None:
    """What traces with tensor instructions name. Only then: for CUDA it takes most of the time there is."""
    if '"Tensorize"' in records:
        for kind in kinds():
            if f'"kind": "{kind.name}"' in records or f'"kind":"{kind.name}"' in records:
                kind.load_intrinsics()
