"""The replay set as one Parquet file, a row for each candidate: written by replay_set.py, read by learning.py.

docs/replay-set.md describes the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import parquet
from replay_search import Replayed

from pitchpipe.wire.ids import canonical_json
from pitchpipe.wire.measure import MEASURE_VERSION
from tuner.schedule.trace import without_postproc
from tuner.search.cost_model import FEATURES, unpack_features

if TYPE_CHECKING:
    from replay_set import Entry

SCHEMA_VERSION = 1
METADATA = b"pitchpipe.replay-set"
"""Key of the file's metadata: a JSON object with `schema_version` and the environment that it was measured in."""
REPEATED = (
    *("workload", "name", "kind", "anchor", "networks", "target", "device", "toolchain"),
    *("origin", "family", "stop", "failure"),
)
"""Columns whose values repeat: they are stored as numbers of a dictionary."""


def pack(
    output: Path, entries: Sequence[Entry], networks: Mapping[str, Sequence[str]], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes what is measured; returns what a reader of the log wants to know of it."""
    columns: dict[str, list[Any]] = {}
    for entry in entries:
        digest = entry.task.workload.digest
        of_workload = {
            "workload": digest,
            "name": entry.task.name,
            "kind": entry.task.kind.value,
            "anchor": "" if entry.task.signature is None else entry.task.signature.anchor,
            "networks": [name for name, has in networks.items() if digest in has],
            "flops": entry.task.flops,
            "bytes": entry.task.bytes,
            "target": entry.task.target.key,
            "device": environment["device_class"],
            "toolchain": environment["toolchain"],
            "measure_version": MEASURE_VERSION,
        }
        for one in entry.candidates:
            if (found := entry.results.get(one.digest)) is None:
                continue
            features = unpack_features(one.features)
            row = {
                **of_workload,
                "candidate": one.digest,
                "parent": one.parent,
                "family": one.family,
                "origin": one.origin,
                "place": one.place,
                "default": one.default,
                "decisions": canonical_json(json.loads(without_postproc(one.trace))[1]).decode(),
                **{key: found.get(key) for key in ("seconds", "lower", "upper", "samples", "stop", "failure")},
                "reference_ratio": found.get("ratio"),
                "stores": len(features),
                "features": features.reshape(-1),
            }
            for key, value in row.items():
                columns.setdefault(key, []).append(value)
    types = {"features": arrow.list_(arrow.float32()), "place": arrow.int32(), "stores": arrow.int32()}
    table = arrow.table({key: arrow.array(values, type=types.get(key)) for key, values in columns.items()})
    told = {"schema_version": SCHEMA_VERSION, "environment": dict(environment)}
    table = table.replace_schema_metadata({METADATA: json.dumps(told).encode()})
    parquet.write_table(
        table, output, compression="zstd", compression_level=19, use_dictionary=[*REPEATED, "features.list.element"]
    )
    timed = [secs is not None for secs in columns["seconds"]]
    counts = [len(entry.results) for entry in entries]
    return {
        "file": str(output),
        "megabytes": round(output.stat().st_size / 1e6, 2),
        "workloads": len(entries),
        "networks": len(networks),
        "candidates": len(timed),
        "failed": len(timed) - sum(timed),
        "fewest_of_a_workload": min(counts),
        "most_of_a_workload": max(counts),
    }


def metadata_of(path: Path) -> dict[str, Any]:
    """`schema_version`, and the `environment` that the set was measured in; ends the script for any other file."""
    told: dict[str, Any] = json.loads((parquet.read_schema(path).metadata or {}).get(METADATA, b"{}"))
    if told.get("schema_version") != SCHEMA_VERSION:
        raise SystemExit(f"{path} is not a replay set of version {SCHEMA_VERSION}")
    return told


def read(path: Path) -> list[Replayed]:
    """The workloads of a set in which something has a time."""
    metadata_of(path)
    table = parquet.read_table(path)
    found = []
    workloads = np.array(table["workload"].to_pylist())
    for digest in dict.fromkeys(workloads.tolist()):
        part = table.take(np.flatnonzero(workloads == digest))

        def numbers(name: str, part: Any = part) -> NDArray[np.float64]:
            values = [np.inf if value is None else value for value in part[name].to_pylist()]
            return np.array(values, dtype=np.float64)

        seconds = numbers("seconds")
        if not np.isfinite(seconds).any():
            continue
        first = part.slice(0, 1).to_pylist()[0]
        found.append(
            Replayed(
                digest=digest,
                name=first["name"],
                networks=tuple(first["networks"]),
                seconds=seconds,
                lower=numbers("lower"),
                upper=numbers("upper"),
                place=part["place"].to_numpy(),
                origin=np.array(part["origin"].to_pylist()),
                family=np.array(part["family"].to_pylist()),
                decisions=[json.loads(text) for text in part["decisions"].to_pylist()],
                default=np.array(part["default"].to_pylist()),
                features=[
                    values.values.to_numpy().reshape(-1, FEATURES).astype(np.float32) for values in part["features"]
                ],
            )
        )
    return found
