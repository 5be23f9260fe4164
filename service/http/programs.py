"""Programs of candidates as text, made by the compiler in a child where one is installed beside the server.

The step is that of `pitchpipe records show`: the server imports no compiler. A child has the step's limits
(pitchpipe/wire/limits.py), one runs at a time, and what it gave is kept by the candidate's digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from pitchpipe.errors import Overloaded, PitchpipeError
from pitchpipe.processes.child import run_step
from pitchpipe.wire.ids import candidate_digest

WAIT_SECS = 30.0
"""For one program: somebody is waiting for a page."""
_WAITING = 4
"""Requests that wait for a child; each of them holds a thread of the server."""
_KEPT_CHARS = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Program:
    """A candidate: all that it takes to compile it."""

    workload: str
    """Digest."""
    ir: str
    """TVM's JSON of the workload."""
    trace: str
    target: str
    """Key of a Target."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What a candidate is, in the forms that were asked for."""

    forms: Mapping[str, str]
    """Name -> text: `tir`, and of a compiled one what `TargetKind.code` names."""
    failed: str | None
    """Why forms are missing."""

    @property
    def chars(self) -> int:
        return sum(map(len, self.forms.values()))


def has_compiler() -> bool:
    """Whether a child of this server could compile."""
    return find_spec("tvm") is not None


class Programs:
    """Texts of candidates. Thread-safe."""

    def __init__(self) -> None:
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._places = threading.BoundedSemaphore(_WAITING)
        self._kept: OrderedDict[tuple[str, str, bool], Texts] = OrderedDict()

    def texts(self, program: Program, *, compiled: bool) -> Texts:
        """The scheduled TIR, and with `compiled` the lowered module and the machine code.

        What the compiler refuses, crashes on or hangs at is told in `failed`. Raises Overloaded while as many requests wait
        for programs as may.
        """
        key = (candidate_digest(program.workload, program.trace), program.target, compiled)
        if (found := self._known(key)) is not None:
            return found
        if not self._places.acquire(blocking=False):
            raise Overloaded("other programs are being compiled for this page; load it again in a moment")
        try:
            with self._turn:
                if (found := self._known(key)) is not None:
                    return found
                return self._compiled(program, key)
        finally:
            self._places.release()

    def _compiled(self, program: Program, key: tuple[str, str, bool]) -> Texts:
        try:
            listed = run_step(
                "list_code",
                timeout_secs=WAIT_SECS,
                workload=program.workload,
                ir=program.ir,
                trace=program.trace,
                target=program.target,
                compiled=key[2],
            )
        except PitchpipeError as error:
            return Texts(forms={}, failed=error.detail)  # Not kept: the machine may have been busy.
        forms = {"tir": listed["tir"]} | listed["code"]
        found = Texts(forms={name: text for name, text in forms.items() if text}, failed=listed["failed"])
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > 1 and sum(texts.chars for texts in self._kept.values()) > _KEPT_CHARS:
                self._kept.popitem(last=False)
        return found

    def _known(self, key: tuple[str, str, bool]) -> Texts | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)
