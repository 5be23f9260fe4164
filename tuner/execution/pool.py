"""The local engine: steps of all projects in warm children, where each costs at most itself.

A place is a thread with its children, one kind for steps that are confined and one for those that start programs. It
runs one step at a time, and a step's end, however bad, ends nothing but that step's future. Whose step is next,
tuner/execution/turns.py says. As many steps as there are processes run at once; one that has computed for SLOW_SECS no
longer counts, so that a step that hangs holds others up for that long and not until its deadline. There are at most twice
as many places, and a project has no more than half of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pitchpipe.errors import PitchpipeError, StepDied, StepTimeout
from pitchpipe.wire.limits import OTHER_STEPS, STEP_LIMITS, StepLimits
from tuner.execution.step_child import NotBegun, StepChild, request
from tuner.execution.turns import Owner, Turns
from tuner.measure import quiet

P = ParamSpec("P")
T = TypeVar("T")

STEPS_PER_CHILD = 200
"""Children are replaced after this many steps each, so that a slow leak in native code stays small."""
STARTS = 2
"""Children that may die, each before it has the step, before the step fails."""
COMPILER = ("tuner.search.evolution", "tuner.tasks", "tuner.search.cost_model")
"""What confined children import before they have anything to do: under the filter some imports fail."""
NOBODY: Owner = ("", "")
"""Whose steps those are that were submitted without an owner."""


@dataclass(kw_only=True, eq=False)
class _Step:
    name: str
    limits: StepLimits
    data: bytes
    future: Future[Any]


@dataclass(kw_only=True, eq=False)
class _Place:
    child: StepChild | None = None
    """The one that is running a step."""
    busy: bool = False
    slow: bool = False


class LocalEngine(Executor):
    """Thread-safe. Steps wait while a measurement on this host is being timed, and their clocks with them."""

    def __init__(
        self,
        workers: int,
        limits: Mapping[str, StepLimits] = STEP_LIMITS,
        *,
        modules: Sequence[str] = COMPILER,
    ) -> None:
        """`workers` steps at once; `modules` are imported by every confined child."""
        self.processes = workers
        self._limits, self._modules = limits, modules
        self._changed = threading.Condition()
        self._turns: Turns[_Step] = Turns(workers)
        self._places: set[_Place] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = self._killed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules the step for nobody in particular; the function must be a module's, its arguments picklable."""
        return self.submit_for(NOBODY, self._limits.get(fn.__name__, OTHER_STEPS), fn, args, kwargs)

    def submit_for(
        self,
        owner: Owner,
        limits: StepLimits | None,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[T]:
        """Schedules the step in its owner's turn; without limits, with those of its name.

        The future fails with the PitchpipeError the step raised, StepFailed for any other, StepTimeout or StepDied.
        """
        limits = limits or self._limits.get(function.__name__, OTHER_STEPS)
        data = request(function, args, kwargs, limits)
        step = _Step(name=function.__name__, limits=limits, data=data, future=Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine was shut down")
            self._turns.put(owner, step, time.monotonic())
            self._changed.notify()
            self._widen()
        return step.future

    def on_behalf(self, owner: Owner) -> Executor:
        """The same engine, where steps are `owner`'s."""
        return _OnBehalf(self, owner)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the children; what runs is finished only if `wait`, and what is queued then too unless cancelled."""
        with self._changed:
            self._closed = True
            if cancel_futures or not wait:
                for step in self._turns.drain():
                    step.future.cancel()
            if not wait:
                self._killed = True
                for place in self._places:
                    if place.child is not None:
                        place.child.kill()
            threads = list(self._threads)
            self._changed.notify_all()
        if wait:
            for thread in threads:
                thread.join()

    def _widen(self) -> None:
        """Opens a place if a queued step may have one. The lock is held."""
        idle = sum(not place.busy for place in self._places)
        if len(self._turns) > idle and self._counted < self.processes and len(self._places) < 2 * self.processes:
            place = _Place()
            # Not one that the interpreter waits for at its end: the kernel ends the children with their threads.
            thread = threading.Thread(target=self._serve, args=(place,), name="step", daemon=True)
            self._places.add(place)
            self._threads.add(thread)
            thread.start()

    @property
    def _counted(self) -> int:
        """Places that count as steps at once: those of steps that are slow do not. The lock is held."""
        return sum(not place.slow for place in self._places)

    def _serve(self, place: _Place) -> None:
        children: dict[bool, StepChild] = {}
        try:
            while (taken := self._next(place)) is not None:
                owner, step, began = taken
                resolve = self._outcome(place, step, children)
                with self._changed:
                    self._turns.done(owner, began, time.monotonic())
                    place.busy = place.slow = False
                    self._changed.notify_all()  # Its owner may have another step now.
                resolve()
        finally:
            for child in children.values():
                child.end()
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next(self, place: _Place) -> tuple[Owner, _Step, float] | None:
        """Waits for a step; None when the place is closed."""
        with self._changed:
            while not self._killed and self._counted <= self.processes:
                now = time.monotonic()
                if (taken := self._turns.take(now)) is not None:
                    place.busy = True
                    return *taken, now
                if self._closed and not self._turns:
                    break
                self._changed.wait()
            self._places.discard(place)
            return None

    def _outcome(self, place: _Place, step: _Step, children: dict[bool, StepChild]) -> Callable[[], None]:
        """Runs the step; what is returned tells its future, once the place is free again."""
        if not step.future.set_running_or_notify_cancel():
            return lambda: None
        try:
            result = self._run(place, step, children)
        except PitchpipeError as error:
            return partial(step.future.set_exception, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the step has to know
            return partial(step.future.set_exception, StepDied(f"the step {step.name} could not be run: {error!r}"))
        return partial(step.future.set_result, result)

    def _run(self, place: _Place, step: _Step, children: dict[bool, StepChild]) -> Any:
        confined, reason = step.limits.confined, ""
        for _ in range(STARTS):
            try:
                child = children.get(confined)
                if child is None:
                    quiet.create_files()
                    child = children[confined] = StepChild(confined=confined, modules=self._modules if confined else ())
                with self._changed:
                    if self._killed:
                        break
                    place.child = child
                return child.run(step.name, step.data, step.limits, lambda: self._slowed(place))
            except NotBegun as error:
                reason = str(error)
                self._discard(children, confined)
            except (StepTimeout, StepDied):
                self._discard(children, confined)
                raise
            finally:
                place.child = None
                if (child := children.get(confined)) is not None and child.steps >= STEPS_PER_CHILD:
                    self._discard(children, confined)
        raise StepDied(f"the step {step.name} did not begin: {reason or 'the engine was shut down'}")

    def _slowed(self, place: _Place) -> None:
        with self._changed:
            place.slow = True
            self._widen()

    @staticmethod
    def _discard(children: dict[bool, StepChild], confined: bool) -> None:
        if (child := children.pop(confined, None)) is not None:
            with suppress(OSError):
                child.end()


class _OnBehalf(Executor):
    def __init__(self, engine: LocalEngine, owner: Owner) -> None:
        self._engine, self._owner = engine, owner
        self.processes = engine.processes

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._engine.submit_for(self._owner, None, fn, args, kwargs)
