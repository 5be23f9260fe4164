"""A candidate as text: its scheduled TIR and, on demand, its lowered module and the code that is generated from it.

The functions are those that compile a candidate for a measurement. Nothing is run, and no device is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitchpipe.errors import IntegrityError, InvalidTrace
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.measure.build import apply
from tuner.tvm_compat import load_ir
from tuner.workload.digest import workload_digest


def list_code(
    _model: bytes, _arrays: Mapping[str, Any], *, workload: str, ir: str, trace: str, target: str, compiled: bool
) -> dict[str, Any]:
    """Step: the texts of a candidate. workload: its digest. ir: TVM's JSON. target: a Target's key.

    The answer has `tir`, the scheduled module as TVM script; `code`, with `compiled` the texts by name that
    `TargetKind.code` yields; and `failed`, the reason where the trace does not apply or the candidate does not compile
    here, so that texts are missing. Raises InvalidModel, and IntegrityError when the IR has another digest.
    """
    mod = load_ir(ir)
    if (found := workload_digest(mod)) != workload:
        raise IntegrityError(f"the program's digest is {found}, not {workload}: it is another workload's")
    wanted = Target.parse(target)
    kind = kind_of(wanted)
    kind.load_intrinsics()
    listing: dict[str, Any] = {"tir": None, "code": {}, "failed": None}
    try:
        scheduled = apply(mod, trace)
        listing["tir"] = scheduled.script()
        if compiled:
            for form, text in kind.code(mod, scheduled, wanted):
                listing["code"][form] = text
    except InvalidTrace as error:
        listing["failed"] = error.detail
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met
        listing["failed"] = f"it does not build: {type(error).__name__}: {error}".strip()
    return listing
