"""This machine's device: its fingerprint, target and toolchain. Imports no TVM; a child does."""

from __future__ import annotations

from pitchpipe.errors import MeasurementFailed
from pitchpipe.target_kind import HOST, kind_named, kinds
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from tuner.target_kinds.compiler import compiler_here


def fingerprint(kind: str = HOST) -> DeviceFingerprint:
    """The fingerprint of the first device for targets of this kind. Raises MeasurementFailed when there is none."""
    return kind_named(kind).fingerprint()


def detect_target(kind: str = "auto") -> Target:
    """The target of this machine's device for a kind of target, or for `auto` of the first kind that it has a device for.

    Raises InvalidTarget for another kind, MeasurementFailed when the machine has no such device or TVM does not
    start.
    """
    for wanted in kinds() if kind == "auto" else (kind_named(kind),):
        if (found := wanted.detect()) is not None:
            return found
    raise MeasurementFailed(f"this machine has no device for targets of kind {kind}")


def toolchain(target: Target) -> Toolchain:
    """The versions that generate code for `target` on this machine. Raises MeasurementFailed if TVM does not start."""
    return compiler_here().toolchains[target.kind]
