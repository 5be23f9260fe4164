"""Targets by the names of devices, where this machine may have no such device and a service's workers may."""

from __future__ import annotations

from pitchpipe.client import Client
from pitchpipe.errors import InvalidInput, MeasurementFailed, NoDevice
from pitchpipe.model.local import detect_target
from pitchpipe.target_kind import named_device
from pitchpipe.wire.lease import WorkerState
from pitchpipe.wire.target import Target


def named_target(name: str, service: Client) -> Target:
    """The target that is meant: this machine's device of that name, else that of the service's active workers.

    JSON is what it says, `auto` and a device with a number (`cuda:1`) are of this machine alone. Raises NoDevice
    where neither has one, InvalidInput where the workers have several, which it lists.
    """
    try:
        return detect_target(name)
    except (NoDevice, MeasurementFailed) as absent:
        if name == "auto" or ":" in name:
            raise
        kind, _ = named_device(name)
        active = [worker.target for worker in service.workers() if worker.state is WorkerState.ACTIVE]
        found = sorted({target.key for target in active if target.kind == kind.name})
        if len(found) > 1:
            listed = " or ".join(found)
            raise InvalidInput(
                f"workers serve {len(found)} targets of kind {kind.name}; give one: {listed}"
            ) from absent
        if not found:
            told = f"start `pitchpipe worker --target {name}` where there is one, or give the target as JSON"
            raise NoDevice(f"{absent.detail}, and no worker of the service serves one: {told}") from absent
        return Target.parse(found[0])
