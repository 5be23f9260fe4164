"""TF32 is a part of a workload's identity where it may make a difference, and nothing anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pitchpipe.deploy.evidence import Evidence, compared
from pitchpipe.errors import InvalidInput
from pitchpipe.model.comparison import TOLERANCE, Agreement, less_precise
from pitchpipe.model.local import local_model
from pitchpipe.model.reference import Expected
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.precision import CONTRACTIONS, tf32_of
from pitchpipe.wire.target import Target
from tests.compiler.models import tiny_network
from tests.compiler.programs import TARGET
from tests.scene import OTHER_TARGET
from tuner.deploy.build import schedule_model
from tuner.graph.prepare import prepare, workload_module
from tuner.ingest import IngestedModel, TensorSpec, container, ingest
from tuner.ingest.precision import set_precision
from tuner.measure.properties import inspect
from tuner.tasks import split, workload_functions
from tuner.tvm_compat import load_ir, relax, save_ir

op = relax.op


def model(dtype: str = "float32") -> bytes:
    """A convolution, a product and a softmax, each in a kernel of its own."""
    builder = relax.BlockBuilder()
    shapes = [[1, 8, 8, 8], [16, 8, 3, 3], [16, 32]]
    variables = [relax.Var(f"a{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)]
    with builder.function("main", variables, attrs={"num_input": 3}):
        with builder.dataflow():
            x = builder.emit(op.nn.conv2d(*variables[:2]))
            x = builder.emit(op.nn.softmax(builder.emit(op.mean(x, [2, 3]))))
            result = builder.emit_output(op.matmul(x, variables[2]))
        builder.emit_func_output(result)
    specs = tuple(TensorSpec(name=v.name, shape=tuple(s), dtype=dtype) for v, s in zip(variables, shapes, strict=True))
    return container(IngestedModel(ir=save_ir(builder.get()), inputs=specs, params=()))


def found(data: bytes, target: Target, format: ModelFormat = ModelFormat.RELAX) -> dict[str, str]:
    """Operators of a kernel -> its digest, of a model that was uploaded."""
    prepared = prepare(load_ir(ingest(data, format).ir), target)
    return {variable.name_hint: digest for variable, _, digest in workload_functions(prepared)}


def changed(data: bytes, tf32: Sequence[str], target: Target = OTHER_TARGET) -> list[str]:
    """Names of the kernels whose digests differ where that may be TF32."""
    strict, allowed = found(data, target), found(set_precision(data, "relax", tf32), target)
    assert strict.keys() == allowed.keys()
    return sorted(name.rstrip("0123456789") for name in strict if strict[name] != allowed[name])


def test_products_and_convolutions_each_have_their_own_switch() -> None:
    assert [len(changed(model(), tf32)) for tf32 in ((), ["products"], ["convolutions"], CONTRACTIONS)] == [0, 1, 1, 2]
    assert "matmul" in changed(model(), ["products"])[0]
    assert "conv" in changed(model(), ["convolutions"])[0]


def test_on_a_cpu_and_in_half_precision_it_changes_nothing() -> None:
    assert changed(model(), CONTRACTIONS, TARGET) == []
    assert changed(model("float16"), CONTRACTIONS) == []


def test_a_workload_tells_it_to_whoever_checks_its_candidates() -> None:
    tasks = {
        len(tf32): {
            function.attrs.get("precision"): inspect(workload_module(function)).reduction_bits
            for _, function, _ in workload_functions(
                prepare(load_ir(ingest(set_precision(model(), "relax", tf32), ModelFormat.RELAX).ir), OTHER_TARGET)
            )
        }
        for tf32 in ((), CONTRACTIONS)
    }
    assert tasks == {0: {None: 24}, 2: {None: 24, "tf32": 11}}


def test_tasks_of_a_target_with_tf32_have_a_baseline() -> None:
    prepared = prepare(
        load_ir(ingest(set_precision(model(), "relax", CONTRACTIONS), ModelFormat.RELAX).ir), OTHER_TARGET
    )
    assert all(task.baseline for task in split(prepared, OTHER_TARGET))


def test_an_onnx_file_says_it_among_its_metadata() -> None:
    data = tiny_network().SerializeToString()
    strict, allowed = (local_model(data, precision=precision) for precision in ("ieee", "tf32"))
    digests = [set(found(each.data, OTHER_TARGET, ModelFormat.ONNX).values()) for each in (strict, allowed)]
    assert len(digests[0] - digests[1]) == 2
    assert found(strict.data, TARGET, ModelFormat.ONNX) == found(allowed.data, TARGET, ModelFormat.ONNX)
    assert strict.weights.keys() == allowed.weights.keys()


def test_only_two_precisions_are_known() -> None:
    assert (tf32_of("ieee"), tf32_of("tf32")) == ((), CONTRACTIONS)
    with pytest.raises(InvalidInput, match="ieee or tf32"):
        tf32_of("float16")
    assert less_precise("bfloat16", "tf32") == "bfloat16"
    assert less_precise(None, "tf32") == less_precise("float32", "tf32") == "tf32"
    assert TOLERANCE["tf32"] == TOLERANCE["float16"]


def test_torchs_switches_are_read_by_both_of_their_names() -> None:
    torch = pytest.importorskip("torch")
    from pitchpipe.torch_backend.cutting import tf32_allowed

    switches: Any = torch.backends
    products, convolutions = switches.cuda.matmul, switches.cudnn.conv
    before = products.fp32_precision, convolutions.fp32_precision
    device = torch.device("cuda")
    try:
        for product, convolution, expected in (
            ("ieee", "tf32", ("convolutions",)),
            ("tf32", "ieee", ("products",)),
            ("tf32", "tf32", CONTRACTIONS),
            ("ieee", "ieee", ()),
        ):
            products.fp32_precision, convolutions.fp32_precision = product, convolution
            assert tf32_allowed(device) == expected
        products.allow_tf32 = True
        assert "products" in tf32_allowed(device)
        assert tf32_allowed(torch.device("cpu")) == ()
    finally:
        products.fp32_precision, convolutions.fp32_precision = before


@pytest.mark.parametrize(("precision", "target", "computed"), [("tf32", TARGET, None), ("ieee", OTHER_TARGET, None)])
def test_a_manifest_tells_tf32_only_where_it_may_be_used(precision: str, target: Target, computed: str | None) -> None:
    assert scheduled(precision, target).computed == computed


def test_a_library_that_may_multiply_in_tf32_is_compared_as_tf32() -> None:
    assert scheduled("tf32", OTHER_TARGET).computed == "tf32"
    exact = np.linspace(1, 2, 64, dtype=np.float32)
    evidence = Evidence(expected=Expected(reference="a framework", inputs=((exact,),), outputs=((exact,),)), weights={})
    for computed, agrees in ((None, False), ("tf32", True)):
        library: Any = lambda x: x * np.float32(1.005)  # noqa: E731
        library.inputs = (SimpleNamespace(dtype="float32", shape=(64,)),)
        library.manifest = SimpleNamespace(computed=computed)
        agreement = compared(library, evidence)
        assert isinstance(agreement, Agreement)
        assert (agreement.difference is None) == agrees


def scheduled(precision: str, target: Target) -> Any:
    ingested = ingest(set_precision(model(), "relax", tf32_of(precision)), ModelFormat.RELAX)
    return schedule_model(ingested, target, {})
