"""Workloads and tasks: what is tuned."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pitchpipe.wire._base import SCHEMA_VERSION, Digest, Wire
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target


class TaskKind(StrEnum):
    """How a task gets its schedule."""

    TUNED = "tuned"
    """Trials are spent on it."""
    FIXED = "fixed"
    """Trivially small, data movement, or bound by memory: a fixed default schedule, no trials."""


Extent = Annotated[int, Field(ge=0, lt=2**53)]


class TensorShape(Wire):
    """Of one argument of a workload."""

    shape: tuple[Extent, ...] = Field(max_length=64, description="elements per axis")
    dtype: str = Field(pattern=r"^[A-Za-z0-9_]{1,32}$")


class Signature(Wire):
    """What a workload computes, for people and for finding its neighbours; never a key."""

    operators: str = Field(max_length=512, description="operator names joined")
    anchor: str = Field(
        pattern=r"^[SRO]{0,64} (products|reduction|elements|nothing)$",
        description="its costliest stage: a letter per loop (S spatial, R reduction), and what it does",
    )
    extents: tuple[Extent, ...] = Field(max_length=64, description="iterations of the anchor's loops, in that order")
    arguments: tuple[TensorShape, ...] = Field(max_length=256, description="inputs and weights, then outputs")
    flops: float = Field(ge=0, description="floating-point operations of one run")


class SignedWorkload(Signature):
    """A signature with the workload that it is of."""

    workload: Digest


class Workload(Wire):
    """A tensor program to tune, known by its digest."""

    digest: Digest = Field(description="of the canonical form; see tuner/workload/digest.py")
    ir: str = Field(description="TVM JSON of an IRModule with one function, main; base of every trace")
    schema_version: int = SCHEMA_VERSION


class Task(Wire):
    """A workload for a target, with its place in the model."""

    workload: Workload
    target: Target
    name: str = Field(max_length=512, description="operator names joined; a label, never a key")
    kind: TaskKind = TaskKind.TUNED
    weight: int = Field(ge=1, description="times the workload occurs in one run of the model")
    flops: float = Field(ge=0, description="floating-point operations of one run")
    least_flops: float = Field(
        default=0.0, ge=0, description="those that no schedule of a design space does without; 0 is unknown"
    )
    flops_type: str = Field(
        default="float32", pattern=r"^[a-z0-9_]{1,16}$", description="type of the factors of those operations"
    )
    bytes: float = Field(ge=0, description="bytes of inputs and weights read once and outputs written once")
    group: str = Field(description="similarity group: same operator structure, other sizes")
    baseline: str = Field(
        default=BASELINE_TRACE, description="trace of the baseline, which every speed-up is relative to"
    )
    fixed: str | None = Field(default=None, description="trace of the default schedule, for a task that gets no trial")
    signature: Signature | None = Field(default=None, description="stored with the workload")
    seeds: tuple[str, ...] = Field(
        default=(), description="traces brought along (an import), tried in the confirming run"
    )
