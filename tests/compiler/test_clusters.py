"""Clusters whose blocks add up the parts of a sum: what they compute, and that each mistake in it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidTrace
from pitchpipe.target_kind import kind_of
from tests.compiler import template_cases
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import TEN
from tests.compiler.template_cases import STEPS, Case
from tests.compiler.test_templates import ARGUMENTS, TOLERANCE
from tests.triton_interpreter import run
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_code import compile_program
from tuner.measure.properties import inspect
from tuner.schedule.trace import apply_trace
from tuner.templates import assembler, compiler
from tuner.templates.kernels import compile_function, source_of
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, Chosen, checked, parse
from tuner.tvm_compat import load_ir, to_tvm_target

TEMPLATES = (CONTRACTION, CONTRACTION_TMA)


def case(**changed: Any) -> Case:
    """Neither rows nor columns are multiples of a tile's sides, nor rows of a block's share."""
    told = {"batch": 2, "rows": 69, "columns": 40, "length": 256, "dtype": "float16", "turned": (False, True)}
    return Case(**{**told, "steps": STEPS[:4], "relu_first": False, **changed})


def joined(template: str = CONTRACTION, **changed: int) -> Chosen:
    return checked(template, {**ARGUMENTS, "columns": 32, "parts": 4, "cluster": 1, **changed})


def off(values: list[np.ndarray]) -> float:
    """The largest error of the last one, as a share of the largest result."""
    wanted = template_cases.expected(case(), values)
    return float(np.abs(values[-1].astype(np.float64) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_cluster_adds_as_a_second_kernel_does_to_the_bit(template: str, parts: int) -> None:
    mod = template_cases.module(case())
    found = []
    for cluster in (0, 1):
        values = template_cases.arguments(case(), mod)
        source = source_of(mod, joined(template, parts=parts, cluster=cluster))
        assert len(source.kernels) == 2 - cluster
        assert source.kernels[0].cluster == (parts if cluster else 1)
        run(source, values)
        assert off(values) < TOLERANCE["float16"]
        found.append(values[-1].view(np.uint16))
    assert (found[0] == found[1]).all()


@pytest.mark.long
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("tile_row = tile_row * 4 + part", "tile_row = tile_row * 4 + (part ^ 1) // 2 * 2"),
        ("tile_row = tile_row * 4 + part", "tile_row = tile_row * 4"),
        ("static_range(4)", "static_range(3)"),
        (r"parts \+ \(each \* 2 \+ batch\)", "parts + (each * 2)"),
        (r"parts \+ \(part \* 2 \+ batch\)", "parts + ((3 - part) * 2)"),
        (r"\(each \* 2 \+ batch\) \* 2760 \+ \(row \* 40", "(each * 2 + batch) * 2760 + (row * 39"),
        (r"(?s)(    tl\.store\(parts[^\n]*\n)(    _meet\(\)\n)", r"\2\1"),
        (r"(mask=\w+ & \w+, other=0, cache_modifier)", "mask=row < 64, other=0, cache_modifier"),
    ],
    ids=["others' rows", "the same rows", "too few parts", "another batch", "stored there", "stride", "met too early", "mask"],
)  # fmt: skip
def test_mistakes_in_it_show(template: str, right: str, wrong: str) -> None:
    mod = template_cases.module(case())
    source = source_of(mod, joined(template))
    (kernel,) = source.kernels
    pattern = right if "\\" in right else re.escape(right)
    text, count = re.subn(pattern, wrong, kernel.text)
    assert count == 1
    values = template_cases.arguments(case(), mod)
    run(replace(source, kernels=(replace(kernel, text=text),)), values)
    assert not off(values) < TOLERANCE["float16"]


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_parts_that_are_no_cluster_are_refused(parts: int) -> None:
    with pytest.raises(InvalidTrace, match="no cluster"):
        source_of(load_ir(TEN["128x768x3072, residual"]().ir), joined(parts=parts))


def test_texts_from_before_are_what_they_were() -> None:
    plain = joined(cluster=0)
    assert "cluster" not in plain.text
    assert parse(plain.text) == plain
    assert parse(plain.text[:9] + '"cluster":0,' + plain.text[9:]).text == plain.text
    assert parse(joined().text) == joined()


@pytest.mark.parametrize(
    ("template", "arch"), [(CONTRACTION, "sm_90a"), (CONTRACTION, "sm_100a"), (CONTRACTION_TMA, "sm_90a")]
)
def test_it_is_one_launch_of_clusters(template: str, arch: str) -> None:
    mod = apply_trace(load_ir(TEN["128x768x3072, residual"]().ir), joined(template, step=64, early=1).text).mod
    found = compile_function(mod["main"], arch)
    (launch,) = found.launches
    assert (launch.grid, launch.cluster) == ((48, 4, 1), (1, 4, 1))
    assert found.workspaces == (4 * 128 * 768 * 4,)
    ptx = compiler.to_ptx(source_of(mod, joined(template, step=64, early=1)).kernels[0], arch).ptx
    stored, met, read = (ptx.index(one) for one in ("st.global", "barrier.cluster.arrive", "ld.global.cg"))
    assert ptx.index("griddepcontrol.wait") < stored < met < ptx.index("barrier.cluster.wait.acquire") < read


def test_a_program_has_the_clusters_of_its_launches() -> None:
    plain = load_ir(TEN["128x768x3072, residual"]().ir)
    mod = apply_trace(plain, joined(step=64, early=1).text).mod
    (launch,) = compile_program(mod, to_tvm_target(HOPPER), inspect(plain), DeviceCompiler("sm_90a")).run
    assert launch.cluster == (1, 4, 1)
    assert launch.programmatic


def test_devices_without_clusters_are_offered_none() -> None:
    workload = TEN["128x768x3072, residual"]()
    ampere = HOPPER.model_copy(update={"arch": "sm_86"})
    for target, wanted in ((ampere, {0}), (HOPPER, {0, 1})):
        points = [parse(one.text).arguments for one in kind_of(target).templates(workload, target)]
        assert {point["cluster"] for point in points} == wanted
        assert all(point["parts"] in (2, 4, 8) for point in points if point["cluster"])
    mod = apply_trace(load_ir(workload.ir), joined().text).mod
    with pytest.raises(assembler.AssemblerError, match="sm_90"):
        compile_function(mod["main"], "sm_80")


def test_the_first_points_of_a_long_sum_are_of_both_kinds() -> None:
    workload = TEN["128x768x3072, residual"]()
    first = [parse(one.text).arguments for one in kind_of(HOPPER).templates(workload, HOPPER)[:24]]
    assert {one["cluster"] for one in first if one["parts"] > 1} == {0, 1}
