"""A tuned model, or something else that runs: whatever is wrong with Pitchpipe, the program goes on.

    model = pitchpipe.load_safely(module, inputs)                  # the module itself until its tuned build is there
    model = pitchpipe.load_safely("m.onnx", fallback=run_session)

Nothing here raises for a fault of ours, waits longer than the deadline, or is left when the program ends: look-ups run
in daemon threads, building and proof runs in children that die with this process.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy import background, identity, lookup, misses, usage
from pitchpipe.deploy.artifact import CompiledModel, cache_dir, intact, lacks_linker
from pitchpipe.deploy.building import BuildSpec, failure
from pitchpipe.deploy.evidence import leave
from pitchpipe.deploy.lockfile import locked
from pitchpipe.deploy.proof import open_proved
from pitchpipe.errors import IntegrityError, InvalidInput, NotFound, NotReady, PitchpipeError
from pitchpipe.gpu.arrays import ordinal_of
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.model.reference import NoSource
from pitchpipe.model.reference.expected import FEWEST
from pitchpipe.target_kind import ordinal_named
from pitchpipe.wire.target import Target

DEADLINE_SECS = 2.0
FIRST_POLL_SECS, LAST_POLL_SECS = 0.02, 0.25
"""Between looks for what another process builds, each half as long again."""
LOOK_EVERY_SECS = 1.0
"""How often a call that runs the fallback looks whether the tuned build has come."""


class FallbackWarning(UserWarning):
    """Said once per model, when something else runs in its place, or with schedules of earlier: what, and why."""


class Opening:
    """The way to a compiled model: target, identity, look-up, build; each step is taken once, as soon as it can be.

    For those who need the parts of `load_safely`, such as the torch.compile backend. Not thread-safe.
    """

    def __init__(
        self,
        model: LocalModel,
        *,
        weights: Mapping[str, Any] | None = None,
        schedules: lookup.Schedules | None = None,
        target: Target | str = "auto",
        client: Client | None = None,
        cache: Path | None = None,
        lock: Path | None = None,
        report_misses: bool = False,
    ) -> None:
        self.model, self.schedules = model, schedules
        self._more = weights or {}
        self.weights = {**model.weights, **self._more}
        self.cache = cache or cache_dir()
        self.folder: Path | None = None
        """Of the artifact, once it is known which one it is."""
        self._here = schedules is None and target == "auto"
        self._target = schedules.target if schedules is not None else target
        self._ordinal = ordinal_named(target)
        self._client, self._lock, self._report_misses = client, lock, report_misses
        self._background: background.Background | None = None
        self._reported: identity.Identity | None = None
        """Of the model, once it was looked up and its misses were reported."""

    def open(self, wait_secs: float) -> CompiledModel:
        """The compiled model if it is there within `wait_secs`; else its building goes on beside the program.

        Raises NotReady while that is so, and the error of pitchpipe.errors that says why there will be none. Opening
        what is ready takes as long as importing TVM does and is not cut short.
        """
        try:
            opened = self._open(time.monotonic() + wait_secs)
        except NotReady:
            raise
        except Exception:
            self.close()
            raise
        self.close()
        if self._reported is not None and self.schedules is not None:
            client = self._client  # The reports outlive this object, whose weights may go.
            usage.follow(opened.runs, self.schedules, self._reported, lambda: lookup.service_of(client))
        return opened

    def close(self) -> None:
        """Ends what goes on beside the program."""
        if self._background is not None:
            self._background.stop()

    def _open(self, until: float) -> CompiledModel:
        poll_secs = FIRST_POLL_SECS
        while True:
            if self.folder is None:
                self._find_folder(until - time.monotonic())
            if self.folder is not None and self.schedules is not None:
                try:
                    return open_proved(
                        self.folder,
                        self.schedules.target,
                        self.weights,
                        source=self.model.source,
                        ordinal=self._ordinal,
                    )
                except (NotFound, IntegrityError):
                    pass  # absent, damaged, or not tried here yet: the child sees to it
            self._work()
            left_secs = until - time.monotonic()
            if left_secs <= 0:
                who = "another process" if self._background is None else f"process {self._background.pid}"
                raise NotReady(f"{who} is building {self.model.name}; a later call or program will have it")
            time.sleep(min(poll_secs, left_secs))
            poll_secs = min(1.5 * poll_secs, LAST_POLL_SECS)

    def _find_folder(self, left_secs: float) -> None:
        """Looks up what is asked for, if everything that takes a compiler is known already and there is time."""
        if self.schedules is None:
            target = identity.known_target(self.cache) if self._target == "auto" else self._given_target()
            known = identity.known_identity(self.cache, self.model, target) if target is not None else None
            if target is None or known is None or left_secs <= 0:
                return
            self.schedules = self._asked(known, target, left_secs)
            self._tell_misses(self.schedules, known)
        given = self.schedules
        spec = BuildSpec(model=self.model, target=given.target, traces=given.traces, compiler=given.compiler)
        self.folder = spec.folder(self.cache)
        if not self.folder.exists():
            self.schedules.install(spec, self.cache)

    def _asked(self, known: identity.Identity, target: Target, left_secs: float) -> lookup.Schedules:
        if self._lock is not None:
            with contextlib.ExitStack() as stack:
                ask = lambda: stack.enter_context(lookup.service_of(self._client, deadline_secs=left_secs))  # noqa: E731
                return locked(self._lock, known, target, ask, cache=self.cache, deadline_secs=left_secs)
        with lookup.source_of(self._client, deadline_secs=left_secs) as source:
            return lookup.look_up(
                [known],
                target,
                source,
                here=self._here,
                cache=self.cache,
                deadline_secs=left_secs,
                or_earlier=True,
            )

    def _tell_misses(self, schedules: lookup.Schedules, known: identity.Identity | None) -> None:
        if self._report_misses and self._lock is None and known is not None:
            self._reported = known
            runs = misses.missed(schedules, known)
            misses.report_beside(lambda: lookup.service_of(self._client), schedules.target, [(self.model, runs)])

    def _likely_target(self) -> Target | None:
        """As far as it is known without asking a compiler."""
        if self.schedules is not None:
            return self.schedules.target
        return identity.known_target(self.cache) if self._target == "auto" else self._given_target()

    def _given_target(self) -> Target:
        return lookup.resolve_target(self._target, self.cache)

    def _work(self) -> None:
        """Takes over what the child tells, or starts one. Raises what keeps the model from being built."""
        outcome = self._background.outcome() if self._background is not None else None
        if outcome is not None:
            if outcome.error is not None or outcome.folder is None or outcome.target is None:
                raise PitchpipeError(outcome.error or "the child told nothing")
            if self.schedules is None and outcome.response is not None:
                self.schedules = lookup.Schedules(target=outcome.target, response=outcome.response)
                known = identity.known_identity(self.cache, self.model, outcome.target)
                self._tell_misses(self.schedules, known)
            self.folder, self._background = Path(outcome.folder), None
        elif self._background is None:
            self._start()

    def _start(self) -> None:
        if self.folder is not None and (failed := failure(self.folder)) is not None:
            raise PitchpipeError(f"it could not be built at {failed.at:%H:%M}: {failed.detail}")
        if lacks_linker(self._likely_target()) and not (self.folder is not None and intact(self.folder)):
            raise PitchpipeError("no C++ compiler is there to link it")
        if self.schedules is None and self._lock is None:
            with lookup.source_of(self._client):
                pass  # says now if there is nobody to ask
        asks = self.schedules is None and self._client is not None
        order = background.Order(
            name=self.model.name,
            format=self.model.format,
            target=None if self._target == "auto" else self._given_target(),
            traces=self.schedules.traces if self.schedules is not None else None,
            compiler=self.schedules.compiler if self.schedules is not None else None,
            lock=str(self._lock.absolute()) if self._lock is not None and self.schedules is None else None,
            url=self._client.url if asks and self._client is not None else None,
            token=self._client.token if asks and self._client is not None else None,
            cache=str(self.cache),
        )
        try:
            self._background = background.start(order, self.model.data, self._witness())
        except OSError as error:
            raise PitchpipeError(f"no building beside this program: {error}") from error

    def _witness(self) -> Callable[[Path], None] | None:
        """Leaves what the proof run compares with; None where there is nothing."""
        spare = self.schedules.expected(self.model) if self.schedules is not None else None
        if spare is None and isinstance(self.model.source, NoSource):
            return None
        return lambda folder: leave(folder, self.model, self._more, spare, most=FEWEST)


class SafeModel:
    """Called like a CompiledModel, with the same results: one array, or a tuple of them; NumPy's, or on the GPU where
    arguments lie there.

    It runs the tuned build once that is there, else the fallback. Safe for concurrent calls where the fallback is.
    """

    def __init__(self, fallback: Callable[..., Any], opening: Opening | None, reason: str | None = None) -> None:
        self._fallback, self._opening = fallback, opening
        self.reason = reason
        """Why the fallback runs; None when it does not."""
        self.compiled: CompiledModel | None = None
        """None while the fallback runs."""
        self._warned, self._look_at = False, 0.0
        self._looking = threading.Lock()

    def __call__(self, *arrays: Any) -> Any:
        if self.compiled is None and time.monotonic() >= self._look_at and self._looking.acquire(blocking=False):
            try:
                self._wait(0.0)
            finally:
                self._looking.release()
        if (compiled := self.compiled) is not None:
            try:
                return compiled(*arrays)
            except InvalidInput:
                pass  # shapes that it was not built for: the fallback takes them, or knows what to say
            except Exception as error:  # noqa: BLE001 - whatever the runtime raises; the program goes on
                self.compiled, self.reason = None, f"a run failed: {_cause(error)}"
        if self.compiled is None:
            self._warn()
        return _as_arrays(self._fallback(*arrays), on_gpu=any(ordinal_of(array) is not None for array in arrays))

    def wait(self, timeout_secs: float) -> bool:
        """Waits for what is built beside this program; whether the tuned build runs from now on."""
        with self._looking:
            return self._wait(timeout_secs)

    def _wait(self, timeout_secs: float) -> bool:
        if self._opening is not None:
            try:
                self.compiled = self._opening.open(timeout_secs)
                self._opening, self.reason = None, None
            except NotReady as error:
                self.reason = error.detail
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the program
                self._opening, self.reason = None, _cause(error)
            self._look_at = time.monotonic() + LOOK_EVERY_SECS
        return self.compiled is not None

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"Pitchpipe runs the fallback: {self.reason}", FallbackWarning, stacklevel=3)


def load_safely(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    fallback: Callable[..., Any] | None = None,
    schedules: lookup.Schedules | Callable[[], lookup.Schedules] | None = None,
    deadline_secs: float = DEADLINE_SECS,
    target: Target | str = "auto",
    client: Client | None = None,
    weights: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    lock: str | Path | None = None,
    trust: bool = False,
    report_misses: bool = False,
    precision: str = "ieee",
) -> SafeModel:
    """The tuned model, or the fallback in its place, within the deadline; it raises only for a fallback that is missing.

    fallback: called with the same arrays; a torch module is its own. `pitchpipe.load(model)` makes one of the baseline
        build.
    schedules: as for `load`, or what gives them (`lambda: open_pack(path)`), or None for a look-up in the service.
    lock: a lock file whose pins are run, in place of a look-up.
    report_misses: as for `fetch`, once looked up; and from then on, now and then, how often the tuned build ran, with its
        misses and with schedules that were served (see usage.py).
    precision: as for `fetch`.
    deadline_secs: of looking up, and of waiting for a build. What is not ready by then goes on in a child, and a later
        call of the model, or a later program, has it. A torch module is exported first, and where its build was never
        compared with it here, it is run four times: neither counts.

    Whatever goes wrong is told by one FallbackWarning and `SafeModel.reason`. Where the service gives no answer but gave
    one to this cache before, that one counts, and the warning says so.
    """
    if fallback is None:
        if not hasattr(model, "state_dict"):
            raise InvalidInput("a model that is no torch module needs a fallback")
        fallback = _module_runner(model)
    try:
        found = local_model(model, example_inputs, trust=trust, precision=precision)
        given = schedules() if callable(schedules) else schedules
        pins = Path(lock) if lock is not None else None
        opening = Opening(
            found,
            weights=weights,
            schedules=given,
            target=target,
            client=client,
            cache=cache,
            lock=pins,
            report_misses=report_misses,
        )
        safe = SafeModel(fallback, opening)
        safe.wait(deadline_secs)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not end the program
        safe = SafeModel(fallback, None, _cause(error))
    if safe.compiled is None:
        safe._warn()
    elif opening.schedules is not None and opening.schedules.stale is not None:
        told = f"Pitchpipe runs what the service said earlier: {opening.schedules.stale}"
        warnings.warn(told, FallbackWarning, stacklevel=2)
    return safe


def _cause(error: Exception) -> str:
    if isinstance(error, PitchpipeError):
        return f"{error.title}: {error.detail}" if error.detail != error.title else error.detail
    words = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {words[-1]}"


def _module_runner(module: Any) -> Callable[..., Any]:
    """The module as a function of arrays, without gradients."""

    def run(*arrays: Any) -> Any:
        import torch

        with torch.no_grad():
            return module(*(torch.as_tensor(array) for array in arrays))

    return run


def _as_arrays(result: Any, *, on_gpu: bool) -> Any:
    """What a fallback gave, in the form in which a CompiledModel gives it."""
    if isinstance(result, (tuple, list)):
        parts = tuple(_as_arrays(part, on_gpu=on_gpu) for part in result)
        return parts[0] if len(parts) == 1 else parts
    if not hasattr(result, "detach"):
        return result
    return result.detach() if on_gpu else result.detach().cpu().numpy()
