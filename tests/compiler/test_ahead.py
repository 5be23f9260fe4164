"""What a kernel reads before the launch before it has ended: weights, nothing else, and the results are the same."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler import template_cases
from tests.compiler.gpu_cases import arguments_of
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.template_cases import STEPS, Case
from tests.compiler.test_joining import norm, product
from tests.compiler.test_templates import ARGUMENTS
from tests.triton_interpreter import run
from tuner.templates import compiler
from tuner.templates.contraction import find_contraction
from tuner.templates.joined_source import write_joined
from tuner.templates.kernel_source import KernelSource, TemplateSource
from tuner.templates.kernels import source_of
from tuner.templates.row_space import row_space
from tuner.templates.rows import find_rows
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, FETCHES, ROWS, Chosen, checked, parse
from tuner.tvm_compat import IRModule

EARLY = re.compile(r"^ +(?:gdc_\w+|_fetch)\(.*\)\n|^from triton.language.extra.cuda import.*\n", re.MULTILINE)
"""What Triton's interpreter does not know, and what changes no result."""


def with_weights(mod: Any, *places: int) -> Any:
    return IRModule({"main": mod["main"].with_attr("layout_free_buffers", list(places))})


def biased(**changed: Any) -> Case:
    """With a bias (parameter 2) and a residual (3)."""
    return product(**{"rows": 128, "columns": 64, **changed})


def chosen(template: str, **changed: int) -> Chosen:
    early = 1 if template == CONTRACTION_TMA else FETCHES
    return checked(template, {**ARGUMENTS, "early": early, **changed})


def parted(kernel: KernelSource) -> tuple[str, str]:
    """What comes before the wait, and behind it."""
    before, _, behind = kernel.text.partition("    gdc_wait()\n")
    return before.partition(f"def {kernel.name}(")[2], behind


def bits(source: TemplateSource, mod: Any) -> np.ndarray:
    values = arguments_of(mod)
    values[-1].view(np.uint8)[...] = 0xFF
    kernels = tuple(replace(kernel, text=EARLY.sub("", kernel.text)) for kernel in source.kernels)
    run(replace(source, kernels=kernels), values)
    return values[-1].view(np.uint8)


@pytest.mark.long
@pytest.mark.parametrize("template", [CONTRACTION, CONTRACTION_TMA])
@pytest.mark.parametrize(
    "changed",
    [{}, {"parts": 4}, {"parts": 4, "cluster": 1}, {"columns": 128}, {"rows": 128, "columns": 128}],
    ids=["one part", "kernel", "cluster", "wide", "large"],
)
def test_a_product_reads_the_weights_that_follow_its_sums_ahead(template: str, changed: dict[str, int]) -> None:
    case = biased(rows=69, columns=256, length=128)
    mod = with_weights(template_cases.module(case), 1, 2)
    source = source_of(mod, chosen(template, **changed))
    kernel = source.kernels[-1]
    before, behind = parted(kernel)
    ahead = len(source.kernels) == 2 or not (
        changed.get("cluster") or (template == CONTRACTION_TMA and changed.get("columns"))
    )
    assert ("tl.load(p2 +" in before) == ahead
    assert ("_fetch(p2 +" in before) != ahead
    assert ("p2 +" in behind) != ahead
    assert "tl.load(p0" not in before
    assert "p3 +" not in before
    assert "p3 +" in behind
    plain = checked(template, {**ARGUMENTS, **changed})
    assert (bits(source, mod) == bits(source_of(mod, plain), mod)).all()
    for one in source.kernels:
        ptx = compiler.to_ptx(one, "sm_90a").ptx
        waited = ptx.index("griddepcontrol.wait")
        assert ("ld.global" in ptx[:waited]) == (ahead and one is kernel)


def test_a_norm_reads_its_scale_ahead() -> None:
    mod = with_weights(norm(biased()), 1, 2)
    told = {"rows": 2, "warps": 4}
    (kernel,) = source_of(mod, checked(ROWS, {**told, "early": FETCHES})).kernels
    before, behind = parted(kernel)
    assert all(f"tl.load(p{at} +" in before for at in (1, 2))
    assert "tl.load(p0" not in before
    assert "tl.load(p0" in behind
    assert "tl.load(p1" not in behind
    ptx = compiler.to_ptx(kernel, "sm_90a").ptx
    waited = ptx.index("griddepcontrol.wait")
    assert "ld.global" in ptx[:waited]
    found = [bits(source_of(mod, checked(ROWS, {**told, "early": early})), mod) for early in (0, 1, FETCHES)]
    assert all((one == found[0]).all() for one in found)
    assert "tl.load" not in parted(source_of(mod, checked(ROWS, {**told, "early": 1})).kernels[0])[0], "as it was"


def test_a_joined_norm_reads_the_product_s_bias_ahead_too() -> None:
    told = (
        checked(CONTRACTION, {**ARGUMENTS, "parts": 2, "early": 1}),
        checked(ROWS, {"rows": 2, "warps": 4, "early": 2}),
    )

    first, then = (with_weights(mod, 1, 2) for mod in (template_cases.module(biased()), norm(biased())))
    source = write_joined(find_contraction(first), told[0], find_rows(then), told[1], reads=0, keeps=False)
    before, behind = parted(source.kernels[1])
    assert all(f"tl.load(p{at} +" in before for at in (2, 6, 7))
    assert all(f"tl.load(p{at} +" not in behind for at in (2, 6, 7))
    assert "parts +" not in before
    assert "tl.load(p3 +" not in before


@pytest.mark.parametrize("template", [CONTRACTION, CONTRACTION_TMA])
@pytest.mark.parametrize("changed", [{}, {"parts": 4, "cluster": 1}])
def test_weights_as_large_as_the_result_are_not_held_while_it_is_multiplied(template: str, changed: Any) -> None:
    mod = with_weights(template_cases.module(biased()), 1, 2, 3)
    before, behind = parted(source_of(mod, chosen(template, **changed)).kernels[0])
    assert "(p3 +" not in before
    assert "p3 +" in behind
    assert "(p2 +" in before


def test_what_is_read_under_a_condition_is_not_read_ahead() -> None:
    case = biased(steps=(STEPS[0], STEPS[3]))
    mod = with_weights(template_cases.module(case), 1, 2)
    before, behind = parted(source_of(mod, chosen(CONTRACTION)).kernels[0])
    assert "tl.load(" not in before
    assert "p2 +" in behind


def test_norms_with_weights_read_ahead_where_launches_may_begin_early() -> None:
    plain, weighted = find_rows(norm(biased())), find_rows(with_weights(norm(biased()), 1, 2))
    ampere = HOPPER.model_copy(update={"arch": "sm_86"})
    for found, target, early in ((plain, HOPPER, 1), (weighted, HOPPER, FETCHES), (weighted, ampere, 0)):
        assert {parse(one.text).arguments["early"] for one in row_space(found, target)} == {early}
