"""Norms of groups in three kernels compute what eager does, and are made where one kernel would waste what memory delivers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.gpu_programs import HOPPER
from tests.compiler.test_gpu_default import trace_of
from tests.compiler.test_gpu_models import checked
from tests.gpu_interpreter import run
from tuner.graph import split_norms
from tuner.graph.prepare import call_counts, workload_module
from tuner.schedule.trace import apply_trace
from tuner.tasks import workload_functions

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small norms are split, too."""
    monkeypatch.setattr(split_norms, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(split_norms, "LEAST_PIXELS", 4)


def normed(channels: int, groups: int, height: int, width: int, *, mean: float = 0, images: int = 2) -> Any:
    """A norm between two convolutions, so that channels come last, and an image of elements around a mean."""
    norm = nn.GroupNorm(groups, channels)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    first, last = nn.Conv2d(8, channels, 1), nn.Conv2d(channels, 8, 1)
    first.bias.data += mean
    module = nn.Sequential(first, norm, nn.SiLU(), last)
    return module.half(), (torch.randn(images, 8, height, width).half(),)


def norms(prepared: Any) -> list[str]:
    """The names of the functions that belong to the norm."""
    return sorted(name.rstrip("0123456789") for name in call_counts(prepared) if "norm" in name)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (64, 8), (48, 6), (30, 3), (16, 16)])
def test_a_norm_of_groups_in_parts_is_eagers(channels: int, groups: int) -> None:
    prepared = checked(lambda: normed(channels, groups, 6, 10))
    assert [name.rpartition("norm_")[2] for name in norms(prepared)] == [
        "tir_sigmoid_multiply_cast",
        "parts",
        "statistics",
    ]


@pytest.mark.usefixtures("small")
def test_elements_around_a_large_mean_keep_their_variance() -> None:
    checked(lambda: normed(64, 32, 6, 10, mean=300))


def test_parts_are_as_small_as_is_worth_a_block() -> None:
    assert split_norms.part_of(8, 64 * 64, 64) == 64
    assert split_norms.part_of(8, 61 * 67, 64) == 67
    assert split_norms.part_of(1, 512 * 512, 320) == 512 * 512 // 64
    assert split_norms.part_of(600, 64, 64) == 64


def test_small_norms_wide_groups_and_single_precision_are_one_kernel() -> None:
    whole = ["group_norm_astype_sigmoid_multiply_astype"]
    assert norms(checked(lambda: normed(64, 32, 6, 10))) == whole
    assert norms(checked(lambda: normed(64, 4, 96, 96))) == whole
    module, inputs = normed(64, 32, 96, 96)
    single = checked(lambda: (module.float(), tuple(each.float() for each in inputs)))
    assert len(norms(single)) == 1


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore")
def test_default_schedules_are_one_kernel_each_and_right() -> None:
    prepared = checked(lambda: normed(64, 32, 6, 10))
    (function,) = [each for name, each, _ in workload_functions(prepared) if "norm_parts" in name.name_hint]
    mod = workload_module(function)
    x = np.random.default_rng(0).normal(3, 1, (2, 15, 4, 64)).astype(np.float16)
    found = np.zeros((2, 15, 2, 64), np.float32)
    lowered = run(apply_trace(mod, trace_of(mod, HOPPER)).mod, HOPPER, [x, found])
    assert len(lowered.calls) == 1
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found[:, :, 0], wide.mean(2), rtol=1e-6)
    np.testing.assert_allclose(found[:, :, 1], wide.var(2) * 4, rtol=1e-5)
