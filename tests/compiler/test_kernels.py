"""A library is linked from kernels that forks compiled, and from the very code that checks of default schedules made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import PitchpipeError
from pitchpipe.model.strip import strip_onnx
from tests.compiler.programs import TARGET, conv, dense
from tests.compiler.test_deploy import run, three_products
from tuner.deploy import kernels
from tuner.deploy.build import build
from tuner.deploy.forks import Lost
from tuner.deploy.kernels import compile_kernels
from tuner.tvm_compat import load_ir, load_object_code, to_tvm_target, tvm


def functions() -> dict[str, Any]:
    """Two kernels as a model has them."""
    found = {"product": load_ir(dense().ir)["main"], "convolution": load_ir(conv().ir)["main"]}
    return {name: function.with_attr("global_symbol", name) for name, function in found.items()}


def test_a_library_computes_the_model_and_what_was_checked_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripped = strip_onnx(three_products().SerializeToString())
    compiled: list[int] = []
    in_forks = kernels.in_forks

    def counted(work: Any, count: int, **options: Any) -> Any:
        compiled.append(count)
        return in_forks(work, count, **options)

    monkeypatch.setattr(kernels, "in_forks", counted)
    monkeypatch.setattr(kernels, "PARTS", 1000)  # A function a fork, so that forks count functions.
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    weights = stripped.weights
    expected = x @ weights["w1"] @ weights["w2"] @ weights["w3"]
    for library in ("first", "second"):
        path = tmp_path / f"{library}.so"
        made = build(
            stripped.data,
            {},
            model_format="onnx",
            target=TARGET.key,
            traces={},
            library=str(path),
            defaults=str(tmp_path / "defaults"),
        )
        assert len(made["defaults"]) == 3
        assert not made["refused"]
        loaded = tvm.runtime.load_module(str(path))
        np.testing.assert_allclose(run(loaded, made, weights, x), expected, rtol=1e-3, atol=1e-3)
    checked, remembered = compiled
    assert remembered - checked == 3


def test_object_code_is_used_for_the_same_function_alone() -> None:
    target = to_tvm_target(TARGET)
    found = functions()
    renamed = {
        "product": (found["product"].with_attr("another", 1), b"its code"),
        "convolution": (found["product"], b""),
    }
    objects = compile_kernels(found, target, {**renamed, "absent": (found["product"], b"")})
    assert sorted((each.names, each.code == b"its code") for each in objects) == [
        (("convolution",), False),
        (("product",), True),
    ]
    (convolution,) = (each.code for each in objects if each.names == ("convolution",))
    assert load_object_code(convolution).get_function("convolution") is not None


@pytest.mark.parametrize("lost", [False, True], ids=["refuses", "dies"])
def test_what_the_compiler_refuses_or_dies_of_is_told(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("a line\nno such instruction")

    monkeypatch.setattr(kernels, "generate", refuse)
    if lost:
        gone = Lost(reason="the process that ran it was ended by SIGSEGV", final=True)
        monkeypatch.setattr(kernels, "in_forks", lambda _, count, **__: [gone] * count)
    with pytest.raises(PitchpipeError, match="SIGSEGV" if lost else "no such instruction"):
        compile_kernels(functions(), to_tvm_target(TARGET), {})
