"""Targets and devices: what code is generated for, and the physical thing that runs it."""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pitchpipe.errors import InvalidTarget
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.ids import canonical_json, json_digest

INCOMPLETE_TARGET = "incomplete_target"
"""Pydantic's type of the error that a target raises which lacks what its kind needs."""

KindName = Literal["llvm", "cuda"]
"""Kinds of targets. What each one means is in pitchpipe/target_kind.py."""
DeviceKind = Literal["cpu", "cuda"]
"""Kinds of devices, as TVM and PyTorch name them."""
NEEDED: dict[KindName, tuple[str, ...]] = {"llvm": ("mcpu", "num_cores"), "cuda": ("arch",)}
"""Attributes without which a target of the kind says too little to generate code."""


class Target(Wire):
    """What code is generated for. A value: two targets are the same exactly when their `key` is.

    A target that exists is complete: an LLVM target has `mcpu` and `num_cores`, a CUDA target has `arch`.
    The host triple is left out on purpose: it is a property of the compiler's wheel, not of the device.
    Unknown attributes are refused, so that nothing is ever compared that is not understood.
    """

    kind: KindName
    mcpu: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.+-]{1,64}$", description="LLVM CPU name")
    mattr: tuple[str, ...] = Field(default=(), max_length=64, description="LLVM features such as +avx512f; sorted")
    num_cores: int | None = Field(
        default=None, ge=1, le=4096, alias="num-cores", description="threads a kernel may use"
    )
    arch: str | None = Field(default=None, pattern=r"^sm_[0-9]{2,3}[a-z]?$", description="CUDA architecture")
    max_threads_per_block: int | None = Field(default=None, ge=1, le=4096)
    max_shared_memory_per_block: int | None = Field(default=None, ge=1, le=1 << 20, description="bytes")
    registers_per_block: int | None = Field(default=None, ge=1, le=1 << 20)
    thread_warp_size: int | None = Field(default=None, ge=1, le=128)
    l2_cache_size_bytes: int | None = Field(default=None, ge=0, le=1 << 32)

    model_config = ConfigDict(populate_by_name=True)

    @field_validator("mattr", mode="before")
    @classmethod
    def _features(cls, value: object) -> object:
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, (list, tuple)) and all(isinstance(feature, str) for feature in value):
            return tuple(sorted(set(value)))
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = NEEDED[self.kind]
        if any(getattr(self, name) is None for name in needed):
            told = {"kind": self.kind, "needed": " and ".join(needed).replace("_", "-")}
            raise PydanticCustomError(INCOMPLETE_TARGET, "a target of kind {kind} needs {needed}", told)
        return self

    @classmethod
    def parse(cls, value: str | dict[str, object] | Target) -> Target:
        """From JSON text or a dictionary with TVM's attribute names; raises InvalidTarget naming what is wrong."""
        if isinstance(value, Target):
            return value
        try:
            return cls.model_validate(json.loads(value) if isinstance(value, str) else value)
        except json.JSONDecodeError as error:
            raise InvalidTarget(f"the target is not JSON: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "target"
            raise InvalidTarget(f"{where}: {first['msg']}") from error

    def attributes(self) -> dict[str, object]:
        """The dictionary that `tvm.target.Target` takes; absent attributes are left out."""
        found = self.model_dump(by_alias=True, exclude_none=True, mode="json")
        return {name: value for name, value in found.items() if value != []}

    @property
    def key(self) -> str:
        """Canonical text; equal targets have equal keys."""
        return canonical_json(self.attributes()).decode()

    def __str__(self) -> str:
        return self.key


class DeviceFingerprint(Wire):
    """What is known of the physical device a worker holds."""

    kind: DeviceKind
    model: str = Field(max_length=256, description="hardware model as the vendor names it")
    cores: int = Field(ge=1, description="cores, or multiprocessors of a GPU")
    memory_bytes: int = Field(ge=0)
    caches: dict[str, int] = Field(default_factory=dict, description="cache name -> bytes")
    features: tuple[str, ...] = Field(default=(), description="instruction-set features, sorted")
    driver: str = Field(default="", max_length=256, description="kernel release, or GPU driver version")
    clock_hz: float | None = Field(default=None, description="nominal clock where readable")

    @property
    def device_class(self) -> Digest:
        """Digest of the parts that decide speed; workers of one class may share a job's measurements."""
        return json_digest([self.kind, self.model, self.cores, sorted(self.caches.items()), list(self.features)])


class Toolchain(Wire):
    """The versions that turn a trace into machine code."""

    tvm: str = Field(max_length=64)
    tvm_ffi: str = Field(max_length=64)
    codegen: str = Field(max_length=64, description="LLVM version, or CUDA toolkit version")

    @property
    def key(self) -> str:
        """One line, comparable."""
        return f"tvm {self.tvm}, ffi {self.tvm_ffi}, {self.codegen}"
