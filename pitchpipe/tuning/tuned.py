"""A tuned model: called like the one it was made of, it runs whatever was fastest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitchpipe.deploy.lookup import Schedules
from pitchpipe.deploy.packs import PackManifest, create_pack
from pitchpipe.deploy.safe import FallbackWarning
from pitchpipe.deploy.signing import own_key
from pitchpipe.errors import InvalidInput
from pitchpipe.tuning.report import Report
from pitchpipe.tuning.subjects import Build, Subject
from pitchpipe.wire.record import LookupResponse

Padded = Callable[[Sequence[Any], Mapping[str, Any]], Any | None]
"""Runs calls between tuned sizes; None for those that it cannot."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model with one set of shapes, tuned."""

    subject: Subject
    schedules: Schedules
    report: Report
    build: Build | None
    """None where what ran it before goes on."""


class TunedModel:
    """Called with the arguments of the model that was tuned, it gives what that gives.

    A call that no build fits (other shapes or types, a module in training mode, inputs that require gradients) runs the
    model itself, and so does every call where the tuned build was not faster. A file has no "itself" in this process:
    without a `fallback` such calls raise InvalidInput. Safe for concurrent calls where the model is a torch module.
    """

    def __init__(self, variants: Sequence[Variant], cache: Path, padded: Padded | None = None) -> None:
        """variants: at least one, of one model; of several batches the smallest first."""
        self._variants = tuple(variants)
        self._before: Callable[..., Any] | None = variants[0].subject.before
        self._cache, self._padded = cache, padded
        self._broken: set[int] = set()

    @property
    def report(self) -> Report:
        """What tuning brought; of several batches for the largest."""
        return self._variants[-1].report

    @property
    def reports(self) -> tuple[Report, ...]:
        """One for each batch that was tuned, the smallest first."""
        return tuple(variant.report for variant in self._variants)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs the model. Raises what the model itself raises."""
        for at, variant in enumerate(self._variants):
            build = variant.build
            if build is None or at in self._broken:
                continue
            given = variant.subject.taken_apart((arguments, keywords))
            if given is None or not build.is_current:
                continue
            try:
                return build(given)
            except InvalidInput:
                if self._before is None:
                    raise
            except Exception as error:
                if self._before is None:
                    raise
                self._broken.add(at)
                self._warn(error)
        if self._padded is not None:
            try:
                if (found := self._padded(arguments, keywords)) is not None:
                    return found
            except Exception as error:  # noqa: BLE001 - whatever the runtime raises; the module goes on
                self._padded = None
                self._warn(error)
        if self._before is None:
            raise InvalidInput("the model was not built for these arguments, and no fallback was given")
        return self._before(*arguments, **keywords)

    def _warn(self, error: Exception) -> None:
        warnings.warn(f"Pitchpipe runs the model itself: a run failed: {error}", FallbackWarning, stacklevel=3)

    def save(self, path: str | os.PathLike[str], key: str | os.PathLike[str] | None = None) -> PackManifest:
        """Writes a signed pack with the schedules and the compiled model, which `pitchpipe.open_pack` opens.

        A module is saved as it is now; of several batches the largest is compiled, and the schedules of all go along.
        key: a private key's file; by default one of your own, made at the first call, which your `open_pack` trusts. Other
        machines are given its public half (`own.pub` in the folder of trusted keys). Raises as `create_pack` does.
        """
        several = (answer for variant in self._variants for answer in variant.schedules.response.answers)
        answers = {answer.workload: answer for answer in several}
        last = self._variants[-1]
        target = last.schedules.target
        schedules = Schedules(target=target, response=LookupResponse(answers=tuple(answers.values())))
        signer = Path(key) if key is not None else own_key()
        return create_pack(Path(path), schedules, signer, model=last.subject.exported(), cache=self._cache)
