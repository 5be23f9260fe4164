"""The one function that calls all kernels of a model on a CPU: used wherever it can be, and right."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe import vm
from pitchpipe.deploy.artifact import CompiledModel, Manifest
from pitchpipe.errors import InvalidInput
from pitchpipe.run_function import RUN
from pitchpipe.target_kind import kind_of
from tests.compiler.programs import TARGET
from tuner.deploy import run_function
from tuner.deploy.build import build_here, compile_to_save, schedule_model
from tuner.ingest import IngestedModel, TensorSpec, container
from tuner.tvm_compat import relax, save_ir

SHAPE, WIDTH = (4, 24), 24
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
W = np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype(np.float32)
C = np.random.default_rng(2).normal(size=SHAPE).astype(np.float32)

Body = Callable[[Any, Any, Any], Any]
"""(emit, x, w) -> what main returns."""


def layers(emit: Any, x: Any, w: Any, count: int = 6) -> Any:
    for _ in range(count):
        x = emit(relax.op.nn.relu(emit(relax.op.matmul(x, w))))
    return x


def reshaped(emit: Any, x: Any, w: Any) -> Any:
    parts = emit(relax.op.reshape(layers(emit, x, w, 2), (4, 4, 6)))
    turned = emit(relax.op.permute_dims(parts, (0, 2, 1)))
    return emit(relax.op.matmul(emit(relax.op.reshape(turned, SHAPE)), w))


def reshaped_numbers(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return numbers(x, w, 2).reshape(4, 4, 6).transpose(0, 2, 1).reshape(SHAPE) @ w


def numbers(x: np.ndarray, w: np.ndarray, count: int = 6) -> np.ndarray:
    for _ in range(count):
        x = np.maximum(x @ w, 0)
    return x


def twice(emit: Any, x: Any, w: Any) -> Any:
    y = layers(emit, x, w, 1)
    return relax.Tuple([y, y, emit(relax.op.reshape(y, (8, 12))), emit(relax.op.sum(y))])


def unchanged(emit: Any, x: Any, w: Any) -> Any:
    return relax.Tuple([x, layers(emit, x, w, 1), w, emit(relax.op.reshape(x, (96,))), relax.const(C)])


def divided(emit: Any, x: Any, w: Any) -> Any:
    """Rows of 192 bytes, which become views; of the last ones a reshape is read, and a half of that."""
    y = layers(emit, x, w, 1)
    first, last = (emit(relax.op.strided_slice(y, [0], [at], [at + 2])) for at in (0, 2))
    turned = emit(relax.op.reshape(last, (2, 24)))
    lower = emit(relax.op.strided_slice(turned, [0], [0], [1]))
    product = emit(relax.op.matmul(emit(relax.op.concat([lower, first], axis=0)), w))
    return relax.Tuple([product, emit(relax.op.matmul(last, w)), y, first])


def divided_numbers(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
    y = numbers(x, w, 1)
    return np.concatenate([y[2:3], y[:2]]) @ w, y[2:] @ w, y, y[:2]


MODELS: dict[str, tuple[Body, Callable[..., Any]]] = {
    "intermediate results that share memory": (layers, numbers),
    "reshapes between kernels": (reshaped, reshaped_numbers),
    "parts of intermediate results": (divided, divided_numbers),
    "a constant": (
        lambda emit, x, w: emit(relax.op.matmul(emit(relax.op.add(layers(emit, x, w, 1), relax.const(C))), w)),
        lambda x, w: (numbers(x, w, 1) + C) @ w,
    ),
    "a constant that two kernels read": (
        lambda emit, x, w: emit(relax.op.matmul(emit((layers(emit, x, w, 1) + (c := relax.const(C))) * c), w)) + c,
        lambda x, w: ((numbers(x, w, 1) + C) * C) @ w + C,
    ),
    "one result twice, and one without axes": (
        twice,
        lambda x, w: (numbers(x, w, 1), numbers(x, w, 1), numbers(x, w, 1).reshape(8, 12), numbers(x, w, 1).sum()),
    ),
    "results that no kernel writes": (unchanged, lambda x, w: (x, numbers(x, w, 1), w, x.reshape(96), C)),
    "a result that is computed with": (
        lambda emit, x, w: (lambda y: relax.Tuple([y, layers(emit, y, w, 2)]))(layers(emit, x, w, 1)),
        lambda x, w: (numbers(x, w, 1), numbers(x, w, 3)),
    ),
}


def ingested(body: Body) -> IngestedModel:
    x, w = (
        relax.Var("x", relax.TensorType(SHAPE, "float32")),
        relax.Var("w", relax.TensorType((WIDTH, WIDTH), "float32")),
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, x, w))
        builder.emit_func_output(result)
    module = builder.get()
    module["main"] = module["main"].with_attr("num_input", 1)
    inputs = (TensorSpec(name="x", shape=SHAPE, dtype="float32"),)
    params = (TensorSpec(name="w", shape=W.shape, dtype="float32"),)
    return IngestedModel(ir=save_ir(module), inputs=inputs, params=params)


def compiled(body: Body) -> CompiledModel:
    data = container(ingested(body))
    manifest, executable = build_here(data, model_format="relax", target=TARGET.key, traces={})
    return CompiledModel(Manifest.model_validate(manifest), executable, {"w": W})


def without_the_machine(model: CompiledModel) -> CompiledModel:
    """The same, whose calls fail where they fall back on the virtual machine."""

    def called(*_: Any) -> None:
        raise AssertionError("the virtual machine was called")

    model._running._main = called
    return model


def check(found: Any, wanted: Any) -> None:
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    for one, right in zip(_listed(found), _listed(wanted), strict=True):
        assert one.shape == np.shape(right)
        np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-4)


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("copied_bytes", [vm.COPIED_BYTES, 0])
@pytest.mark.parametrize("name", MODELS)
def test_a_straight_line_of_kernels_runs_without_the_virtual_machine(
    name: str, copied_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "COPIED_BYTES", copied_bytes)
    body, right = MODELS[name]
    model = without_the_machine(compiled(body))
    given = [X, X + 1, X]
    results = [model(x) for x in given]
    for found, x in zip(results, given, strict=True):
        check(found, right(x, W))
    arrays = [array for found in results for array in _listed(found)]
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations([*arrays, X, W], 2))


def test_threads_compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4)
    described = run_function._described

    def wait(*given: Any) -> str:
        together.wait(60)
        return described(*given)

    monkeypatch.setattr(run_function, "_described", wait)
    module = schedule_model(ingested(layers), target=TARGET, traces={}).module
    with ThreadPoolExecutor(together.parties) as threads:
        found = list(threads.map(run_function.with_run_function, [module] * together.parties))
    assert all(RUN in {variable.name_hint for variable in each.functions} for each in found)


def test_other_weights_are_used_from_the_next_call_on() -> None:
    model = without_the_machine(compiled(layers))
    before = model(X)
    model.bind({"w": W / 2})
    check(model(X), numbers(X, W / 2))
    check(before, numbers(X, W))


def test_numpys_arrays_are_taken_however_they_lie() -> None:
    model = without_the_machine(compiled(layers))
    read_only = X.copy()
    read_only.flags.writeable = False
    for given in (X, read_only, np.repeat(X, 2, axis=1)[:, ::2], np.asfortranarray(X)):
        check(model(given), numbers(X, W))


def test_what_does_not_fit_is_refused_as_ever() -> None:
    model = compiled(layers)
    for given in (X[:2], X.astype(np.float64), X.astype(np.int32), X[None], X.astype(">f4")[:, :3]):
        with pytest.raises(InvalidInput, match=r"x must be float32\[4, 24\], not"):
            model(given)
    with pytest.raises(InvalidInput, match="takes 1 arrays, not 2"):
        model(X, X)
    check(model(X.astype(">f4")), numbers(X, W))


def test_torchs_tensors_are_read_where_they_lie_or_as_they_read() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.copy())
    aligned = torch.empty(SHAPE).copy_(x)
    check(without_the_machine(compiled(layers))(aligned), numbers(X, W))
    model = compiled(layers)
    for given in (x, aligned.requires_grad_(), aligned.detach().T.contiguous().T, torch._neg_view(-aligned.detach())):
        check(model(given), numbers(X, W))
    for given in (aligned.detach()[:3], aligned.detach().double()):
        with pytest.raises(InvalidInput, match="must be float32"):
            model(given)


def test_the_torch_backends_tensors_are_as_they_read() -> None:
    torch = pytest.importorskip("torch")
    from pitchpipe.torch_backend.run import adopted

    x = torch.arange(8.0)
    np.testing.assert_array_equal(adopted(torch._neg_view(x)).numpy(), -x.numpy())


def test_a_result_within_a_result_is_left_to_the_virtual_machine() -> None:
    model = compiled(lambda emit, x, w: relax.Tuple([relax.Tuple([layers(emit, x, w, 1)]), x]))
    assert model._running._whole is None
    (found,), same = model(X)
    check((found, same), (numbers(X, W, 1), X))


def test_the_time_of_a_run_is_told_without_the_virtual_machine() -> None:
    model = compiled(layers)
    model._running._machine = None
    assert len(model.run_secs(X, repeats=3)) == 3


def test_two_libraries_with_kernels_of_the_same_names_call_their_own(tmp_path: Path) -> None:
    kind, models = kind_of(TARGET), []
    for number in (1, 2):
        body = lambda emit, x, w, by=number: emit(  # noqa: E731
            relax.op.nn.relu(emit(relax.op.matmul(emit(x * relax.const(by, "float32")), w)))
        )
        scheduled = schedule_model(ingested(body), TARGET, {})
        file = tmp_path / f"{number}.so"
        kind.save(compile_to_save(scheduled, {}), file)
        found = ingested(body)
        models.append(kind.executable(kind.load(file, TARGET), found.inputs, found.params, TARGET))
        models[-1].bind({"w": W})
    for model, number in zip(models, (1, 2), strict=True):
        assert model._whole is not None
        assert model._module.get_function(RUN, query_imports=True) is not None
        check(model(X), np.maximum((number * X) @ W, 0))
