"""Torch modules become models that compute what the module computes; their weights stay with the caller."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidInput, InvalidModel, UnsupportedOperator
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.prepare import prepare
from tuner.ingest import ingest, parse_container
from tuner.tvm_compat import load_ir

torch = pytest.importorskip("torch")

from tuner.ingest.aten.emitter import tvm_array  # noqa: E402
from tuner.ingest.local import convert_local  # noqa: E402
from tuner.ingest.torch_export import from_pt2, from_torch  # noqa: E402  # needs torch


class Small(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Embedding, buffers of both kinds, convolution with batch norm, and an own constant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 36)
        self.conv = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)
        self.register_buffer("positions", torch.arange(4).expand(1, -1), persistent=False)
        self.register_buffer("shift", torch.randn(8), persistent=False)
        torch.nn.init.uniform_(self.norm.running_mean)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        e = (self.embed(ids) + self.embed(self.positions)).reshape(1, 4, 6, 6)
        y = torch.nn.functional.relu6(self.norm(self.conv(e + x)))
        return self.head(y.mean((2, 3)) + self.shift), y


def example() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Small().eval(), (torch.randint(0, 20, (1, 4)), torch.randn(1, 4, 6, 6))


def test_a_module_computes_the_same_after_its_journey() -> None:
    module, inputs = example()
    data, weights = from_torch(module, inputs)
    ingested = ingest(data, ModelFormat.RELAX)
    assert [spec.dtype for spec in ingested.inputs] == ["int64", "float32"]
    found = run(
        finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [value.numpy() for value in inputs]
    )
    with torch.no_grad():
        expected = module(*inputs)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_two_examples_that_are_one_tensor_stay_two_inputs() -> None:
    class Difference(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, one: Any, others: list[Any], *, last: Any) -> Any:
            return one - 2 * others[0] + 4 * others[1] - 8 * last

    x = torch.ones(3)
    data, _ = from_torch(Difference().eval(), (x, [x, torch.zeros(3)]), {"last": x})
    ingested = ingest(data, ModelFormat.RELAX)
    given = [np.full(3, value, np.float32) for value in (1, 2, 3, 4)]
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, {}, given)
    assert found.tolist() == [1 - 2 * 2 + 4 * 3 - 8 * 4] * 3


def test_parameters_and_buffers_are_named_as_in_the_state_dict() -> None:
    module, inputs = example()
    _, weights = from_torch(module, inputs)
    state = {name for name, value in module.state_dict().items() if value.is_floating_point()}
    assert set(weights) == state | {"shift"}


class Named(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Weights with names of attributes of torch.fx.GraphModule and of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.nn.Linear(4, 4)
        self.register_buffer("code", torch.rand(4))
        self.register_buffer("mask", torch.rand(4))

    def forward(self, x: Any, mask: Any) -> Any:
        return self.graph(x * self.code) + mask * self.mask


def test_any_name_of_a_weight_will_do() -> None:
    module, inputs = Named().eval(), (torch.randn(3, 4), torch.randn(3, 4))
    data, weights = from_torch(module, inputs)
    assert set(weights) == set(module.state_dict())
    ingested = ingest(data, ModelFormat.RELAX)
    assert not {spec.name for spec in ingested.inputs} & set(weights)
    (found,) = run(
        finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [x.numpy() for x in inputs]
    )
    with torch.no_grad():
        np.testing.assert_allclose(found, module(*inputs).numpy(), rtol=1e-5, atol=1e-6)


def test_distributions_are_exported_without_a_look_at_their_parameters() -> None:
    class Likely(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            normal = torch.distributions.Normal(x, torch.nn.functional.softplus(x))
            return normal.log_prob(x + 1), torch.distributions.Categorical(logits=x).entropy()

    before = torch.distributions.Distribution._validate_args
    try:
        torch.distributions.Distribution.set_default_validate_args(True)
        from_torch(Likely().eval(), (torch.randn(3, 4),))
        with pytest.raises(ValueError, match="constraint"):
            torch.distributions.Normal(torch.zeros(1), -torch.ones(1))
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def test_constants_are_arrays_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        assert tvm_array(2.5, "float32") == np.float32(2.5)


def test_what_is_written_through_data_is_named() -> None:
    """As the mask of Tacotron 2's attention, which torch.export loses."""

    class Masked(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, mask: Any) -> Any:
            energies = x * 2
            energies.data.masked_fill_(mask, -1.0)
            return energies.softmax(-1)

    with pytest.raises(InvalidModel, match=r"writes through \.data"):
        from_torch(Masked().eval(), (torch.randn(3, 4), torch.rand(3, 4) > 0.5))


def test_the_weights_are_not_in_what_is_sent() -> None:
    (first, inputs), (second, _) = example(), example()
    torch.nn.init.normal_(second.conv.weight)
    torch.nn.init.uniform_(second.norm.running_var, 0.5, 1.5)
    assert from_torch(first, inputs)[0] == from_torch(second, inputs)[0]


def test_a_module_in_training_mode_is_refused() -> None:
    module, inputs = example()
    with pytest.raises(InvalidModel, match="training mode"):
        from_torch(module.train(), inputs)


def test_an_operator_without_a_conversion_is_named() -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvals(x).real

    with pytest.raises(UnsupportedOperator, match="eig"):
        from_torch(Odd().eval(), (torch.randn(4, 4),))


def test_a_module_that_cannot_be_exported_says_why() -> None:
    class Branching(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidModel, match=r"torch\.export failed"):
        from_torch(Branching().eval(), (torch.randn(4),))


def test_an_archive_is_read_only_when_it_is_trusted(tmp_path: Path) -> None:
    module, inputs = example()
    path = tmp_path / "small.pt2"
    torch.export.save(torch.export.export(module, inputs), path)
    with pytest.raises(InvalidInput, match="trust"):
        convert_local(path, ModelFormat.PT2)
    data, weights = convert_local(path, ModelFormat.PT2, trusted=True)
    expected = from_torch(module, inputs)
    assert data == expected[0]
    assert set(weights) == set(expected[1])


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidModel, match=r"bad\.pt2 is not"):
        from_pt2(path)


class Twice(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.pitchpipe_test.twice(x)


def test_an_archive_with_an_operator_of_a_library_that_is_not_imported_names_it(tmp_path: Path) -> None:
    path = tmp_path / "own.pt2"
    with torch.library._scoped_library("pitchpipe_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        torch.export.save(torch.export.export(Twice(), (torch.ones(2),)), path)
    with pytest.raises(InvalidModel, match=r"own\.pt2: operator pitchpipe_test::twice is not known here"):
        from_pt2(path)


# TorchScript. torch calls it deprecated, which its users know.

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def scripted(kind: str, module: Any, inputs: tuple[Any, ...]) -> Any:
    if kind == "traced":
        return torch.jit.trace(module, inputs)
    script = torch.jit.script(module)
    return torch.jit.freeze(script) if kind == "frozen" else script


@pytest.mark.long
@pytest.mark.parametrize("kind", ["traced", "scripted", "frozen"])
def test_torchscript_computes_the_same_after_its_journey(kind: str) -> None:
    module, inputs = example()
    data, weights = from_torch(scripted(kind, module, inputs), inputs)
    ingested = ingest(data, ModelFormat.RELAX)
    if kind != "frozen":  # which folds the batch norm and renames what is left
        assert set(weights) == set(from_torch(module, inputs)[1])
    found = run(
        finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [value.numpy() for value in inputs]
    )
    with torch.no_grad():
        expected = module(*inputs)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_a_torchscript_file_needs_trust_and_shapes(tmp_path: Path) -> None:
    module, inputs = example()
    path = tmp_path / "small.pt"
    torch.jit.save(scripted("traced", module, inputs), str(path))
    with pytest.raises(InvalidInput, match="trust"):
        convert_local(path, ModelFormat.TORCHSCRIPT, inputs)
    with pytest.raises(InvalidInput, match="shapes of its inputs"):
        convert_local(path, ModelFormat.TORCHSCRIPT, trusted=True)
    shapes = [np.zeros(tuple(value.shape), value.numpy().dtype) for value in inputs]
    data, weights = convert_local(path, ModelFormat.TORCHSCRIPT, shapes, trusted=True)
    assert [spec.shape for spec in parse_container(data).inputs] == [array.shape for array in shapes]
    expected = from_torch(module, inputs)[1]
    assert set(weights) == set(expected)
    np.testing.assert_array_equal(weights["conv.weight"], expected["conv.weight"])
    path.write_bytes(b"PK nothing")
    with pytest.raises(InvalidModel, match=r"small\.pt is not a TorchScript archive"):
        convert_local(path, ModelFormat.TORCHSCRIPT, shapes, trusted=True)


class Loops(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() > 0):
            x = x - 1
        return x


class Branches(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


class Trains(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


@pytest.mark.parametrize(
    ("module", "kind", "message"),
    [
        (Loops().eval(), UnsupportedOperator, "TorchScript operator prim::Loop"),
        (Branches().eval(), UnsupportedOperator, "cond"),
        (Trains(), InvalidModel, "training mode"),
    ],
)
def test_torchscript_that_cannot_be_taken_is_refused_with_the_cause(module: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        from_torch(torch.jit.script(module), (torch.randn(4),))


@dataclasses.dataclass
class Inner:
    value: torch.Tensor


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    inner: list[Inner]
    nothing: torch.Tensor | None = None


class Structured(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: torch.Tensor) -> Result:
        return Result(x + 1, [Inner(x * 2)])


def test_the_tensors_of_a_result_that_is_a_dataclass_are_the_outputs_in_the_order_of_its_fields() -> None:
    x = torch.randn(2, 3)
    ingested = ingest(from_torch(Structured().eval(), (x,))[0], ModelFormat.RELAX)
    prepared = finish(prepare(load_ir(ingested.ir), TARGET), TARGET)
    for found, expected in zip(run(prepared, ingested, {}, [x.numpy()]), (x + 1, x * 2), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())


class Adds(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given.add_(1) * 2


class Counts(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.mul_(0.5).add_(x.sum(0))
        return self.total * 2


@pytest.mark.parametrize(
    ("module", "rows", "message"),
    [
        (Adds(), 2, r"into its input 'given'.*given\.clone\(\)"),
        (Counts(), 2, "stateful; take the state as an argument"),
        (torch.nn.Linear(3, 4), 0, "example inputs without an axis of extent 0"),
    ],
)
def test_a_refusal_says_what_to_do(module: Any, rows: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_torch(module.eval(), (torch.randn(rows, 3),))


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_what_export_cannot_take_apart_is_refused_with_what_to_do() -> None:
    class Result:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Wraps(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: torch.Tensor) -> Result:
            return Result(x + 1)

    with pytest.raises(InvalidModel, match="return a tuple or a dict"):
        from_torch(Wraps().eval(), [torch.zeros(2, 3)])
    packed = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(4, 4)).eval())
    with pytest.raises(InvalidModel, match="QuantizeLinear"):
        from_torch(packed, [torch.zeros(2, 4)])
