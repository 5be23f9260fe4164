"""What a device can do at most, as a worker measured it."""

from __future__ import annotations

from pydantic import Field

from pitchpipe.wire._base import Wire


class MemoryLevel(Wire):
    """One level of a device's memory: a cache, or what lies behind all caches."""

    name: str = Field(min_length=1, max_length=32)
    inside_bytes: int = Field(ge=0, description="what the levels nearer to the cores hold, all cores together")
    bytes_per_sec: float = Field(
        gt=0, lt=1e18, description="most that all cores read and write together, of this level"
    )


class Peak(Wire):
    """The peak of products of one type, where it is not that of float32 multiply-adds."""

    type: str = Field(
        pattern=r"^[a-z0-9]{1,16}$", description="of the factors, as a task's flops_type: float16, tf32, ..."
    )
    flops_per_sec: float = Field(gt=0, lt=1e21, description="multiply-adds; each counts as two")


class Roofline(Wire):
    """The roofs over every program of a device."""

    threads: int = Field(ge=1, le=4096, description="threads that it was measured with")
    flops_per_sec: float = Field(gt=0, lt=1e21, description="float32 multiply-adds in registers; each counts as two")
    peaks: tuple[Peak, ...] = Field(default=(), max_length=16, description="of other types, on tensor cores")
    levels: tuple[MemoryLevel, ...] = Field(default=(), max_length=8, description="nearest to the cores first")
    launch_secs: float = Field(default=0.0, ge=0, lt=1, description="least time of any program: of starting a kernel")
