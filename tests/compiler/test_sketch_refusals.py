"""A sketch that TVM refuses costs one line of the log; the others of its generator stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog

from pitchpipe.wire.measure import BASELINE_TRACE
from tests.compiler import programs
from tests.compiler.test_winograd import network, workload_of
from tuner.space import default, rowwise, tiles, winograd
from tuner.tvm_compat import load_ir, relax


def softmax() -> Any:
    return programs.workload(lambda builder, x: relax.op.nn.softmax(x), (12, 64, 128))


def the_first_call_fails(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("TVM does not like it")
        return function(*args, **kwargs)

    return called


@pytest.mark.parametrize(
    ("generator", "owner", "step", "sketches", "made"),
    [
        ("tiles", tiles._Sketch, "make", tiles.tiled_sketches, lambda: programs.dense(128, 256, 192)),
        ("winograd", winograd, "_tile", winograd.winograd_sketches, lambda: workload_of(network(14, 14, 64, 64))),
        ("rowwise", rowwise, "schedule_chain", rowwise.rowwise_sketches, softmax),
    ],
    ids=["tiles", "winograd", "rowwise"],
)
def test_a_sketch_that_is_refused_is_told_and_the_others_stand(
    generator: str,
    owner: Any,
    step: str,
    sketches: Callable[..., list[Any]],
    made: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod = load_ir(made().ir)
    whole = len(sketches(mod, programs.TARGET))
    monkeypatch.setattr(owner, step, the_first_call_fails(getattr(owner, step)))
    with structlog.testing.capture_logs() as lines:
        assert len(sketches(mod, programs.TARGET)) == whole - 1 > 0
    (line,) = lines
    assert (line["event"], line["log_level"], line["generator"]) == ("sketch refused", "warning", generator)
    assert line["error"] == "RuntimeError: TVM does not like it"
    assert line["choice"]


def test_a_default_schedule_that_is_refused_is_told_and_the_next_plan_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_row_by_row", the_first_call_fails(default._row_by_row))
    with structlog.testing.capture_logs() as lines:
        assert default.default_trace(softmax(), programs.TARGET) != BASELINE_TRACE
    assert [(line["generator"], line["error"]) for line in lines] == [("default", "RuntimeError: TVM does not like it")]


def test_a_register_tile_that_is_refused_as_a_default_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "tiled_sketches", the_first_call_fails(default.tiled_sketches))
    with structlog.testing.capture_logs() as lines:
        default.default_trace(programs.dense(128, 256, 192), programs.TARGET)
    assert [(line["generator"], line["choice"]) for line in lines] == [("default", "register tiles")]
