"""Targets in query strings, as JSON."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from pitchpipe.wire.target import Target

MAX_CHARS = 8192


async def _only(
    target: Annotated[str | None, Query(max_length=MAX_CHARS, description="JSON; only of this one")] = None,
) -> Target | None:
    # Not a plain function: the framework would send it through a thread.
    return None if target is None else Target.parse(target)


OnlyTarget = Annotated[Target | None, Depends(_only)]
"""The target that a list is asked for, in the query; None for those of all targets. Raises InvalidTarget."""
