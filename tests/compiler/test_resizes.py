"""Resized images: one axis after another, in the layout of the convolutions around, as PyTorch and ONNX Runtime have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402
from tests.compiler.graphs import GPU, Graph, check, kernels  # noqa: E402
from tests.compiler.models import model, node  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_graph import expected, ingest_here, run  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402
from tuner.deploy.finish import finish  # noqa: E402
from tuner.graph.prepare import calls, prepare  # noqa: E402
from tuner.ingest import parse_container  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.tvm_compat import load_ir, relax  # noqa: E402

op = relax.op
interpolate = torch.nn.functional.interpolate
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

SIZES: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"size": (5, 34)},
    {"size": (1, 1)},
)
MODES: tuple[dict[str, Any], ...] = (
    *({"mode": mode, "align_corners": align} for mode in ("bilinear", "bicubic") for align in (True, False)),
    *({"mode": mode, "align_corners": False, "antialias": True} for mode in ("bilinear", "bicubic")),
    {"mode": "nearest"},
    {"mode": "nearest-exact"},
)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_resize_is_pytorchs_alone_and_between_convolutions(mode: dict[str, Any]) -> None:
    torch.manual_seed(0)
    before, after = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 3, 3)

    def resized(x: Any) -> list[Any]:
        alone = [interpolate(x, **size, **mode) for size in SIZES]
        return [*alone, *(after(interpolate(before(x), **size, **mode)) for size in SIZES[:-1])]

    module = Of(resized, torch.randn(2, 3, 13, 17))
    module.before, module.after = before, after
    with torch.no_grad():
        wanted = module(*module.tensors)
    for found, one in zip(through_load(module.eval(), TARGET), wanted, strict=True):
        np.testing.assert_allclose(found, one.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "steps"), [(TARGET, ["resize", "resize"]), (GPU, ["resize_resize"])], ids=["cpu", "gpu"]
)
@pytest.mark.parametrize("method", ["linear", "cubic", "nearest_neighbor"])
def test_a_resize_between_convolutions_moves_no_channels(method: str, target: Any, steps: list[str]) -> None:
    graph = Graph()
    x, v, w = graph.tensor(1, 4, 6, 5), graph.tensor(8, 4, 3, 3), graph.tensor(4, 8, 3, 3)
    ways = {"coordinate_transformation_mode": "half_pixel", "cubic_alpha": -0.75, "rounding_method": "floor"}
    if method == "nearest_neighbor":
        ways["coordinate_transformation_mode"] = "asymmetric"

    def make(emit: Any) -> Any:
        y = emit(op.image.resize2d(emit(op.nn.conv2d(x, v)), relax.ShapeExpr([8, 9]), method=method, **ways))
        return emit(op.nn.conv2d(y, w))

    prepared = check(graph, make, target=target) if target is TARGET else prepare(graph.module(make, 1), target)
    assert [name for name in kernels(prepared) if "transpose" not in name] == ["conv2d", "conv2d", *steps]
    assert kernels(prepared).count("transpose") <= 2  # of the image and of the result


@pytest.mark.parametrize(
    ("size", "ways"),
    [
        ([26, 34], {"mode": "linear"}),
        ([5, 40], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ([1, 9], {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
        ([20, 9], {"mode": "cubic"}),
        ([20, 9], {"mode": "cubic", "cubic_coeff_a": -0.5}),
        ([20, 9], {"mode": "cubic", "exclude_outside": 1}),
        ([30, 31], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ],
    ids=str,
)
def test_a_resize_of_an_onnx_file_is_onnx_runtimes(size: list[int], ways: dict[str, Any]) -> None:
    resize = node("Resize", ["x", "", "", "size"], ["y"], **ways)
    proto = model([resize], {"x": [1, 3, 13, 17]}, ["y"], {"size": np.array([1, 3, *size], np.int64)})
    ingested, weights = ingest_here(proto)
    x = np.random.default_rng(0).normal(size=(1, 3, 13, 17)).astype(np.float32)
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [x])
    np.testing.assert_allclose(found, expected(proto, [x])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_captured_resize_stays_an_operator_and_torch_gets_its_own_programs_back(dynamic: bool) -> None:
    from torch._dynamo.backends.common import aot_autograd

    from pitchpipe.torch_backend.decompositions import whole_operators
    from pitchpipe.torch_operators.decompositions import RESIZES, inference_decompositions

    operators: list[str] = []

    def note(graph: Any, _examples: Any) -> Any:
        operators.extend(str(each.target) for each in graph.graph.nodes if each.op == "call_function")
        return graph

    def resized(x: Any) -> Any:
        grown = interpolate(x, scale_factor=2, mode="bilinear") + interpolate(x, scale_factor=2, mode="bicubic")
        return interpolate(grown, size=x.shape[2:])

    before = {each: dict(each.py_kernels) for each in RESIZES}
    capture = aot_autograd(fw_compiler=note, decompositions=inference_decompositions())
    with torch.no_grad(), whole_operators():
        torch.compile(resized, backend=capture, dynamic=dynamic)(torch.randn(1, 2, 5, 6))
    assert {name for name in operators if "upsample" in name} == {
        "aten.upsample_bilinear2d.default",
        "aten.upsample_bicubic2d.default",
        "aten.upsample_nearest2d.default",
    }
    assert not any("index" in name for name in operators)
    assert {each: dict(each.py_kernels) for each in RESIZES} == before


def test_weights_are_as_exact_as_the_image() -> None:
    x = torch.randn(1, 2, 4, 5, 6, dtype=torch.float64)
    sizes = (11, 7, 13)
    module = Of(lambda x: [interpolate(x, sizes, mode="trilinear"), interpolate(x[0, 0], 9, mode="linear")], x)
    for found, wanted in zip(through_load(module.eval(), TARGET), module(x), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_pixel_that_joins_a_pyramid_stays_channels_last(mode: str) -> None:
    torch.manual_seed(0)
    first, pooled, last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1), torch.nn.Conv2d(16, 4, 1)

    def pyramid(x: Any) -> Any:
        y = first(x)
        average = torch.relu(pooled(y.mean((2, 3), keepdim=True)))
        return last(torch.cat([y, interpolate(average, size=y.shape[-2:], mode=mode)], 1))

    module = Of(pyramid, torch.randn(2, 3, 9, 11))
    module.layers = torch.nn.ModuleList([first, pooled, last])
    with torch.no_grad():
        wanted = module(*module.tensors)
    found = through_load(module.eval(), TARGET)
    np.testing.assert_allclose(
        found[0] if isinstance(found, tuple | list) else found, wanted.numpy(), rtol=1e-4, atol=1e-5
    )
    data, _ = from_torch(module, module.tensors)
    prepared = prepare(load_ir(parse_container(data).ir), TARGET)
    assert not [name for name in calls(prepared) if "transpose" in name and "concat" in name]
