"""Records replayed on this machine: what a candidate does again, in the sandbox of a worker, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.cli.main import main
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, CheckVerdict, Failed, FailureKind, Measurement, Timed
from pitchpipe.wire.record import RecordView, TuningRecord
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.hostile import MISDEEDS, harmless, hostile, parallel
from tests.scene import OTHER_DEVICE, OTHER_TARGET, TOOLCHAIN
from tuner.tvm_compat import load_ir
from tuner.workload.digest import workload_digest
from workers.device import detect_target, fingerprint, toolchain

Ended = tuple[int, str, str]
Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `pitchpipe records ...` away from any service."""

    def ended(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as caught:
            main(["records", *arguments, "--url", "http://127.0.0.1:9"])
        return int(caught.value.code or 0), *capsys.readouterr()

    return ended


def program(misdeed: str) -> Workload:
    """A program of tests/hostile.py, under its true digest."""
    ir = hostile(MISDEEDS["llvm"][misdeed]).ir
    return Workload(digest=workload_digest(load_ir(ir)), ir=ir)


def view(workload: Workload, candidate: Candidate, result: Measurement | None = None, **other: Any) -> RecordView:
    """A record of the candidate as this machine's worker would make it, less what is given; timed unless it says otherwise."""
    here = detect_target("llvm")
    check = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=3)
    timed = Timed(candidate=candidate.digest, run_secs=(1e-6,) * 3, check=check, build_secs=0.1)
    known = {"target": here, "device": fingerprint("llvm"), "toolchain": toolchain(here)} | other
    record = TuningRecord(
        id=new_id("rec"),
        workload=workload.digest,
        trace=candidate.trace,
        result=result or timed,
        worker="wrk_test",
        created_at=datetime.now(UTC),
        **known,
    )
    return RecordView(record=record, ir=workload.ir, name="a copy")


def written(found: RecordView, folder: Path) -> str:
    path = folder / "record.json"
    path.write_text(found.model_dump_json())
    return str(path)


def test_a_good_candidate_is_checked_and_timed_beside_the_baseline_and_beside_what_was_recorded(
    run: Run, tmp_path: Path
) -> None:
    workload = program("wrong_output")
    found = view(workload, harmless(workload)[1])
    code, out, _ = run("replay", written(found, tmp_path), "--json")
    assert code == 0
    replayed = json.loads(out)
    assert replayed["recorded"]["result"]["run_secs"] == [1e-6] * 3
    assert replayed["result"]["check"]["passed"]
    assert replayed["result"]["check"]["input_sets"] == 3
    assert replayed["result"]["rule"]["stop"] == replayed["baseline"]["rule"]["stop"] == "confirmed"
    assert replayed["result"]["secs_low"] <= replayed["result"]["secs_high"]
    assert replayed["differences"] == []
    assert isinstance(replayed["disturbed"], bool)


def test_the_baseline_itself_is_replayed_alone(run: Run, tmp_path: Path) -> None:
    workload = program("wrong_output")
    code, out, _ = run("replay", written(view(workload, harmless(workload)[0]), tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["baseline"] is None


def test_what_differs_from_the_recorded_circumstances_is_told(run: Run, tmp_path: Path) -> None:
    workload = program("wrong_output")
    here = detect_target("llvm")
    there = here.model_copy(update={"num_cores": (here.num_cores or 1) + 2})
    found = view(workload, harmless(workload)[1], target=there, device=OTHER_DEVICE, toolchain=TOOLCHAIN)
    code, out, _ = run("replay", written(found, tmp_path))
    assert code == 0
    for subject, recorded in (("device", OTHER_DEVICE.model), ("toolchain", TOOLCHAIN.key), ("target", here.mcpu)):
        assert f"another {subject}: recorded {recorded}" in out
    assert f"built for {here.mcpu} on {here.num_cores} core" in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("misdeed", "kind", "told"),
    [
        ("segfault", FailureKind.RUN_ERROR, "SIGSEGV"),
        ("sleep_for_ever", FailureKind.RUN_TIMEOUT, ""),
        ("wrong_output", FailureKind.WRONG_OUTPUT, "the error is up to 1, tolerance"),
    ],
)
def test_a_candidate_that_crashes_hangs_or_is_wrong_costs_a_child_and_is_reported(
    run: Run, tmp_path: Path, misdeed: str, kind: FailureKind, told: str
) -> None:
    workload = program(misdeed)
    found = view(workload, parallel(workload))
    code, out, _ = run(
        "replay", written(found, tmp_path), "--timeout", "5" if kind is FailureKind.RUN_TIMEOUT else "20"
    )
    assert code == 1
    assert f"here: {kind.value}: " in out
    assert told in out
    assert "baseline ms" in out


def test_a_trace_that_does_not_apply_is_told_by_both(run: Run, tmp_path: Path) -> None:
    workload = program("wrong_output")
    candidate = Candidate.of(workload.digest, '[[["GetSBlock",[],["absent","main"],["b0"]]],[]]')
    result = Failed(candidate=candidate.digest, kind=FailureKind.INVALID_SCHEDULE, detail="it was invalid then")
    path = written(view(workload, candidate, result), tmp_path)
    code, out, err = run("show", path)
    assert code == 1
    assert "it was invalid then" in out
    assert "does not apply" in err
    code, out, _ = run("replay", path)
    assert code == 1
    assert "here: invalid_schedule: " in out


def test_a_record_whose_trace_or_program_is_not_its_own_is_refused(run: Run, tmp_path: Path) -> None:
    workload, other = program("wrong_output"), program("segfault")
    found = view(workload, harmless(workload)[1])
    of_another_trace = found.model_copy(update={"record": found.record.model_copy(update={"trace": BASELINE_TRACE})})
    of_another_program = found.model_copy(update={"ir": other.ir})
    for tampered in (of_another_trace, of_another_program):
        path = written(tampered, tmp_path)
        for command in ("show", "replay"):
            code, out, err = run(command, path)
            assert code == 1
            assert "---" not in out
            assert "do not match their digest" in err


def test_a_device_that_cannot_run_the_target_refuses(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # where nvidia-smi would be
    workload = program("wrong_output")
    arm = Target.parse({"kind": "llvm", "mcpu": "neoverse-n1", "num-cores": 2})
    for target in (OTHER_TARGET, arm):
        code, out, err = run("replay", written(view(workload, parallel(workload), target=target), tmp_path))
        assert (code, out) == (1, "")
        assert "the record is for" in err


def test_what_is_no_record_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    for path in (tmp_path / "empty.json", tmp_path / "absent.json"):
        code, out, err = run("show", str(path))
        assert (code, out) == (2, "")
        assert path.name in err
