"""Writes isa.json beside it: which instructions each CPU that LLVM knows has, told by the LLVM inside TVM.

    python -m tuner.target_kinds.cpu.features

The service judges by that file whether a schedule for one CPU may be offered to another, and imports no compiler. Run it
again when the wheel's LLVM changes; tests/compiler/test_cpu_features.py fails until then.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tuner.tvm_compat import tvm

TABLE = Path(__file__).with_name("isa.json")
TRIPLES = {"x86": "x86_64-linux-gnu", "arm": "aarch64-linux-gnu"}
_MODE = {"x86": "64bit", "arm": "v8a|v8r"}
"""A CPU without it cannot run 64-bit code at all, whatever the triple makes LLVM say."""

_NO_INSTRUCTIONS = {
    # What LLVM calls tuning: how it orders and chooses instructions, not which there are.
    "x86": (
        r"(fast|slow|prefer|allow|false-deps|no-bypass|tuning|use|lea)-.*|faster-.*|64bit-mode|ermsb|fsrm|branchfusion|"
        r"macrofusion|idiv[lq]-to-div[bl]|pad-short-functions|sbb-dep-breaking|branch-hint|vzeroupper"
    ),
    # The same, the names of cores, and what belongs to the operating system, tracing and profiling.
    "arm": (
        r"(fuse|use|disable|enable|avoid|prefer|addr-lsl|alu-lsl|max-interleave|store-pair|balance|force|slow|no)-.*|"
        r"zc[mz]-.*|arith-.*|cmp-bcc-fusion|aggressive-.*|predictable-.*|alternate-.*|exynos-.*|(ldp|stp)-aligned-only|"
        r"strict-align|ampere1.?|apple-.*|c1-.*|carmel|cortex-.*|a\d+\w*|exynosm\d|falkor|fujitsu-.*|kryo|neoverse.*|"
        r"olympus|oryon-\d|saphira|thunderx.*|tsv110|"
        r"el2vmsa|el3|perfmon|spe|spe-eef|trbe|ete|brbe|mpam|tracev8\.4|nv|sel2|am|amvs|ecv|fgt|hcx|lor|pan|pan-rwv|vh|"
        r"uaops|CONTEXTIDREL2|ras|tlb-rmi|rme|mec|nmi|ccidx|specres2|clrbhb"
    ),
}
"""Features that no instruction of a compiled kernel depends on. One that is not listed counts as instructions, so a new
LLVM can make schedules look less compatible than they are, never more."""


def table() -> dict[str, Any]:
    """For each family its features, those that all CPUs have, what each brings along, and those of its CPUs, as bit sets.

    CPU names that two families share are in neither: they say nothing.
    """
    names = {
        family: set(tvm.target.codegen.llvm_get_cpu_archlist(_target(triple))) for family, triple in TRIPLES.items()
    }
    shared = set.intersection(*names.values())
    families = {family: _family(family, names[family] - shared) for family in TRIPLES}
    return {"llvm": int(tvm.target.codegen.llvm_version_major()), "families": families}


def _family(family: str, names: set[str]) -> dict[str, Any]:
    triple = TRIPLES[family]
    known = {name: _features(triple, name) for name in names}
    known = {name: has for name, has in known.items() if any(re.fullmatch(_MODE[family], feature) for feature in has)}
    instructions = sorted(
        feature for feature in set().union(*known.values()) if not re.fullmatch(_NO_INSTRUCTIONS[family], feature)
    )
    position = {feature: bit for bit, feature in enumerate(instructions)}

    def bits(features: set[str]) -> str:
        return f"{sum(1 << position[feature] for feature in features if feature in position):x}"

    least = _features(triple, "generic")
    implied = {feature: _features(triple, "generic", f"+{feature}") - least | {feature} for feature in instructions}
    return {
        "features": instructions,
        "base": bits(least),
        "implies": {feature: bits(found) for feature, found in implied.items() if len(found) > 1},
        "cpus": {name: bits(known[name]) for name in sorted(known)},
    }


def _target(triple: str, **attributes: Any) -> Any:
    return tvm.target.Target({"kind": "llvm", "mtriple": triple, **attributes})


def _features(triple: str, mcpu: str, *mattr: str) -> set[str]:
    found: set[str] = tvm.target.codegen.llvm_get_cpu_features(_target(triple, mcpu=mcpu, mattr=list(mattr)))
    return found


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=0) + "\n")
    print(TABLE)
