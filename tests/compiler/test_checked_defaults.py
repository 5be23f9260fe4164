"""What has no trial runs its default schedule, once that was checked; what is wrong, crashes or hangs runs the baseline."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, conv, dense, workload
from tests.compiler.test_deploy import OF_ANOTHER_BLOCK, run, three_products
from tuner.deploy import default_check, defaults
from tuner.deploy.build import build_here, schedule_model
from tuner.deploy.default_check import Answer, Checked, Named
from tuner.deploy.defaults import checked_defaults, remembered_defaults
from tuner.deploy.forks import Lost, in_forks
from tuner.ingest import IngestedModel, IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.measure.candidate import Bench, Measuring, Running, WrongOutput
from tuner.measure.check import ReferenceOutputs
from tuner.space.default import default_trace, default_traces
from tuner.tvm_compat import IRModule, relax, tirx, tvm_ffi


def named(workloads: Sequence[Workload]) -> list[Named]:
    return [Named(name=f"function_{at}", workload=workload) for at, workload in enumerate(workloads)]


def asked(folder: Path) -> tuple[IngestedModel, Any]:
    stripped = strip_onnx(three_products().SerializeToString())
    return read_onnx(stripped.data, IngestLimits()), stripped


def test_a_build_gives_what_has_no_trial_its_default_schedule_and_remembers_that_it_is_right(tmp_path: Path) -> None:
    model, _ = asked(tmp_path)
    scheduled = schedule_model(model, TARGET, {}, defaults=partial(checked_defaults, folder=tmp_path))
    assert len(scheduled.defaults) == 3
    assert sorted(scheduled.untuned) == sorted(scheduled.defaults)
    assert not scheduled.tuned
    assert not scheduled.refused
    assert len(list(tmp_path.iterdir())) == 3
    # From now on nothing is checked: what is remembered is enough.
    again = schedule_model(model, TARGET, {}, defaults=partial(remembered_defaults, folder=tmp_path))
    assert again.defaults == scheduled.defaults


def test_a_schedule_that_was_given_stays_and_one_that_does_not_apply_makes_room_for_the_default(tmp_path: Path) -> None:
    model, _ = asked(tmp_path)
    choose = partial(checked_defaults, folder=tmp_path)
    first, second, third = schedule_model(model, TARGET, {}).untuned
    traces = {first: OF_ANOTHER_BLOCK, second: BASELINE_TRACE}
    scheduled = schedule_model(model, TARGET, traces, defaults=choose)
    assert set(scheduled.defaults) == {first, third}
    assert set(scheduled.refused) == {first}
    assert set(scheduled.untuned) == {first, second, third}  # The second won as the baseline: that was confirmed.


def test_a_default_schedule_that_computes_something_else_is_not_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, stripped = asked(tmp_path)
    right = default_check.apply
    monkeypatch.setattr(default_check, "apply", lambda mod, trace: wrong(right(mod, trace)))
    scheduled = schedule_model(model, TARGET, {}, defaults=partial(checked_defaults, folder=tmp_path))
    assert scheduled.defaults == ()
    assert set(scheduled.refused) == set(scheduled.untuned)
    assert all("matmul" in reason and "the error is up to" in reason for reason in scheduled.refused.values())
    # It is remembered, also by a build in a process that cannot check.
    manifest, executable = build_here(
        stripped.data, model_format="onnx", target=TARGET.key, traces={}, defaults=str(tmp_path)
    )
    assert manifest["defaults"] == []
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    weights = stripped.weights
    expected = x @ weights["w1"] @ weights["w2"] @ weights["w3"]
    np.testing.assert_allclose(run(executable, manifest, weights, x), expected, rtol=1e-3, atol=1e-3)


def test_where_the_default_schedule_is_not_right_the_next_one_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Winograd's algorithm a convolution of 3 x 3 before a hyperbolic tangent was refused, and ran unscheduled."""
    first, second = itertools.islice(default_traces(conv(), TARGET), 2)
    right = default_check.apply
    monkeypatch.setattr(
        default_check, "apply", lambda mod, trace: wrong(right(mod, trace)) if trace == first else right(mod, trace)
    )
    assert checked_defaults(named([conv()]), TARGET, tmp_path) == {conv().digest: Checked(trace=second)}


def wrong(mod: Any) -> Any:
    """With every product of numbers halved."""

    def halved(product: Any) -> Any:
        is_number = "float" in str(product.ty.dtype)
        return tirx.Mul(product, tirx.FloatImm("float32", 0.5)) if is_number else product

    function = mod["main"]
    return IRModule({"main": function.with_body(tvm_ffi.structural_map(function.body, (tirx.Mul, halved)))})


@pytest.mark.long
@pytest.mark.parametrize(
    ("misdeed", "told", "kept"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV", True),
        (lambda: time.sleep(1000), "longer than", False),
        (lambda: os._exit(3), "exited with code 3", False),
    ],
    ids=["crashes", "hangs", "exits"],
)
def test_one_that_ends_its_process_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, misdeed: Any, told: str, kept: bool
) -> None:
    workloads = [dense(), conv(), dense(32, 32, 32)]
    checked = default_check._check

    def check(bench: Any, *programs: Any) -> None:
        if len(bench.mod["main"].params) == 4 and "conv" in str(bench.mod):
            misdeed()
        checked(bench, *programs)

    monkeypatch.setattr(default_check, "_check", check)
    monkeypatch.setattr(defaults, "CHECK_SECS", 120.0 if told != "longer than" else 20.0)
    found = checked_defaults(named(workloads), TARGET, tmp_path)
    assert [found[workload.digest].fault is None for workload in workloads] == [True, False, True]
    assert told in (found[conv().digest].fault or "")
    known = remembered_defaults(named(workloads), TARGET, tmp_path)
    assert (conv().digest in known) is kept


def test_of_those_that_share_a_fork_one_that_crashes_costs_itself_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = [dense(), conv(), dense(32, 32, 32)]
    compiled = default_check._compiled

    def crash_on_convolutions(bench: Bench, trace: str, name: str) -> Any:
        if "conv" in str(bench.mod):
            os.kill(os.getpid(), signal.SIGSEGV)
        return compiled(bench, trace, name)

    monkeypatch.setattr(default_check, "_compiled", crash_on_convolutions)
    monkeypatch.setattr(defaults, "TURNS", 1)
    monkeypatch.setattr(defaults, "usable_cores", lambda: 1)
    shared: list[int] = []

    def counted(work: Any, count: int, **options: Any) -> Any:
        shared.append(count)
        return in_forks(work, count, **options)

    monkeypatch.setattr(defaults, "in_forks", counted)
    made: dict[str, bytes] = {}
    found = checked_defaults(named(workloads), TARGET, tmp_path, made=made)
    assert shared == [1, 3]
    assert [found[workload.digest].fault is None for workload in workloads] == [True, False, True]
    assert "SIGSEGV" in (found[conv().digest].fault or "")
    assert set(made) == {dense().digest, dense(32, 32, 32).digest}


def test_one_that_writes_beside_its_outputs_is_not_right_though_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(dense().ir, TARGET, 0)
    bench.fill("random")
    running = Running(bench, bench.reference_program())
    expected = [array.copy() for array in running.outputs_on("random")]
    assert running.stays_inside
    bench.reference_outputs["random"] = ReferenceOutputs(bench.properties, "random", expected)
    measuring = Measuring(bench, running)
    assert measuring.check(["random"]) > 0
    (output,) = running._views
    ctypes.memset(output.ctypes.data + output.nbytes + 8, 0, 4)
    assert not running.stays_inside
    with pytest.raises(WrongOutput, match="beside the outputs"):
        measuring.check(["random"])
    monkeypatch.setattr(Running, "stays_inside", False)
    found = checked_defaults(named([dense()]), TARGET, tmp_path)
    assert "beside its outputs" in (found[dense().digest].fault or "")


def test_nothing_is_checked_for_a_target_whose_code_does_not_run_here(tmp_path: Path) -> None:
    foreign = Target.parse({"kind": "llvm", "mcpu": "neoverse-n1", "num-cores": 2})
    assert checked_defaults(named([dense()]), foreign, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_verdict_is_none(tmp_path: Path) -> None:
    workloads = [dense()]
    found = checked_defaults(named(workloads), TARGET, tmp_path)
    assert found[dense().digest] == Checked(trace=default_trace(dense(), TARGET))
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert remembered_defaults(named(workloads), TARGET, tmp_path) == {}


def test_a_workload_on_which_the_reference_gives_nothing_finite_runs_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_check, "mostly_finite", lambda _: False)
    found = checked_defaults(named([dense()]), TARGET, tmp_path)
    assert "no finite output" in (found[dense().digest].fault or "")


def between_roots(_builder: Any, x: Any, y: Any, _z: Any) -> Any:
    one = relax.const(1.0)
    return relax.op.sqrt(x * y * (one - x) * (one - y)) / relax.op.sqrt(x * (one - y))


def gates(_builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Of a linear recurrence, whose coefficient is a power."""
    one = relax.const(1.0)
    return relax.op.sqrt(one - relax.op.exp(x * y)) * relax.op.sqrt(one - relax.op.exp(y * z))


@pytest.mark.parametrize("function", [between_roots, gates])
def test_what_is_finite_for_few_inputs_is_checked(function: Any) -> None:
    (asked,) = named([workload(function, (40, 64), (40, 64), (40, 64), inputs=3)])
    (answer,) = Answer.decode_all(default_check.check_defaults([asked], TARGET))
    assert answer.checked.fault is None
    assert answer.checked.trace != BASELINE_TRACE


def test_forks_answer_each_piece_though_a_thread_pool_runs_here() -> None:
    def work(piece: int) -> bytes:
        if piece == 3:
            raise RuntimeError("not this one")
        return bytes([piece])

    found = in_forks(work, 6, processes=2, limit_secs=60.0)
    assert [one for at, one in enumerate(found) if at != 3] == [bytes([at]) for at in (0, 1, 2, 4, 5)]
    assert isinstance(found[3], Lost)
