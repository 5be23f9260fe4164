"""A record's candidate, measured again on another occasion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pitchpipe.wire._base import Wire
from pitchpipe.wire.measure import Measurement
from pitchpipe.wire.target import Target


class Circumstance(Wire):
    """Something that was otherwise when the record was measured."""

    subject: Literal["target", "device", "driver", "toolchain", "measure version"]
    recorded: str
    here: str


class Replayed(Wire):
    """What building, checking and timing a record's candidate again came to, interleaved with its baseline."""

    record: str
    target: Target = Field(description="what it was built for: the record's, with no more cores than there are here")
    result: Measurement
    baseline: Measurement | None = Field(default=None, description="absent where the candidate is the baseline itself")
    differences: tuple[Circumstance, ...] = ()
    disturbed: bool = Field(
        description="a heartbeat beside the timing here was slower than usual, or the device failed"
    )
    recorded_disturbed: bool = Field(description="the same of the record's own timing")
