"""What is told to a caller whose model or example inputs are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pitchpipe
from pitchpipe.errors import InvalidInput, InvalidModel, UnsupportedOperator
from pitchpipe.model import local
from pitchpipe.model.local import arguments_of, local_model, read_file


@pytest.mark.parametrize("examples", [np.zeros((2, 3)), {"x": 1}, "x", b"x"])
def test_what_is_one_argument_is_not_taken_for_all_of_them(examples: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"such as \(x,\), not {type(examples).__name__}"):
        arguments_of(examples)
    with pytest.raises(InvalidInput, match="a tuple with an item for each argument"):
        local_model(lambda x: x, examples)


def test_arguments_come_in_any_order_that_can_be_walked() -> None:
    assert arguments_of(None) is None
    assert arguments_of([1, {"x": 2}]) == arguments_of(iter([1, {"x": 2}])) == (1, {"x": 2})  # type: ignore[arg-type]


def test_what_is_no_model_is_refused_by_what_would_be_one() -> None:
    with pytest.raises(InvalidInput, match=r"a model is a path, .* not int"):
        local_model(42)
    with pytest.raises(InvalidInput, match=r"a model is a path, .* not int"):
        pitchpipe.tune(42, progress=False)


def test_a_file_that_cannot_be_read_as_a_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=f"^{tmp_path}: the suffix must be one of"):
        read_file(tmp_path, trust=False)

    def refused(*_: Any, **__: Any) -> Any:
        raise UnsupportedOperator("Loop at node 3")

    monkeypatch.setattr(local, "step", lambda _: refused)
    (file := tmp_path / "net.onnx").write_bytes(b"x")
    with pytest.raises(InvalidModel, match=f"^{file}: Loop at node 3") as raised:
        local_model(file)
    assert raised.type is UnsupportedOperator
