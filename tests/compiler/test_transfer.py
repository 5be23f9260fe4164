"""Traces re-fitted to other workloads: that they apply, compute the right thing, and keep what made them good."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, workload
from tests.compiler.test_tiles import convolution, dense, dense_gelu
from tests.compiler.test_winograd import assert_same, network, workload_of
from tuner.schedule.rewrites import rewrite_of
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace
from tuner.search.transfer import refitted
from tuner.space import space_of
from tuner.tvm_compat import load_ir, relax

op = relax.op


def softmax(*shape: int) -> Workload:
    return workload(lambda _, x: op.nn.softmax(x), shape)


def layer_norm(rows: int, columns: int) -> Workload:
    return workload(lambda _, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), (rows, columns), (columns,), (columns,))


def bare_convolution(shape: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Workload:
    def make(_: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **options)

    return workload(make, shape, weight)


CASES: dict[str, tuple[Callable[[], Workload], list[Callable[[], Workload]]]] = {
    "dense": (lambda: dense(32, 128, 96), [lambda: dense(48, 64, 160), lambda: dense(37, 96, 64), dense_gelu]),
    "convolution": (
        lambda: convolution((1, 14, 14, 16), (3, 3, 16, 32), padding=1),
        [
            lambda: convolution((1, 28, 28, 32), (3, 3, 32, 64), padding=1, strides=2),
            lambda: convolution((2, 9, 9, 32), (3, 3, 32, 48), padding=1),
            lambda: bare_convolution((1, 14, 14, 16), (3, 3, 16, 32), padding=1),
        ],
    ),
    "depthwise": (
        lambda: convolution((1, 17, 17, 32), (3, 3, 1, 32), padding=1, groups=32),
        [
            lambda: convolution((1, 33, 33, 48), (3, 3, 1, 48), padding=1, strides=2, groups=48),
            lambda: bare_convolution((1, 14, 14, 64), (3, 3, 1, 64), padding=1, groups=64),
        ],
    ),
    "softmax": (lambda: softmax(12, 64, 128), [lambda: softmax(4, 48, 96), lambda: softmax(2, 16, 200)]),
    "layer norm": (lambda: layer_norm(64, 768), [lambda: layer_norm(128, 512), lambda: layer_norm(50, 384)]),
    "winograd": (
        lambda: workload_of(network(12, 12, 32, 32)),
        [lambda: workload_of(network(16, 8, 16, 32)), lambda: workload_of(network(12, 12, 32, 32, epilogue=False))],
    ),
}
"""A workload that has traces, and those that they are re-fitted to: other shapes, another epilogue."""


@cache
def traces(kind: str) -> list[str]:
    """One of each sketch that the first workload of the case has."""
    space = space_of(CASES[kind][0](), TARGET)
    drawn = [space.candidate(sketch, seed) for seed, sketch in enumerate(space.sketches, 1)]
    return [encode_trace(schedule.trace) for schedule in drawn if schedule is not None]


def refit(trace: str, workload: Workload, target: Target) -> str | None:
    """The first schedule that the trace becomes on the workload and that keeps the target's rules, as a trace."""
    space = space_of(workload, target)
    schedules = refitted(space, decode_trace(trace))
    return next((encode_trace(one.trace) for one in schedules if space.postprocessed(one)), None)


@pytest.mark.parametrize("kind", CASES)
def test_a_refitted_trace_computes_what_the_baseline_computes(kind: str) -> None:
    for make in CASES[kind][1]:
        made = make()
        fitted = [refit(trace, made, TARGET) for trace in traces(kind)]
        found = [trace for trace in fitted if trace is not None]
        # What was drawn for one shape may have too much code for another.
        assert 4 * len(found) >= 3 * len(fitted)
        assert fitted[-1] is not None, "our own sketches fit every shape"
        assert all(decode_trace(trace) == trace for trace in found)
        mod = load_ir(made.ir)
        # The first sketches are MetaSchedule's, the last ones ours.
        assert_same(mod, [apply_trace(mod, trace).mod for trace in (found[0], found[-1])])


def test_a_rewritten_workload_stays_rewritten() -> None:
    source = traces("winograd")[-1]
    for make in CASES["winograd"][1]:
        found = refit(source, make(), TARGET)
        assert found is not None
        assert rewrite_of(json.loads(found)[0]) == rewrite_of(json.loads(source)[0])


def test_a_trace_refitted_to_its_own_workload_is_the_same_trace() -> None:
    for kind in ("dense", "depthwise", "layer norm"):
        assert [refit(trace, CASES[kind][0](), TARGET) for trace in traces(kind)] == traces(kind)
