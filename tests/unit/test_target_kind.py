"""The interface of target kinds, over every kind that is registered, and what holds of their union."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pitchpipe.embedded import sharing_workers
from pitchpipe.errors import InvalidTarget, MeasurementFailed
from pitchpipe.target_kind import (
    HOST,
    TargetKind,
    describe,
    fit,
    hold_device,
    kind_named,
    kind_of,
    kind_of_device,
    kinds,
    named_device,
    ordinal_named,
)
from pitchpipe.wire.target import NEEDED, Target
from tests.scene import OTHER_TARGET, TARGET

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {target.kind: target for target in (TARGET, OTHER_TARGET)}


def test_every_kind_that_the_wire_knows_is_registered_and_the_host_comes_last() -> None:
    assert sorted(kind.name for kind in kinds()) == sorted(NEEDED) == sorted(TARGETS)
    assert kinds()[-1].name == HOST
    assert len({kind.device for kind in kinds()}) == len(kinds())


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
class TestEveryKind:
    def test_it_is_found_by_its_name_its_targets_and_its_devices(self, kind: TargetKind) -> None:
        assert kind_named(kind.name) is kind_of(TARGETS[kind.name]) is kind_of_device(kind.device) is kind

    def test_its_targets_fit_themselves_and_those_of_no_other_kind(self, kind: TargetKind) -> None:
        mine = TARGETS[kind.name]
        assert fit(mine, mine).fits
        for other in TARGETS.values():
            if other.kind != kind.name:
                told = fit(mine, other)
                assert not told.fits
                assert kind.title in told.reason

    def test_it_describes_its_targets_in_a_few_words(self, kind: TargetKind) -> None:
        assert 0 < len(describe(TARGETS[kind.name])) < 60

    def test_a_target_that_lacks_what_the_kind_needs_is_refused(self, kind: TargetKind) -> None:
        with pytest.raises(InvalidTarget, match=NEEDED[kind.name][0].replace("_", "-")):
            Target.parse({"kind": kind.name})


def test_a_kind_or_a_device_that_nobody_registered_is_named() -> None:
    with pytest.raises(InvalidTarget, match=r"'hexagon' is none of cuda, llvm"):
        kind_named("hexagon")
    with pytest.raises(InvalidTarget, match="'meta'"):
        kind_of_device("meta")


def test_a_device_is_named_by_its_kind_or_as_pytorch_does_and_perhaps_by_a_number() -> None:
    found = {text: named_device(text) for text in ("cpu", "llvm", "cuda", "cuda:1")}
    assert {text: (kind.name, ordinal) for text, (kind, ordinal) in found.items()} == {
        "cpu": ("llvm", 0),
        "llvm": ("llvm", 0),
        "cuda": ("cuda", 0),
        "cuda:1": ("cuda", 1),
    }


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:²", "cuda:1000", ""])
def test_what_names_no_device_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(InvalidTarget, match=r"auto, cpu, cuda, llvm, .*JSON"):
        named_device(text)


def test_what_names_no_single_device_is_held_as_it_is() -> None:
    assert [hold_device(text) for text in ("auto", "cpu", '{"kind": "cuda"}')] == ["auto", "llvm", '{"kind": "cuda"}']
    with pytest.raises(MeasurementFailed, match="no CPU 1"):
        hold_device("cpu:1")


def sources() -> Iterator[Path]:
    for package in ("pitchpipe", "service", "tuner", "workers"):
        yield from (ROOT / package).rglob("*.py")


def test_kinds_are_told_apart_nowhere_else() -> None:
    asks = re.compile(
        r"""(==|!=|\bin\b|\bis\b|\bcase\b) *\(?["'](llvm|cuda|cpu)["']|["'](llvm|cuda|cpu)["'] *(==|!=|:|if\b)"""
    )
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources()
        if not path.is_relative_to(ROOT / "tuner" / "target_kinds")
        for line in path.read_text().splitlines()
        if asks.search(line)
    }
    allowed = {
        # What the wire needs of each kind to accept a target: the service parses without any implementation.
        "pitchpipe/wire/target.py",
        # Kernels among the functions of a lowered module, in the code generator for CUDA.
        "tuner/measure/gpu_code.py",
    }
    assert {line.partition(":")[0] for line in found} <= allowed, found


@pytest.mark.parametrize(
    ("target", "ordinal"),
    [("auto", None), ("cuda", None), (TARGET, None), (TARGET.key, None), ("cuda:0", 0), ("cuda:3", 3)],
)
def test_a_device_is_named_with_a_number_or_any_will_do(target: Target | str, ordinal: int | None) -> None:
    assert ordinal_named(target) == ordinal


def test_a_number_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidTarget, match="tpu:1"):
        ordinal_named("tpu:1")


def test_a_gpu_gets_several_workers_where_there_are_cores_for_their_builds_and_a_cpu_one() -> None:
    gpu, cpu = TARGETS["cuda"], TARGETS["llvm"]
    assert [sharing_workers(gpu, cores) for cores in (1, 2, 4, 8, 16, 64)] == [1, 1, 1, 2, 4, 4]
    assert sharing_workers(cpu, 64) == 1
