"""What a device can do at most, measured in the sandbox."""

from __future__ import annotations

from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, MeasureConfig, Timed
from tests.compiler.programs import TARGET, dense
from tuner.target_kinds.cpu.device import data_caches
from workers.sandbox.sandbox import Sandbox


def test_a_device_is_measured_beside_its_work() -> None:
    work = dense()
    with Sandbox(TARGET) as sandbox:
        found = sandbox.roofline()
        (result,) = sandbox.measure(work, [Candidate.of(work.digest, BASELINE_TRACE)], MeasureConfig(max_secs=0.02))
    assert isinstance(result, Timed)
    assert found is not None
    assert found.threads == TARGET.num_cores
    caches = data_caches(found.threads)
    inside = [level.inside_bytes for level in found.levels]
    assert inside == sorted(set(inside))
    assert inside[-1] == sum(size for _, size in caches)
    assert {level.name for level in found.levels} <= {name for name, _ in caches[1:]} | {"memory"}
    rates = [level.bytes_per_sec for level in found.levels]
    assert rates == sorted(rates, reverse=True)
    assert found.flops_per_sec > rates[-1] / 4, "an addition to every float that is read keeps up with the memory"
