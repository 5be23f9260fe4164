"""A task's workload and a trace of it, from the service or from a file: whether the schedule is right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.lookup import resolve_target
from pitchpipe.errors import InvalidInput, NotFound
from pitchpipe.processes.child import run_step
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind
from pitchpipe.wire.measure import BASELINE_TRACE, Failed
from pitchpipe.wire.record import LookupRequest
from pitchpipe.wire.target import Target

FAILURES = 4
"""Traces of failed records that are tried, the newest first, where the served one is right."""


def minify_task(
    task: str, *, target: Target | str = "auto", client: Client, out: Path | None, wall_secs: float = WALL_SECS
) -> Finding:
    """What is wrong with a schedule: the served one of the workload with the digest `task`, else its latest failures.

    `task` may also be the path of a JSON file: an object of `ir` (a workload's TVM JSON), `trace` and, optionally,
    `target`. Raises InvalidInput, InvalidTrace, NotFound.
    """
    wanted = resolve_target(target, cache_dir())
    found = None
    for ir, trace, measured_for in _traces(task, wanted, client):
        done = run_step(
            "minify_task",
            ir=ir,
            trace=trace,
            target=measured_for.key,
            label=task[:16] if _is_digest(task) else Path(task).stem,
            out=str(out) if out is not None else None,
            wall_secs=wall_secs,
        )
        found = Finding.model_validate(done)
        if found.kind is not FindingKind.NOTHING:
            break
    if found is None:
        raise NotFound(f"there is no trace of the workload {task[:16]} for this target")
    return found


def _traces(task: str, target: Target, client: Client) -> Iterator[tuple[str, str, Target]]:
    """(the workload's TVM JSON, a trace, the target it is for) of everything that is worth a try."""
    if not _is_digest(task):
        yield _from_file(Path(task), target)
        return
    ir = client.workload(task).ir
    (answer,) = client.lookup(LookupRequest(target=target, workloads=(task,))).answers
    served = answer.best.trace if answer.best is not None else BASELINE_TRACE
    yield ir, served, target
    failed = (record for record in client.records(task, target) if isinstance(record.result, Failed))
    for _, record in zip(range(FAILURES), failed, strict=False):
        yield ir, record.trace, record.target


def _from_file(path: Path, target: Target) -> tuple[str, str, Target]:
    try:
        value: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is neither a workload's digest nor a JSON file: {str(error)[:200]}") from error
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("ir", "trace")):
        raise InvalidInput(f"{path}: a task is an object of ir and trace, both text, and maybe target")
    return value["ir"], value["trace"], Target.parse(value["target"]) if "target" in value else target


def _is_digest(task: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", task) is not None
