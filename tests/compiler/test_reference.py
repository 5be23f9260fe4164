"""Every kind of model is run by the framework that it came from, and its default build agrees with it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from pitchpipe.model.comparison import Agreement
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.model.reference import CannotRun, FileSource
from pitchpipe.model.reference.onnx_runner import OnnxRunner, index_ranges, output_steps
from pitchpipe.wire.job import ModelFormat
from tests.compiler import models
from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tuner.deploy.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("unoptimised")


def compared(model: LocalModel, folder: Path) -> tuple[Any, Agreement]:
    """The framework's outputs, and how the default build agrees with them."""
    expected = model.source.expected({})
    expected.write(folder / "expected.npz")
    answer = evaluate(
        model.data,
        model.weights,
        model_format=model.format.value,
        target=TARGET.key,
        traces=None,
        seed=0,
        expected=str(folder / "expected.npz"),
        defaults=str(folder / "defaults"),
    )
    return expected, Agreement(**answer["agreement"])


@pytest.fixture
def without_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For children."""
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('hidden', name='onnxruntime')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.long
def test_an_onnx_file_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(models.small_network().SerializeToString())
    expected, found = compared(local_model(path), tmp_path)
    assert expected.reference.startswith("ONNX Runtime 1.")
    assert len(expected.inputs) == 3
    assert (found.difference, found.tolerance) == (None, 1e-3)


@pytest.mark.long
def test_without_onnx_runtime_it_agrees_with_the_reference_of_onnx(tmp_path: Path, without_onnx_runtime: None) -> None:
    expected, found = compared(local_model(models.small_network().SerializeToString()), tmp_path)
    assert expected.reference == f"onnx.reference {onnx.__version__}"
    assert found.difference is None


def embedding() -> Any:
    table = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)
    nodes = [
        node("Unsqueeze", ["ids", "axis"], ["rows"]),
        node("Gather", ["table", "rows"], ["found"]),
        node("Cast", ["mask"], ["kept"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["found", "kept"], ["y"]),
    ]
    made = model(nodes, {"ids": [6], "mask": [6, 1, 1]}, ["y"], {"table": table, "axis": np.array([1])})
    for value in made.graph.input:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT64
    return made


def test_whole_numbers_that_index_are_drawn_from_the_extent_and_masks_from_zero_and_one(tmp_path: Path) -> None:
    made = embedding()
    assert index_ranges(made) == {"ids": 499}
    expected, found = compared(local_model(made.SerializeToString()), tmp_path)
    for ids, mask in expected.inputs:
        assert 0 <= ids.min() <= ids.max() <= 499
        assert set(mask.flat) <= {0, 1}
    assert max(ids.max() for ids, _ in expected.inputs) > 1
    assert found.difference is None


def test_an_onnx_file_without_its_weights_is_run_with_drawn_ones(tmp_path: Path) -> None:
    stripped = local_model(models.small_network().SerializeToString()).data
    expected, found = compared(local_model(stripped), tmp_path)
    assert expected.weights
    assert found.difference is None


def test_a_file_that_no_framework_takes_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "broken.tflite").write_bytes(b"TFL3 no more")
    source = FileSource(origin=tmp_path / "broken.tflite", format=ModelFormat.TFLITE)
    with pytest.raises(CannotRun, match="framework"):
        source.expected({})
    with pytest.raises(CannotRun, match="cannot be read"):
        replace(source, origin=tmp_path / "absent.tflite").expected({})


def test_a_tflite_file_agrees_with_its_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    from tests.compiler.test_tflite import network

    (tmp_path / "net.tflite").write_bytes(network())
    expected, found = compared(local_model(tmp_path / "net.tflite"), tmp_path)
    assert expected.reference.startswith("LiteRT 2.")
    assert found.difference is None


class TestJax:
    def function(self) -> tuple[Any, tuple[Any, ...]]:
        jax = pytest.importorskip("jax")
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((8, 4)).astype(np.float32)

        @jax.jit
        def forward(x: Any, scale: Any) -> Any:
            hidden = jax.nn.softmax(x @ weight * scale["s"])
            return {"y": hidden, "large": hidden > 0.3}

        return forward, (rng.standard_normal((3, 8)).astype(np.float32), {"s": np.float32(2)})

    @pytest.mark.parametrize("suffix", ["mlir", "stablehlo"])
    def test_a_file_agrees_with_what_xla_makes_of_it(self, suffix: str, tmp_path: Path) -> None:
        function, inputs = self.function()
        import jax.export

        exported = jax.export.export(function)(*inputs)
        data = function.lower(*inputs).as_text().encode() if suffix == "mlir" else exported.mlir_module_serialized
        (tmp_path / f"net.{suffix}").write_bytes(data)
        expected, found = compared(local_model(tmp_path / f"net.{suffix}"), tmp_path)
        assert expected.reference.startswith("JAX ")
        assert found.difference is None

    def test_a_function_agrees_with_itself_exported_or_not(self, tmp_path: Path) -> None:
        function, inputs = self.function()
        import jax.export

        for each, examples in ((function, inputs), (jax.export.export(function)(*inputs), None)):
            expected, found = compared(local_model(each, examples), tmp_path)
            assert expected.reference.startswith("JAX ")
            assert len(expected.outputs[0]) == 2
            assert found.difference is None


class TestTorch:
    torch: Any = None

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def made(self, forward: Callable[..., Any]) -> Any:
        torch = self.torch

        class Made(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.layer = torch.nn.Linear(8, 4)

            def forward(self, *inputs: Any) -> Any:
                return forward(self, *inputs)

        return Made().eval()

    def test_values_that_are_not_numbers_agree_where_both_have_them(self, tmp_path: Path) -> None:
        module = self.made(lambda self, x: self.layer(x).log())
        expected, found = compared(local_model(module, (self.torch.randn(5, 8),)), tmp_path)
        assert any(np.isnan(outputs[0]).any() for outputs in expected.outputs)
        assert found.difference is None

    def test_whole_numbers_and_nested_results_agree(self, tmp_path: Path) -> None:
        module = self.made(lambda self, x: {"best": self.layer(x).argmax(-1), "both": (x > 0, [self.layer(x)])})
        expected, found = compared(local_model(module, (self.torch.randn(5, 8),)), tmp_path)
        assert [str(one.dtype) for one in expected.outputs[0]] == ["int64", "bool", "float32"]
        assert found.difference is None

    def test_bfloat16_agrees_within_its_own_tolerance(self, tmp_path: Path) -> None:
        module = self.made(lambda self, x: (x * x + x).relu())
        model = local_model(module, (self.torch.randn(5, 8, dtype=self.torch.bfloat16),))
        expected, found = compared(model, tmp_path)
        assert str(expected.outputs[0][0].dtype) == "bfloat16"
        assert (found.difference, found.tolerance) == (None, 6e-2)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_float32_results_of_a_model_under_autocast_may_be_off_as_half_precision_is(
        self, tmp_path: Path, dtype: str
    ) -> None:
        torch = self.torch

        def forward(self: Any, x: Any) -> Any:
            with torch.autocast("cpu", dtype=getattr(torch, dtype)):
                return self.layer(x).float() * 3

        expected, found = compared(local_model(self.made(forward), (torch.randn(5, 8),)), tmp_path)
        assert str(expected.outputs[0][0].dtype) == "float32"
        assert expected.computed == dtype
        assert (found.difference, found.tolerance) == (None, {"float16": 2e-2, "bfloat16": 6e-2}[dtype])

    def test_tokens_whose_rounding_a_network_of_half_precision_magnifies_may_be_as_far_off(
        self, tmp_path: Path
    ) -> None:
        torch = self.torch

        def forward(self: Any, x: Any) -> Any:
            for _ in range(6):
                x = (3 * self.layer(x)).sin().repeat(1, 2)
            return x

        module = self.made(forward)
        tokens = torch.nn.Sequential(torch.nn.Embedding(50, 8), module).half().eval()
        expected, found = compared(local_model(tokens, (torch.arange(50),)), tmp_path)
        assert 0.02 < expected.magnified < 0.5
        assert found.difference is None

    def test_what_half_precision_changes_is_told_by_the_same_operators_in_float32(self) -> None:
        from pitchpipe.model.reference.torch_runner import TorchRunner

        torch = self.torch

        class Cached(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.lines, self.norm = torch.nn.Conv1d(8, 8, 3, padding=1), torch.nn.LayerNorm(16)
                self.register_buffer("cache", torch.zeros(1, 16, 16))

            def forward(self, x: Any) -> Any:
                self.cache[:, 4:12] = self.norm(self.lines(x).to(self.lines.weight.dtype))
                return self.cache.softmax(-1) + torch.full((1, 1, 16), 0.1, dtype=self.cache.dtype)

        torch.manual_seed(0)
        module, x = Cached().eval(), torch.randn(1, 8, 16)
        half = TorchRunner(copy.deepcopy(module).half(), (x.half(),))
        assert half.widened is None, "it has not run"
        narrow = half([x.half().numpy()])[0]
        assert half.widened is not None
        wide = half.widened([x.half().numpy()])[0]
        rounded = copy.deepcopy(module).half().float()
        assert (narrow.dtype, wide.dtype) == (np.float16, np.float32)
        np.testing.assert_allclose(wide, rounded(x.half().float()).detach().numpy(), rtol=2e-3)
        assert TorchRunner(module, (x,)).widened is None

    def test_a_wrong_import_is_told(self, tmp_path: Path) -> None:
        model = local_model(self.made(lambda self, x: self.layer(x).relu()), (self.torch.randn(5, 8),))
        wrong = replace(model, data=model.data.replace(b"relax.nn.relu", b"relax.tanh"))
        _, found = compared(wrong, tmp_path)
        assert found.differs_at == 0
        assert "output 0" in str(found.difference)

    def test_a_module_that_draws_is_not_compared(self) -> None:
        torch = self.torch
        module = self.made(lambda self, x: self.layer(x).relu())
        source = local_model(module, (torch.randn(5, 8),)).source
        module.forward = lambda x: x + torch.rand_like(x)
        with pytest.raises(CannotRun, match="rounding alone"):
            replace(source, origin=module).expected({})

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
    @pytest.mark.parametrize("suffix", ["pt2", "pt"])
    def test_a_file_agrees_with_pytorch(self, suffix: str, tmp_path: Path) -> None:
        torch, x = self.torch, self.torch.randn(5, 8)
        module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
        path = tmp_path / f"net.{suffix}"
        if suffix == "pt2":
            torch.export.save(torch.export.export(module, (x,)), path)
        else:
            torch.jit.save(torch.jit.trace(module, (x,)), path)
        model = local_model(path, (x,) if suffix == "pt" else None, trust=True)
        expected, found = compared(model, tmp_path)
        assert expected.reference == f"PyTorch {torch.__version__}"
        assert found.difference is None


def test_what_tells_no_framework_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_bytes(b"{}")
    with pytest.raises(CannotRun, match="tells no framework"):
        local_model(tmp_path / "net.json").source.expected({})


def test_the_package_imports_no_framework() -> None:
    code = (
        "import pitchpipe.model.reference, pitchpipe.deploy.evidence, pitchpipe.deploy.verify, sys; print(*sys.modules)"
    )
    import subprocess

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "tvm", "jax", "onnx", "onnxruntime", "numpy"}.isdisjoint(loaded)


@pytest.mark.long
def test_quantised_outputs_may_be_one_step_off(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("tflite")
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from frontends.tflite_files import FILES, STEPS
    finally:
        sys.path.pop(0)
    for name in ("int8 element by element", *STEPS):
        path = tmp_path / "quantised.tflite"
        path.write_bytes(FILES[name]())
        expected, found = compared(local_model(path), tmp_path)
        assert found.difference is None, name
        assert max(expected.steps) > 0, name


def test_an_output_of_an_onnx_file_that_lies_on_a_grid_may_be_one_step_off() -> None:
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["whole"]),
        node("DequantizeLinear", ["whole", "scale", "zero"], ["real"]),
        node("Reshape", ["real", "shape"], ["flat"]),
        node("Relu", ["real"], ["other"]),
    ]
    constants = {"scale": np.float32(0.25), "zero": np.uint8(3), "shape": np.array([6])}
    assert output_steps(model(nodes, {"x": [2, 3]}, ["whole", "flat", "other"], constants)) == (1.0, 0.25, 0.0)


def test_inputs_on_which_onnx_runtime_loses_numbers_do_not_count(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    proto = model([node("Sigmoid", ["x"], ["s"]), node("Log", ["s"], ["y"])], {"x": [8]}, ["y"])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    runner = OnnxRunner(path, {})
    assert len(runner([np.linspace(-9, 9, 8, dtype=np.float32)])) == 1
    with pytest.raises(ArithmeticError, match="no finite number"):
        runner([np.linspace(-30, 9, 8, dtype=np.float32)])


def test_products_of_bytes_do_not_saturate(tmp_path: Path) -> None:
    """On processors with AVX2 and without VNNI, ONNX Runtime's own defaults add two of them in 16 bits."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("MatMulInteger", ["q", "w", "zero"], ["total"]),
        node("Cast", ["total"], ["real"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["real", "scale"], ["y"]),
    ]
    weights = np.random.default_rng(0).integers(-128, 128, (40, 40)).astype(np.int8)
    proto = model(nodes, {"x": [3, 40]}, ["y"], {"w": weights})
    path = tmp_path / "quantised.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.random.default_rng(1).normal(size=(3, 40)).astype(np.float32)
    (wanted,) = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})
    (found,) = OnnxRunner(path, {})([x])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("runtime", [True, False], ids=["ONNX Runtime", "onnx.reference"])
def test_a_network_that_is_quantised_between_its_layers_is_compared_by_what_rounding_makes_of_it(
    runtime: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its inputs are whole numbers, which nobody rounds; six layers later single bytes are a step off, and all behind them."""
    if runtime:
        pytest.importorskip("onnxruntime")
    else:
        request.getfixturevalue("without_onnx_runtime")
    rng = np.random.default_rng(0)
    nodes, weights = [node("Gather", ["table", "x"], ["y0"])], {"table": rng.normal(0, 1, (50, 256)).astype(np.float32)}
    for at in range(6):
        weights[f"w{at}"] = rng.integers(-128, 128, (256, 256)).astype(np.int8)
        nodes += [
            node("DynamicQuantizeLinear", [f"y{at}"], [f"q{at}", f"s{at}", f"z{at}"]),
            node("MatMulInteger", [f"q{at}", f"w{at}", f"z{at}"], [f"t{at}"]),
            node("Cast", [f"t{at}"], [f"r{at}"], to=onnx.TensorProto.FLOAT),
            node("Mul", [f"r{at}", f"s{at}"], [f"m{at}"]),
            node("LayerNormalization", [f"m{at}", "gain", "shift"], [f"n{at}"], axis=-1),
            node("Tanh", [f"n{at}"], [f"y{at + 1}"]),
        ]
    weights |= {"gain": np.ones(256, np.float32), "shift": rng.normal(0, 1, 256).astype(np.float32)}
    path = tmp_path / "quantised.onnx"
    path.write_bytes(
        model(nodes, {"x": [96]}, ["y6"], weights, types={"x": onnx.TensorProto.INT64}).SerializeToString()
    )
    expected, found = compared(local_model(path), tmp_path)
    assert expected.reference.startswith("ONNX Runtime" if runtime else "onnx.reference")
    assert 1e-3 < expected.magnified < 0.6
    assert (found.difference, found.tolerance) == (None, expected.magnified)
