"""Grouped convolutions on a GPU: batches of products, by every template and by the default schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler import gpu_cases
from tests.compiler.gpu_cases import arguments_of, functions, on_the_host, one_function
from tests.compiler.graphs import GPU
from tests.triton_interpreter import run
from tuner.graph.batch_groups import batch_groups
from tuner.graph.prepare import prepare, workload_module
from tuner.ingest import parse_container
from tuner.tasks import workload_functions
from tuner.templates.contraction import find_contraction
from tuner.templates.kernels import source_of
from tuner.templates.space import contraction_space
from tuner.templates.text import checked, parse
from tuner.tvm_compat import IRModule, load_ir, relax, te

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

op = relax.op


class Residual(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.activation = nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.PReLU(32)

    def forward(self, x: Any) -> Any:
        return self.activation(self.convolution(x)) + x


MODULES = {
    "after another": (nn.Sequential(nn.Conv2d(16, 64, 1), nn.Conv2d(64, 96, 3, groups=4), nn.ReLU()), (1, 16, 9, 10)),
    "a stride, a dilation, no bias": (nn.Conv2d(64, 96, 3, 2, dilation=2, groups=2, bias=False), (2, 64, 15, 14)),
    "a residual": (Residual(), (2, 32, 7, 6)),
    "a signal": (nn.Conv1d(64, 64, 9, padding=4, groups=4), (1, 64, 50)),
    "a volume": (nn.Conv3d(32, 32, 3, padding=1, groups=2), (1, 32, 4, 6, 5)),
    "narrow groups": (nn.Conv2d(64, 64, 3, padding=1, groups=16), (1, 64, 9, 10)),
    "several columns of a channel": (nn.Conv2d(16, 64, 3, padding=1, groups=16), (1, 16, 9, 10)),
    "transposed": (nn.ConvTranspose2d(32, 64, 4, 2, 1, groups=2), (1, 32, 4, 5)),
    "shuffled": (nn.Sequential(nn.Conv2d(32, 64, 1, groups=2), nn.ChannelShuffle(2), nn.ReLU()), (1, 32, 8, 7)),
}


def workloads(name: str, dtype: Any) -> list[Any]:
    module, shape = MODULES[name]
    data, _ = from_torch(module.to(dtype).eval(), (torch.randn(shape).to(dtype),))
    prepared = prepare(load_ir(parse_container(data).ir), GPU)
    return [workload_module(function) for _, function, _ in workload_functions(prepared)]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["half", "single"])
@pytest.mark.parametrize("name", MODULES)
def test_default_schedules_compute_what_the_host_does(name: str, dtype: Any) -> None:
    for mod in workloads(name, dtype):
        gpu_cases.check(mod, GPU)


@pytest.mark.parametrize(
    ("name", "extents"),
    [
        ("after another", (4, 7 * 8, 24, 144)),
        ("a stride, a dilation, no bias", (2, 2 * 6 * 5, 48, 288)),
        ("a residual", (4, 2 * 7 * 6, 8, 72)),
        ("a signal", (4, 50, 16, 144)),
        ("a volume", (2, 4 * 6 * 5, 16, 432)),
        ("narrow groups", (16, 90, 4, 36)),
    ],
)
def test_templates_take_groups_for_a_batch(name: str, extents: tuple[int, ...]) -> None:
    found = []
    for mod in workloads(name, torch.float16):
        if "T.init" in mod.script():
            found.append(find_contraction(mod))
    assert extents in [tuple(one.extent(kind) for kind in "sijk") for one in found]


@pytest.mark.long
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(32, 48, 2), (64, 32, 4), (16, 64, 2)])
def test_templates_compute_what_the_host_does(channels: int, outputs: int, groups: int) -> None:
    def make(b: Any, x: Any, w: Any, bias: Any) -> Any:
        y = b.emit(op.nn.conv2d(
            x, w, padding=1, groups=groups, data_layout="NHWC", kernel_layout="HWIO", out_dtype="float32",
        ))  # fmt: skip
        return op.astype(op.nn.relu(b.emit(op.add(y, bias))), "float16")

    shapes = ((1, 9, 7, channels), (3, 3, channels // groups, outputs))
    (grouped,) = functions(make, *((shape, "float16") for shape in shapes), ((outputs,), "float32"))
    mod = batch_groups(grouped)
    found = find_contraction(mod)
    assert [found.extent(kind) for kind in "sijk"] == [groups, 63, outputs // groups, 9 * channels // groups]
    points = contraction_space(found, GPU)
    *_, wanted = on_the_host(grouped, arguments_of(grouped))
    for at in np.random.default_rng(0).choice(len(points), size=6, replace=False):
        chosen = parse(points[int(at)].text)
        arguments = arguments_of(mod)
        arguments[-1][...] = np.nan
        without_waits = checked(chosen.template, {**chosen.arguments, "early": 0})  # the interpreter knows none
        run(source_of(mod, without_waits), arguments)
        atol = 4e-3 * max(1e-3, float(np.abs(wanted).max()))
        np.testing.assert_allclose(arguments[-1], wanted, atol=atol, err_msg=chosen.text)


def test_what_has_no_groups_stays_as_it_is() -> None:
    def dense(b: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")

    def depthwise(b: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, groups=8, data_layout="NHWC", kernel_layout="HWIO")

    for make, weights in ((dense, (3, 3, 8, 16)), (depthwise, (3, 3, 1, 8))):
        (mod,) = functions(make, ((1, 9, 9, 8), "float32"), (weights, "float32"))
        before = mod["main"]
        assert batch_groups(IRModule({"main": before}))["main"].same_as(before)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_stage_that_reads_by_quotients_is_kept_from_padding(dtype: str) -> None:
    """24 columns of each of four products side by side, which tiles of 32 pad."""

    def make(x: Any, w: Any) -> list[Any]:
        k = te.reduce_axis((0, 40), "k")
        sums = te.compute(
            (4, 80, 24), lambda s, i, j: te.sum((x[s, i, k] * w[s, k, j]).astype("float32"), axis=k), name="sums"
        )
        return [te.compute((80, 96), lambda i, c: sums[c // 24, i, c % 24].astype(dtype), name="beside")]

    gpu_cases.check(one_function(make, ((4, 80, 40), dtype), ((4, 40, 24), dtype)), GPU)


class Opaque(nn.Module):  # type: ignore[misc]
    """Operators of which the compiler makes tensor functions without a block around all others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.layer(x)
        values, places = y.topk(3, 1)
        y = y.scatter_add(1, places, values).sort(1).values.cumsum(1)
        return torch.linalg.inv(y @ y.mT + torch.eye(6))


def test_functions_that_are_no_blocks_stay() -> None:
    with torch.no_grad():
        data, _ = from_torch(Opaque().eval(), (torch.randn(2, 6, 8),))
    prepared = prepare(load_ir(parse_container(data).ir), GPU)
    assert any("lu_factor" in variable.name_hint for variable in prepared.functions)
