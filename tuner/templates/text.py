"""What a candidate of a template says, in the place where other candidates have a trace:

    {"args":{"columns":64,...},"template":"contraction-1"}

A template generates its source from a worker's own code; the text holds a name and bounded integers and nothing else. The
name carries a version: a template whose meaning changes gets a new name, and texts of the old one are refused. An argument
that came later is left out of a text where it says what was done without it, so that older texts stay what they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.ids import canonical_json

MAX_BYTES = 4096
"""Of a text: names and numbers of at most some tens of arguments."""
POWERS = tuple(1 << exponent for exponent in range(4, 9))
"""16 to 256: sides of tiles."""
COLUMNS = (*POWERS, 96, 192)
"""Of tiles: beside powers of two, sums of two of them, so that fewer blocks wait for a device's last ones."""
CONTRACTION, CONTRACTION_TMA, ROWS = "contraction-1", "contraction-tma-1", "rows-1"
FETCHES = 2
"""Value of `early`: and weights are asked for until the launch before has ended."""
TEMPLATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    CONTRACTION: {
        "rows": POWERS,
        "columns": COLUMNS,
        "step": POWERS,
        "parts": tuple(range(1, 65)),
        "stages": tuple(range(1, 9)),
        "warps": (1, 2, 4, 8, 16),
        "group": (0, 4, 8, 16),
        "early": (0, 1, FETCHES),
        "cluster": (0, 1),
    },
    CONTRACTION_TMA: {
        "rows": (64, 128, 256),
        "columns": COLUMNS,
        "step": (32, 64, 128),
        "parts": tuple(range(1, 65)),
        "stages": tuple(range(1, 17)),
        "warps": (4, 8),
        "group": (0, 4, 8, 16),
        "early": (0, 1),
        "cluster": (0, 1),
    },
    ROWS: {
        "rows": tuple(1 << exponent for exponent in range(8)),
        "warps": (1, 2, 4, 8, 16),
        "early": (0, 1, FETCHES),
        "keys": (0, 32, 64, 128),
        "depth": (1, 2, 3, 4),
    },
}
"""Template -> argument -> values that it may have.

contraction-1: the tile that a thread block computes (rows x columns), iterations of the sum for which operands are in shared
memory at a time (step), parts into which the sum is divided among blocks, depth of the pipeline of copies (stages), warps of
a block, rows of tiles that are computed one after another so that they find their operands in the L2 cache (group; 0 for
all), whether a launch may begin before the one before it has ended (early), whether the blocks of a tile's parts are a
cluster that adds their sums, where else a second kernel does (cluster).

contraction-tma-1: the same, of a kernel that has the tensor memory accelerator copy tiles and that waits for each of them
alone (stages: tiles of an operand in shared memory; early: and weights are copied until the launch before has ended).

rows-1: the rows that a block computes, its warps, early (FETCHES: and weights are read until then); of an attention the keys
that it takes at a time (keys; 0 for all), and the depth of the pipeline of copies then (depth).
"""
LATER: Mapping[str, int] = {"cluster": 0, "keys": 0, "depth": 1}
"""Argument that came later -> what a text says that lacks it."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A template with its arguments."""

    template: str
    arguments: Mapping[str, int]

    @property
    def text(self) -> str:
        """The canonical text."""
        told = {name: value for name, value in self.arguments.items() if LATER.get(name) != value}
        return canonical_json({"template": self.template, "args": told}).decode()


def is_template(text: str | bytes) -> bool:
    """Whether a candidate's text is a template's; else it is a trace. Says nothing of whether it is valid."""
    return text[:1] in ("{", b"{")


def parse(text: str | bytes) -> Chosen:
    """The template and the arguments of a text, canonical or not. Raises InvalidTrace, which names the fault."""
    if len(text) > MAX_BYTES:
        raise InvalidTrace(f"the template's text has {len(text)} bytes, the cap is {MAX_BYTES}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTrace(f"the template's text is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict) or set(value) != {"template", "args"} or not isinstance(value["args"], dict):
        raise InvalidTrace('a template is {"template": name, "args": {name: number}}')
    return checked(value["template"], value["args"])


def checked(name: Any, arguments: Mapping[str, Any]) -> Chosen:
    """A template with arguments that it may have. Raises InvalidTrace."""
    known = TEMPLATES.get(name) if isinstance(name, str) else None
    if known is None:
        raise InvalidTrace(f"there is no template {str(name)[:64]!r}")
    arguments = {**{name: value for name, value in LATER.items() if name in known}, **arguments}
    if set(arguments) != set(known):
        raise InvalidTrace(f"the template {name} takes {', '.join(sorted(known))}")
    for argument, values in known.items():
        if type(arguments[argument]) is not int or arguments[argument] not in values:
            raise InvalidTrace(f"{name}: {argument} may not be {str(arguments[argument])[:64]}")
    return Chosen(template=name, arguments={argument: arguments[argument] for argument in sorted(known)})
