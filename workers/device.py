"""This machine's device: its fingerprint, target and toolchain. Imports no TVM; a child does."""

from __future__ import annotations

from pitchpipe.errors import NoDevice
from pitchpipe.target_kind import HOST, kind_named, kinds, named_device
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from tuner.target_kinds.compiler import compiler_here


def fingerprint(kind: str = HOST) -> DeviceFingerprint:
    """The fingerprint of the first device for targets of this kind. Raises MeasurementFailed when there is none."""
    return kind_named(kind).fingerprint()


def detect_target(name: str = "auto") -> Target:
    """The target of this machine's device of that name (`named_device`), or for `auto` of the first kind that it has one of.

    Raises InvalidTarget for another name, NoDevice when the machine has no such device, MeasurementFailed when it cannot be
    used or TVM does not start.
    """
    devices = [(kind, 0) for kind in kinds()] if name == "auto" else [named_device(name)]
    for kind, ordinal in devices:
        if (found := kind.detect(ordinal)) is not None:
            return found
    raise NoDevice(f"this machine has no device for targets of kind {name}")


def toolchain(target: Target) -> Toolchain:
    """The versions that generate code for `target` on this machine. Raises MeasurementFailed if TVM does not start."""
    return compiler_here().toolchains[target.kind]
