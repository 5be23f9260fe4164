"""`pitchpipe models check`: everything that would be refused, by operator and node, and nothing of what is taken."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pitchpipe.errors import InvalidModel
from pitchpipe.wire.finding import Refusal
from tests.compiler.models import model, node, small_network
from tuner.minify.refusals import refusals


def check(path: Path, model_format: str) -> list[Refusal]:
    found = refusals(path.read_bytes(), {}, model_format=model_format, path=str(path), inputs=[])
    return [Refusal.model_validate(each) for each in found]


def of_onnx(folder: Path, proto: Any) -> list[Refusal]:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return check(folder / "model.onnx", "onnx")


def of_torch(folder: Path, module: Any, *inputs: Any) -> list[Refusal]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own, when it saves
        torch.export.save(torch.export.export(module, inputs), folder / "model.pt2")
    return check(folder / "model.pt2", "pt2")


def test_every_operator_of_an_onnx_file_that_is_refused_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Juggle", ["a"], ["b"], name="first", domain="circus"),
        node("Relu", ["b"], ["c"]),
        node("Tumble", ["c"], ["y"], name="second", domain="circus"),
    ]
    found = of_onnx(tmp_path, model(nodes, {"x": [2, 3]}, ["y"], domains=["circus"]))
    assert {("first", True), ("second", True)} <= {(each.node, bool(each.operator)) for each in found}
    assert all("circus" in each.reason for each in found if each.node in ("first", "second"))


def test_an_open_dimension_of_an_onnx_file_is_told(tmp_path: Path) -> None:
    found = of_onnx(tmp_path, model([node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"]))
    assert len(found) == 1
    assert "'batch'" in found[0].reason


def test_of_a_model_that_is_taken_nothing_is_told(tmp_path: Path) -> None:
    assert of_onnx(tmp_path, small_network()) == []
    assert (
        of_torch(tmp_path, torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)) == []
    )


def test_a_file_that_is_no_model_is_not_a_model_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidModel):
        check(tmp_path / "model.onnx", "onnx")


def test_every_operator_of_a_program_of_pytorch_that_is_refused_is_named_with_its_node(tmp_path: Path) -> None:
    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            values = torch.linalg.eigvals(x)  # complex, between operators only
            return values.real, torch.nn.functional.embedding(torch.tensor([0, 1]), torch.relu(x), max_norm=1.0)

    found = of_torch(tmp_path, Network().eval(), torch.randn(4, 4))
    assert [each.operator for each in found] == ["aten.linalg_eig.default", "aten.embedding_renorm.default"]
    assert all(each.node and each.reason for each in found)


def test_operators_of_stablehlo_that_have_no_method_are_named(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    text = """
    func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %0 = stablehlo.add %arg0, %arg0 : tensor<4x4xf32>
      %1 = stablehlo.cholesky %0, lower = true : tensor<4x4xf32>
      return %1 : tensor<4x4xf32>
    }
    """
    (tmp_path / "model.mlir").write_text(text)
    (found,) = check(tmp_path / "model.mlir", "stablehlo")
    assert (found.operator, found.node) == ("stablehlo.cholesky", "main")
