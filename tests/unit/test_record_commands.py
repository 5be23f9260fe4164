"""What `pitchpipe records show` and `replay` tell of a record, and of its replay elsewhere."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from pitchpipe.cli.record_commands import compared, described, remarks
from pitchpipe.cli.tables import show
from pitchpipe.wire.context import Context, Neighbours
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.measure import Candidate, CheckVerdict, Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.record import RecordView, WonInContext
from pitchpipe.wire.replayed import Circumstance, Replayed
from tests.scene import DEVICE, OTHER_DEVICE, TARGET, TOOLCHAIN, WORKLOAD, failed, record
from workers.replay import differences, disturbed

(CANDIDATE,) = (Candidate.of(WORKLOAD.digest, "[[],[1]]"),)


def timed(secs: float, ratio: float | None = None) -> Timed:
    return Timed(
        candidate=CANDIDATE.digest,
        run_secs=(secs, secs, secs),
        secs_low=secs,
        secs_high=secs,
        check=CheckVerdict(passed=True, max_abs_error=2.5e-7, tolerance=1e-3, input_sets=3),
        build_secs=0.5,
        reference_ratio=ratio,
    )


def view(result: Measurement) -> RecordView:
    return RecordView(record=record(CANDIDATE, result), ir="{}", name="dense_add")


def replayed(result: Measurement, **more: Any) -> Replayed:
    known = {"baseline": timed(4e-3), "disturbed": False, "recorded_disturbed": False} | more
    return Replayed(record="rec_1", target=TARGET, result=result, **known)


def test_a_record_is_told_in_full() -> None:
    told = dict(described(view(timed(2e-3))))
    assert (told["task"], told["workload"], told["target"]) == ("dense_add", WORKLOAD.digest, TARGET.key)
    assert (told["outcome"], told["median ms"], told["95 % interval ms"]) == ("timed", "2", "2 to 2")
    assert (told["largest error"], told["tolerance"]) == ("2.5e-07", "0.001")
    assert "test" in told["measured"]
    assert "detail" not in told
    assert dict(described(view(timed(1.23456e-6))))["median ms"] == "0.001235"


def test_a_failure_is_told_with_its_detail_on_one_line() -> None:
    result = Failed(candidate=CANDIDATE.digest, kind=FailureKind.BUILD_ERROR, detail="two\nlines")
    told = dict(described(view(result)))
    assert (told["outcome"], told["detail"]) == ("build_error", "two lines")
    assert "median ms" not in told


def test_a_record_tells_inside_which_models_it_won() -> None:
    context = Context(neighbours=(Neighbours(before=None, after=sha256(b"after")),))
    times = {"before_secs": 3e-4, "after_secs": 2.9e-4, "at": datetime.now(UTC)}
    won = tuple(WonInContext(context=context, model=name, stands=name == "bert", **times) for name in ("bert", "vit"))
    told = [row[1] for row in described(view(timed(2e-3)).model_copy(update={"won_in": won})) if row[0] == "won inside"]
    assert told[0] == "bert, at 1 kind of place: 0.3000 to 0.2900 ms a run"
    assert told[1].endswith("another won there since")


def test_a_replay_stands_beside_its_record() -> None:
    differing = (Circumstance(subject="driver", recorded="6.1", here="6.8"),)
    found = replayed(timed(1e-3), differences=differing, disturbed=True, recorded_disturbed=True)
    rows = {name: (then, now) for name, then, now in compared(view(timed(2e-3)), found)}
    assert rows["median ms"] == ("2", "1")
    assert rows["baseline ms"] == ("-", "4")
    assert rows["tolerance"] == ("0.001", "0.001")
    told = "\n".join(remarks(view(timed(2e-3)), found))
    assert "4.00 times as fast as the baseline" in told
    assert "another driver: recorded 6.1; here 6.8" in told
    assert "when the record was timed" in told
    assert "this device was disturbed" in told


def test_a_failure_on_either_side_is_told_with_its_side() -> None:
    bad = failed(CANDIDATE.digest, FailureKind.WRONG_OUTPUT)
    found = replayed(bad, baseline=failed("0" * 64, FailureKind.RUN_TIMEOUT))
    rows = {name: (then, now) for name, then, now in compared(view(timed(2e-3)), found)}
    assert rows["outcome"] == ("timed", "wrong_output")
    assert rows["median ms"] == ("2", "-")
    assert rows["baseline ms"] == ("-", "-")
    lines = remarks(view(timed(2e-3)), found)
    assert lines == ["here: wrong_output: a test says so", "the baseline: run_timeout: a test says so"]


def test_only_what_differs_is_a_difference() -> None:
    of = record(CANDIDATE)
    assert list(differences(of, TARGET, DEVICE, TOOLCHAIN, of.measure_version)) == []
    newer = TOOLCHAIN.model_copy(update={"codegen": "llvm 99"})
    moved = OTHER_DEVICE.model_copy(update={"driver": "another"})
    elsewhere = TARGET.model_copy(update={"num_cores": 4})
    found = list(differences(of, elsewhere, moved, newer, of.measure_version + 1))
    assert [each.subject for each in found] == ["target", "device", "driver", "toolchain", "measure version"]
    assert all(each.recorded != each.here for each in found)


def test_a_drifted_heartbeat_and_a_failing_device_are_disturbances_and_a_candidates_own_fault_is_none() -> None:
    assert [disturbed(timed(1e-3, ratio)) for ratio in (None, 1.0, 1.1, 1.3)] == [False, False, False, True]
    assert disturbed(failed(CANDIDATE.digest, FailureKind.DEVICE_ERROR))
    assert not disturbed(failed(CANDIDATE.digest, FailureKind.RUN_TIMEOUT))


def test_nothing_is_cropped_however_narrow_the_terminal_is() -> None:
    narrow = Console(file=io.StringIO(), force_terminal=True, width=60)
    show(narrow, "records [all]", ("record", "workload"), [("rec_" + "0" * 26, "a" * 64)])
    assert isinstance(narrow.file, io.StringIO)
    assert f"rec_{'0' * 26}  {'a' * 64}" in narrow.file.getvalue()
    assert "records [all]" in narrow.file.getvalue()
