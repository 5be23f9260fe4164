from __future__ import annotations

import pytest
from pydantic import ValidationError

from pitchpipe.errors import InvalidTarget
from pitchpipe.wire.record import LookupRequest
from pitchpipe.wire.target import Target


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"kind": "llvm", "mcpu": "znver5"}, "needs mcpu and num-cores"),
        ({"kind": "llvm", "num-cores": 2}, "needs mcpu and num-cores"),
        ({"kind": "cuda"}, "needs arch"),
        ({"kind": "opencl"}, "kind"),
        ({"kind": "cuda", "arch": "sm_90", "colour": "red"}, "colour"),
    ],
)
def test_there_is_no_target_that_is_not_complete(value: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidTarget, match=why):
        Target.parse(value)
    with pytest.raises(ValidationError):
        Target.model_validate(value)
    with pytest.raises(ValidationError):
        LookupRequest.model_validate({"target": value, "workloads": ["a" * 64]})


def test_what_is_no_json_is_refused_as_a_target() -> None:
    with pytest.raises(InvalidTarget, match="not JSON"):
        Target.parse("{")


def test_a_target_is_the_same_after_its_text_and_after_itself() -> None:
    target = Target.parse('{"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "mattr": "+b,+a,+b"}')
    assert target.mattr == ("+a", "+b")
    assert Target.parse(target.key) == Target.parse(target) == target
