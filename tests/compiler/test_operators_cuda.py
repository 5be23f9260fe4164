"""The modules of the benchmark of operators on a GPU: they compute what MetaSchedule's workloads do, and can be tuned."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.model.local import local_model
from tests.compiler.gpu_programs import HOPPER

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

sys.path.insert(0, str(BENCHMARKS))
try:
    import operator_shapes_cuda as shapes
    import task_table
    from operator_modules_cuda import CONVOLVES, channels_last, made
finally:
    sys.path.remove(str(BENCHMARKS))

SMALL: dict[str, tuple[shapes.Shape, ...]] = {
    "LIN": ((5, 24, 16, "none"), (5, 24, 16, "gelu"), (5, 24, 16, "residual")),
    "RES": ((1, 6, 6, 8, 16, 3, 2, 1),),
    "C1D": ((1, 12, 8, 16, 3, 2, 1),),
    "C2D": ((1, 7, 7, 8, 16, 3, 1, 1),),
    "C3D": ((1, 4, 6, 6, 8, 16, 3, 2, 1),),
    "GMM": ((3, 5, 7, 8),),
    "GRP": ((1, 6, 6, 16, 32, 3, 1, 1, 1, 4),),
    "DIL": ((1, 9, 9, 8, 16, 3, 1, 1, 2),),
    "DEP": ((1, 6, 6, 16, 3, 2, 1),),
    "T2D": ((1, 4, 4, 8, 16, 4, 2, 1),),
    "CAP": ((1, 6, 6, 4, 8, 3, 2, 1),),
    "NRM": ((2, 8, 16),),
    "SFM": ((8, 16),),
    "CBR": ((1, 6, 6, 8, 16, 3, 1, 1),),
    "TBG": ((2, 8, 3, 16),),
}
CASES = [(kind, shape) for kind, found in SMALL.items() for shape in found]
IDS = [f"{kind}-{at}" for kind, found in SMALL.items() for at in range(len(found))]


def convolved(
    x: Any, weight: Any, size: int, product: str, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Any:
    """A convolution over two dims by its definition. x: N x H x W x ...; weight: size x size x ...; product: of a position's
    element of each, for np.einsum."""
    extents = ((0, 0), (padding, padding), (padding, padding), *((0, 0),) * (x.ndim - 3))
    x = np.pad(x, extents)
    tall, wide = ((extent - dilation * (size - 1) - 1) // stride + 1 for extent in x.shape[1:3])
    total: Any = 0.0
    for y in range(size):
        for z in range(size):
            part = x[:, y * dilation :, z * dilation :][:, ::stride, ::stride][:, :tall, :wide]
            total = total + np.einsum(product, part, weight[y, z])
    return total


@pytest.mark.long
def test_metaschedules_shapes_come_first_and_give_results_of_the_extents_that_it_gives() -> None:
    """On a device without data. Its Winograd kind is a shape of C2D."""
    from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

    assert set(CONFIGS) - {"C2D_WIN_NHWC"} == set(shapes.SHAPES) - set(shapes.NOTES_SECS)
    for kind, (workload, listed) in CONFIGS.items():
        if kind == "C2D_WIN_NHWC":
            assert shapes.SHAPES["C2D"][-1] == (1, 14, 14, 128, 128, 3, 1, 1)
            continue
        assert shapes.SHAPES[kind][: len(listed)] == tuple(listed)
        for shape in listed:
            module, inputs = made(kind, shape, device="meta")
            assert list(module(*inputs).shape) == [int(extent) for extent in workload(*shape)[-1].shape], (kind, shape)


@pytest.mark.long
def test_every_shape_gives_a_result_in_half_precision_on_a_device_without_data() -> None:
    for name in shapes.names():
        kind, _ = shapes.kind_and_index(name)
        module, inputs = made(kind, shapes.shape_of(name), device="meta")
        result = channels_last(module)(*inputs)
        assert result.dtype == torch.float16, name
        assert result.numel(), name


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=IDS)
def test_a_small_shape_of_every_kind_is_near_its_float32_in_either_layout_of_weights(kind: str, shape: Any) -> None:
    torch.manual_seed(0)
    module, inputs = made(kind, shape)
    with torch.no_grad():
        found = module(*inputs)
        expected = copy.deepcopy(module).float()(*(x.float() for x in inputs))
        other = channels_last(copy.deepcopy(module))(*inputs)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(other.float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("kind", "shape"), CASES, ids=IDS)
def test_a_small_shape_of_every_kind_is_split_into_tasks_for_a_gpu(kind: str, shape: Any) -> None:
    tasks = task_table.tasks_of(local_model(*made(kind, shape)), HOPPER)
    assert tasks
    signatures = [task.signature for task in tasks if task.signature is not None]
    assert len(signatures) == len(tasks)
    assert any("products" in one.anchor for one in signatures) == (kind not in shapes.MOVES)


@pytest.mark.parametrize("kind", ["RES", "C2D", "CBR", "T2D", "C1D", "C3D"])
def test_images_with_channels_last_stay_where_they_are_on_a_gpu(kind: str) -> None:
    """One task, so that no transpose is measured beside a convolution."""
    (task,) = task_table.tasks_of(local_model(*made(kind, SMALL[kind][0])), HOPPER)
    assert task.weight == 1


def test_weights_of_the_peers_have_their_channels_last() -> None:
    for kind in ("C1D", "C2D", "C3D", "T2D"):
        module, _ = made(kind, SMALL[kind][0])
        (weight,) = [one.weight for one in channels_last(module).modules() if isinstance(one, CONVOLVES)]
        assert weight.stride(1) == 1, kind
        if weight.dim() == 4:
            assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_capsule_convolution_sums_products_of_matrices() -> None:
    module, (x,) = made("CAP", (2, 5, 5, 3, 6, 3, 2, 1), dtype=torch.float32)
    weight = module.weight.detach().numpy()
    expected = convolved(x.numpy(), weight, 3, "nhwikc,kjcd->nhwijd", stride=2, padding=1)
    np.testing.assert_allclose(module(x).detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_dilated_convolution_takes_images_with_channels_last() -> None:
    module, (x,) = made("DIL", (1, 9, 8, 3, 4, 3, 2, 1, 2), dtype=torch.float32)
    weight = module.inner.weight.detach().permute(2, 3, 1, 0).numpy()
    expected = convolved(x.numpy(), weight, 3, "nhwc,cd->nhwd", stride=2, padding=1, dilation=2)
    np.testing.assert_allclose(module(x).detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_products_norms_and_softmax_are_those_of_metaschedules_workloads() -> None:
    module, (x, y) = made("GMM", (3, 5, 7, 8), dtype=torch.float32)
    np.testing.assert_allclose(module(x, y).numpy(), np.einsum("bnk,bkm->bnm", x, y), rtol=1e-4, atol=1e-4)
    module, (x, y) = made("TBG", (2, 8, 3, 16), dtype=torch.float32)
    np.testing.assert_allclose(module(x, y).numpy(), np.einsum("bihd,bjhd->bhij", x, y), rtol=1e-4, atol=1e-4)
    module, (x,) = made("NRM", (2, 8, 16), dtype=torch.float32)
    np.testing.assert_allclose(module(x).numpy(), np.sqrt((x.numpy() ** 2).sum((1, 2))), rtol=1e-4)
    module, (x,) = made("SFM", (8, 16), dtype=torch.float32)
    np.testing.assert_allclose(module(x).sum(1).numpy(), np.ones(8), rtol=1e-4)
