"""`pitchpipe doctor`: what is installed, what this machine is, and what is wrong with either."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from pitchpipe.deploy.artifact import cache_dir, linker
from pitchpipe.errors import PitchpipeError
from pitchpipe.processes.cores import usable_cores
from pitchpipe.processes.plugins import step
from pitchpipe.target_kind import kinds
from pitchpipe.wire._base import Wire

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1", "apache-tvm-ffi-orcjit": "0.1.3"}
"""Versions that are known to work together; a later apache-tvm-ffi crashes in the search."""
SHOWN = ("pitchpipe", *PINNED, "xgboost-cpu", "numpy", "onnx", "fastapi", "sqlalchemy", "torch")


class Finding(Wire):
    """One thing looked at."""

    subject: str
    ok: bool
    detail: str


def examine(database: str | None) -> list[Finding]:
    """Everything doctor looks at; never raises."""
    return [*_versions(), *_machine(), *_paths(), *_database(database)]


def _versions() -> Iterator[Finding]:
    ok = (3, 11) <= sys.version_info[:2] <= (3, 12)
    yield Finding(
        subject="python", ok=ok, detail=platform.python_version() + ("" if ok else ": 3.11 or 3.12 is needed")
    )
    for name in SHOWN:
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(subject=name, ok=name not in PINNED, detail="not installed")
            continue
        wanted = PINNED.get(name, found)
        yield Finding(subject=name, ok=found == wanted, detail=found if found == wanted else f"{found}, needs {wanted}")


def _machine() -> Iterator[Finding]:
    yield _try("target", lambda: str(step("detect_target")("auto")))
    for kind in kinds():
        for subject, look in kind.checks():
            yield _try(subject, look)
    cores = usable_cores()
    given = os.environ.get("TVM_NUM_THREADS")
    ok = given is None or given == str(cores)
    detail = f"{cores} usable cores, TVM_NUM_THREADS {given or 'unset (Pitchpipe sets it)'}"
    yield Finding(subject="threads", ok=ok, detail=detail)
    detail = linker() or "none: pitchpipe.load() compiles in its own process, anew each time"
    yield Finding(subject="linker", ok=True, detail=detail)


def _paths() -> Iterator[Finding]:
    folder = cache_dir()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    ok = os.access(existing, os.W_OK)
    yield Finding(subject="cache", ok=ok, detail=f"{folder}" if ok else f"{existing} is not writable")


def _database(url: str | None) -> Iterator[Finding]:
    if url is None:
        yield Finding(subject="database", ok=True, detail="none given (PITCHPIPE_DATABASE_URL)")
        return
    yield _try("database", lambda: str(step("check_database")(url)))


def _try(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject=subject, ok=True, detail=look())
    except PitchpipeError as error:
        return Finding(subject=subject, ok=False, detail=error.detail)
    except Exception as error:  # noqa: BLE001 - the doctor reports whatever is wrong and goes on
        return Finding(subject=subject, ok=False, detail=f"{type(error).__name__}: {error}")
