"""A record's candidate built, checked and timed again on this machine's device, in the sandbox that a worker uses."""

from __future__ import annotations

from collections.abc import Iterator

from pitchpipe.errors import MeasurementFailed, NoDevice
from pitchpipe.target_kind import describe, fit
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, Failed, FailureKind, MeasureConfig, Measurement, Timed
from pitchpipe.wire.record import RecordView, TuningRecord
from pitchpipe.wire.replayed import Circumstance, Replayed
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Workload
from tuner.measure.drift import drifted
from workers.device import detect_target, fingerprint, toolchain
from workers.sandbox.sandbox import Sandbox


def replay(view: RecordView, config: MeasureConfig) -> Replayed:
    """Step: measures the record's candidate as a confirming run does, interleaved with the baseline.

    A candidate that fails harms only a child process; its failure is the `result`. Raises NoDevice where this device
    cannot run it.
    """
    record = view.record
    here = _target_here(record.target)
    target = _fitted(record, here)
    candidate = Candidate.of(record.workload, record.trace)
    baseline = Candidate.of(record.workload, view.baseline)
    both = [candidate] if candidate.digest == baseline.digest else [baseline, candidate]
    workload = Workload(digest=record.workload, ir=view.ir)
    with Sandbox(target) as sandbox:
        found = {each.candidate: each for each in sandbox.measure(workload, both, config, purpose=Purpose.CONFIRM)}
    result = found[candidate.digest]
    return Replayed(
        record=record.id,
        target=target,
        result=result,
        baseline=found[baseline.digest] if len(both) > 1 else None,
        differences=tuple(differences(record, here, fingerprint(target.kind), toolchain(target), config.version)),
        disturbed=any(disturbed(each) for each in found.values()),
        recorded_disturbed=disturbed(record.result),
    )


def _target_here(recorded: Target) -> Target:
    """This machine's target of the recorded one's kind. Raises NoDevice."""
    try:
        return detect_target(recorded.kind)
    except (MeasurementFailed, NoDevice) as error:
        raise NoDevice(f"the record is for {describe(recorded)}: {error.detail}") from error


def _fitted(record: TuningRecord, here: Target) -> Target:
    """The record's target, with no more cores than there are here. Raises NoDevice."""
    found = fit(here, record.target)
    if not found.fits:
        raise NoDevice(f"the record is for {describe(record.target)}, this is {describe(here)}: {found.reason}")
    if record.target.num_cores is None or here.num_cores is None or record.target.num_cores <= here.num_cores:
        return record.target
    return record.target.model_copy(update={"num_cores": here.num_cores})


def differences(
    record: TuningRecord, target: Target, device: DeviceFingerprint, versions: Toolchain, measure_version: int
) -> Iterator[Circumstance]:
    """The circumstances of the record's measurement that differ from this machine's, which the other arguments are."""
    if record.target != target:
        yield Circumstance(subject="target", recorded=describe(record.target), here=describe(target))
    if record.device.device_class != device.device_class:
        yield Circumstance(subject="device", recorded=_described(record.device), here=_described(device))
    if record.device.driver != device.driver:
        yield Circumstance(subject="driver", recorded=record.device.driver, here=device.driver)
    if record.toolchain.key != versions.key:
        yield Circumstance(subject="toolchain", recorded=record.toolchain.key, here=versions.key)
    if record.measure_version != measure_version:
        yield Circumstance(subject="measure version", recorded=str(record.measure_version), here=str(measure_version))


def _described(device: DeviceFingerprint) -> str:
    return f"{device.model}, {device.cores} cores, class {device.device_class[:8]}"


def disturbed(result: Measurement) -> bool:
    """Whether the beat around a timing was too slow, or the device failed the candidate."""
    if isinstance(result, Failed):
        return result.kind is FailureKind.DEVICE_ERROR
    assert isinstance(result, Timed)
    return result.reference_ratio is not None and drifted(result.reference_ratio)
