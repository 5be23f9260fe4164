"""What a device's name means on a machine that has no such device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pitchpipe.deploy import named_target as module
from pitchpipe.deploy.named_target import named_target
from pitchpipe.errors import InvalidInput, NoDevice
from pitchpipe.wire.lease import WorkerState
from pitchpipe.wire.target import Target
from tests.scene import OTHER_TARGET, TARGET

AMPERE = Target.parse({**OTHER_TARGET.attributes(), "arch": "sm_80"})


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Target:
        if name == "cpu":
            return TARGET
        raise NoDevice(f"this machine has no device for targets of kind {name}")

    monkeypatch.setattr(module, "detect_target", refuse)


def service(*workers: tuple[Target, WorkerState]) -> Any:
    return SimpleNamespace(workers=lambda: [SimpleNamespace(target=target, state=state) for target, state in workers])


def test_a_device_of_this_machine_is_its_own_target() -> None:
    assert named_target("cpu", service((OTHER_TARGET, WorkerState.ACTIVE))) == TARGET


def test_where_there_is_none_it_is_the_active_workers_target() -> None:
    others = [(TARGET, WorkerState.ACTIVE), (AMPERE, WorkerState.LOST)]
    assert named_target("cuda", service(*others, *[(OTHER_TARGET, WorkerState.ACTIVE)] * 2)) == OTHER_TARGET


def test_where_nobody_has_one_the_error_says_what_to_type() -> None:
    with pytest.raises(NoDevice, match=r"no worker .* serves one: start `pitchpipe worker --target cuda`"):
        named_target("cuda", service((TARGET, WorkerState.ACTIVE), (AMPERE, WorkerState.GONE)))


def test_of_several_the_caller_chooses() -> None:
    with pytest.raises(InvalidInput, match=r"2 targets of kind cuda.*sm_80.* or .*sm_"):
        named_target("cuda", service((OTHER_TARGET, WorkerState.ACTIVE), (AMPERE, WorkerState.ACTIVE)))


@pytest.mark.parametrize("name", ["auto", "cuda:1"])
def test_a_number_and_auto_are_of_this_machine_alone(name: str) -> None:
    with pytest.raises(NoDevice, match="this machine has no device"):
        named_target(name, service((OTHER_TARGET, WorkerState.ACTIVE)))
