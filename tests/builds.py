"""What the suite has compiled once it does not compile again: libraries by what they are built of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pitchpipe.wire.ids import json_digest, sha256

Kept = dict[str, tuple[Any, bytes]]
"""Manifest and library, by digest of the model, of all that the step is told, and of what names the linker."""


def keeping(run_step: Callable[..., Any], kept: Kept) -> Callable[..., Any]:
    """`run_step`, whose step `build` runs once for equal models, targets, schedules and linkers."""

    def run(name: str, model: bytes = b"", *arrays: Any, **arguments: Any) -> Any:
        if name != "build":
            return run_step(name, model, *arrays, **arguments)
        library = Path(arguments["library"])
        aside = ("library", "defaults", "timeout_secs", "meanwhile")
        plan = {key: value for key, value in arguments.items() if key not in aside}
        linker = [os.environ.get(variable) for variable in ("CXX", "CC", "PATH")]
        key = json_digest([sha256(model), plan, linker])
        if key not in kept:
            made = run_step(name, model, *arrays, **arguments)
            kept[key] = (made, library.read_bytes())
        made, data = kept[key]
        library.write_bytes(data)
        return made

    return run
