"""Whether a schedule confirmed for one CPU can run on another: what can be proven of its instructions.

A schedule applies where the device has every instruction that it was made for, in the same family. That is read off
isa.json, which features.py writes from LLVM's own tables. What the table does not know proves nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pitchpipe.target_kind import Fit
from pitchpipe.wire.target import Target

_VECTOR_BITS = {"x86": (("avx512f", 512), ("avx", 256)), "arm": ()}
"""Widest vectors by feature, where they are not the family's 128 bits; SVE schedules are made like NEON's."""
_MOST_NAMED = 4
"""Missing features that a reason names."""


class _Unknown(Exception):
    """Nothing can be proven of a target; the text says why."""


@dataclass(frozen=True, kw_only=True)
class _Family:
    name: str
    features: tuple[str, ...]
    position: dict[str, int]
    base: int
    implies: dict[str, int]
    cpus: dict[str, int]

    def bits(self, target: Target) -> int:
        """The target's features. Raises _Unknown."""
        found = self.cpus[target.mcpu or ""]
        for entry in target.mattr:
            sign, feature = entry[:1], entry[1:]
            position = self.position.get(feature)
            if position is None or sign not in ("+", "-"):
                raise _Unknown(f"nothing is known of the attribute {entry!r}")
            bit = 1 << position
            if sign == "+":
                found |= bit | self.implies.get(feature, 0)
            elif bit & self.base:
                raise _Unknown(f"{entry!r} takes away what every CPU of the family has")
            else:
                dependent = (1 << self.position[other] for other, brings in self.implies.items() if brings & bit)
                found &= ~(bit | sum(dependent))
        return found

    def names(self, bits: int) -> str:
        found = [feature for feature, position in self.position.items() if bits >> position & 1]
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return ", ".join(found[:_MOST_NAMED]) + more

    def vector_bits(self, bits: int) -> int:
        return next((width for name, width in _VECTOR_BITS[self.name] if bits >> self.position[name] & 1), 128)


def fit(asking: Target, stored: Target) -> Fit:
    """The reason completes "confirmed for X: ..."."""
    try:
        here, there = _family(asking), _family(stored)
        if here is not there:
            return Fit(fits=False, reason=f"{stored.mcpu} is {there.name}, {asking.mcpu} is {here.name}")
        has, needs = here.bits(asking), here.bits(stored)
    except _Unknown as error:
        return Fit(fits=False, reason=str(error))
    if asking.num_cores is None or stored.num_cores is None:
        return Fit(fits=False, reason="the number of cores is not known")
    if lacks := needs & ~has:
        return Fit(fits=False, reason=f"{asking.mcpu} lacks {here.names(lacks)} of it")
    wide, made_for = here.vector_bits(has), here.vector_bits(needs)
    unused = (has & ~needs).bit_count()
    reasons = [f"{asking.mcpu} has all its instructions" if (asking.mcpu, unused) != (stored.mcpu, 0) else "same CPU"]
    if made_for < wide:
        reasons.append(f"made for vectors of {made_for} bits, not {wide}")
    if asking.num_cores != stored.num_cores:
        reasons.append(f"confirmed on {stored.num_cores} cores, not {asking.num_cores}")
    apart = math.log2(wide / made_for), abs(math.log2(asking.num_cores / stored.num_cores)), float(unused)
    return Fit(fits=True, reason="; ".join(reasons), distance=apart)


def _family(target: Target) -> _Family:
    for family in _families():
        if target.mcpu in family.cpus:
            return family
    raise _Unknown(f"nothing is known of a CPU named {target.mcpu!r}")


@cache
def _families() -> tuple[_Family, ...]:
    table: dict[str, Any] = json.loads((files(__package__) / "isa.json").read_text())
    return tuple(
        _Family(
            name=name,
            features=tuple(found["features"]),
            position={feature: bit for bit, feature in enumerate(found["features"])},
            base=int(found["base"], 16),
            implies={feature: int(bits, 16) for feature, bits in found["implies"].items()},
            cpus={cpu: int(bits, 16) for cpu, bits in found["cpus"].items()},
        )
        for name, found in table["families"].items()
    )
