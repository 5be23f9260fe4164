"""The commands over a running service: what goes to stdout, and how they exit. A real service, SQLite."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pitchpipe import sdk
from pitchpipe.cli.main import main
from pitchpipe.client import Client
from pitchpipe.embedded import Embedded
from pitchpipe.wire.job import JobState
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.miss import MissCount, MissReport, ServedCount
from pitchpipe.wire.target import Target
from tests.compiler import models

TRIALS = 8


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        assert len(self.out.splitlines()) == 1
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def run(embedded: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line on the service, as whoever holds its token."""
    use(embedded, monkeypatch)

    def ended(*arguments: str, **environment: str) -> Ended:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"PITCHPIPE_{name}", value)
            with pytest.raises(SystemExit) as caught:
                main(list(arguments))
        return Ended(int(caught.value.code or 0), *capsys.readouterr())

    return ended


def use(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PITCHPIPE_URL", client.url)
    monkeypatch.setenv("PITCHPIPE_TOKEN", client._connection.http.headers["Authorization"].removeprefix("Bearer "))
    monkeypatch.setattr("pitchpipe.cli.options.RETRY_SECS", 0.5)


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    path.write_bytes(models.tiny_network().SerializeToString())
    return path


@pytest.fixture(scope="module")
def job(embedded: Client, onnx: Path) -> str:
    """A job that is done, submitted as a user does: by the installed program."""
    token = embedded._connection.http.headers["Authorization"].removeprefix("Bearer ")
    options = ["--url", embedded.url, "--token", token, "--trials", str(TRIALS)]
    command = [sys.executable, "-m", "pitchpipe.cli.main", "jobs", "submit", str(onnx), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("job_")
    assert ended.stderr == ""
    view = embedded.wait(ended.stdout.strip(), timeout_secs=400)
    assert view.state is JobState.DONE, view.error
    return view.id


@pytest.mark.long
def test_watching_a_finished_job_ends_at_once_with_nothing_but_json_on_stdout(run: Run, job: str) -> None:
    plain = run("jobs", "watch", job)
    assert (plain.code, plain.out) == (0, "")
    assert "done" in plain.err
    assert run("jobs", "watch", job, "--json").json()["state"] == "done"


def test_jobs_are_listed_and_shown(run: Run, job: str) -> None:
    listed = run("jobs", "list", "--json").json()
    assert job in [view["id"] for view in listed]
    shown = run("jobs", "show", job, "--json").json()
    assert shown["id"] == job
    assert shown["progress"]["trials"] == TRIALS == sum(task["trials"] for task in shown["tasks"])
    assert job in run("jobs", "list").out
    assert shown["tasks"][0]["name"][:20] in run("jobs", "show", job).out


def test_models_and_workers_are_listed(run: Run, job: str, this_target: Target) -> None:
    (model,) = [view for view in run("models", "list", "--json").json() if view["name"] == "small"]
    assert model["format"] == "onnx"
    (worker,) = run("workers", "list", "--json").json()
    assert Target.parse(worker["target"]) == this_target
    assert model["id"] in run("models", "list").out
    assert worker["steadiness"]["beats"] > 0, "its sandbox told, the daemon reported, the service kept it"
    listed = run("workers", "list").out
    assert worker["id"] in listed
    assert ("noisy" if worker["steadiness"]["noisy"] else "quiet") in listed


def test_a_running_job_is_watched_until_a_timeout_and_cancelled(run: Run, onnx: Path) -> None:
    job = run("jobs", "submit", str(onnx), "--trials", "100000", "--json").json()["id"]
    watched = run("jobs", "watch", job, "--timeout", "0.2", "--json")
    assert watched.code == 124
    assert json.loads(watched.out)["id"] == job
    assert "deadline" in watched.err
    cancelled = run("jobs", "cancel", job)
    assert (cancelled.code, cancelled.out, cancelled.err) == (0, "cancelled\n", "")
    ended = run("jobs", "watch", job)
    assert ended.code == 1
    assert "cancelled" in ended.err


def test_schedules_are_looked_up_by_job_by_model_and_by_file(run: Run, job: str, onnx: Path) -> None:
    by_job = run("schedules", "lookup", job, "--json").json()["answers"]
    model = run("jobs", "show", job, "--json").json()["model"]
    assert {answer["tier"] for answer in by_job} == {"same_arch"}
    assert run("schedules", "lookup", model, "--json").json()["answers"] == by_job
    by_file = run("schedules", "lookup", str(onnx), "--json").json()["answers"]
    assert {a["workload"]: a["best"] for a in by_file} == {a["workload"]: a["best"] for a in by_job}
    assert "same_arch" in run("schedules", "lookup", job).out


@pytest.mark.long
def test_exported_schedules_are_loaded_by_stock_tvm_and_imported_elsewhere(
    run: Run, job: str, tmp_path: Path, this_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.tvm_compat import load_ir, ms, to_tvm_target

    answers = run("schedules", "lookup", job, "--json").json()["answers"]
    exported = run("schedules", "export", job, str(tmp_path / "pair"))
    # Stock TVM has no step for a convolution rewritten by Winograd's algorithm.
    rewritten = [answer for answer in answers if "pitchpipe.rewrite" in answer["best"]["trace"]]
    answers = [answer for answer in answers if answer not in rewritten]
    assert (exported.code, exported.out) == (0, f"{len(answers)}\n")
    assert (f"{len(rewritten)} left out" in exported.err) == bool(rewritten)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "pair"))
    assert len(database) == len(answers)

    with Embedded(f"sqlite:///{tmp_path / 'other.db'}", this_target) as other, other:
        use(other, monkeypatch)
        imported = run("schedules", "import", str(tmp_path / "pair"))
        assert (imported.code, imported.err) == (0, "")
        watched = run("jobs", "watch", imported.out.strip(), "--json").json()
        assert (watched["state"], watched["progress"]["trials"]) == ("done", 0)
        served = run("schedules", "lookup", imported.out.strip(), "--json").json()["answers"]
        assert len(served) == len(answers)
        expected = {answer["workload"]: answer["best"]["trace"] for answer in answers}
        for answer in served:
            best = answer["best"]
            # What was imported (TVM's files write true as 1), or the baseline where this run saw no difference.
            same = json.loads(best["trace"]) == json.loads(expected[answer["workload"]])
            assert same or best["record"] is None
            if expected[answer["workload"]] != BASELINE_TRACE:  # stock TVM has no use for a record without a schedule
                program = load_ir(other.workload(answer["workload"]).ir)
                assert database.query_tuning_record(program, to_tvm_target(this_target), "main") is not None
        tuned = {workload: trace for workload, trace in expected.items() if trace != BASELINE_TRACE}
        assert tuned or rewritten, "tuning wins clearly on a convolution"
        for workload, trace in tuned.items():  # Whether its interval lay clear of the baseline's again, noise decides.
            assert json.loads(trace) in [json.loads(each.trace) for each in other.records(workload, timed=True)]


@pytest.mark.parametrize(
    "command",
    [("jobs", "show"), ("jobs", "watch"), ("jobs", "cancel"), ("schedules", "lookup"), ("schedules", "export")],
)
def test_a_job_that_is_not_there_is_not_found(run: Run, tmp_path: Path, command: tuple[str, str]) -> None:
    more = [str(tmp_path / "pair")] if command[1] == "export" else []
    ended = run(*command, "job_" + "0" * 26, *more)
    assert (ended.code, ended.out) == (3, "")
    assert [line.partition(":")[0] for line in ended.err.strip().splitlines()] == ["pitchpipe", "next"]
    assert not (tmp_path / "pair").exists()


@pytest.mark.parametrize("command", ["jobs", "workers", "models"])
def test_a_wrong_token_and_a_service_that_is_not_there_have_codes_of_their_own(run: Run, command: str) -> None:
    refused = run(command, "list", TOKEN="nobody")
    assert (refused.code, refused.out) == (4, "")
    away = run(command, "list", URL="http://127.0.0.1:9")
    assert (away.code, away.out) == (5, "")
    assert "127.0.0.1:9" in away.err


def test_files_that_cannot_be_used_are_named(run: Run, job: str, tmp_path: Path) -> None:
    garbage, suffix, absent = tmp_path / "garbage.onnx", tmp_path / "model.txt", tmp_path / "absent.onnx"
    garbage.write_bytes(b"\x08\x07garbage")
    suffix.touch()
    for path in (garbage, suffix, absent):
        for command in (("jobs", "submit"), ("schedules", "lookup")):
            ended = run(*command, str(path))
            assert (ended.code, ended.out) == (2, ""), path
            assert len(ended.err.strip().splitlines()) == 1
    assert "absent.onnx" in run("jobs", "submit", str(absent)).err
    assert "database_workload.json" in run("schedules", "import", str(tmp_path)).err
    (tmp_path / "database_workload.json").write_bytes(b"\xff\xfe")
    (tmp_path / "database_tuning_record.json").write_text("{")
    assert run("schedules", "import", str(tmp_path)).code == 2
    (tmp_path / "database_workload.json").write_text("not JSON\n[1]\n")
    torn = run("schedules", "import", str(tmp_path))
    assert torn.code == 2
    assert "line 1" in torn.err
    assert run("schedules", "export", job, str(garbage)).code == 2


def test_usage_errors_exit_2(run: Run, onnx: Path) -> None:
    for arguments in (
        ("jobs", "submit", str(onnx), "--trials", "-1"),
        ("jobs", "submit", str(onnx), "--target", "{"),
        ("jobs", "submit", str(onnx), "--target", '{"kind": "abacus"}'),
        ("jobs", "show", "../tokens"),
        ("jobs", "show"),
        ("jobs", "unknown"),
    ):
        ended = run(*arguments)
        assert (ended.code, ended.out) == (2, ""), arguments


def test_a_target_without_a_device_is_refused(run: Run, onnx: Path) -> None:
    ended = run("jobs", "submit", str(onnx), "--target", '{"kind": "llvm", "mcpu": "generic", "num-cores": 77}')
    assert (ended.code, ended.out) == (1, "")
    assert "77" in ended.err


def test_the_doctor_says_what_is_there_and_what_is_wrong(run: Run, tmp_path: Path) -> None:
    sound = run("doctor", "--json", DATABASE_URL=f"sqlite:///{tmp_path / 'new.db'}")
    findings = {finding["subject"]: finding for finding in json.loads(sound.out)}
    assert {"python", "apache-tvm", "target", "device", "toolchain", "threads", "linker", "cache", "database"} <= set(
        findings
    )
    assert findings["target"]["ok"]
    assert "LLVM" in findings["toolchain"]["detail"]
    assert sound.code == (0 if all(finding["ok"] for finding in findings.values()) else 1)

    ill = run("doctor", "--database", "postgresql://nobody@127.0.0.1:9/none", "--json")
    (database,) = [finding for finding in json.loads(ill.out) if finding["subject"] == "database"]
    assert ill.code == 1
    assert not database["ok"]
    assert "WRONG" in run("doctor", "--database", "nonsense").out


def test_what_is_served_can_be_locked_covered_and_packed(run: Run, job: str, onnx: Path, tmp_path: Path) -> None:
    file, pack, key = tmp_path / "pitchpipe.lock", tmp_path / "small.pitchpack", tmp_path / "key.pem"
    lock = ("lock", str(onnx), "--file", str(file))
    assert run(*lock, "--check").code == 1
    assert not file.exists()
    assert run(*lock).code == 0
    text = file.read_text()
    record = re.findall(r'"record":"(rec_\w+)"', text)[0]
    assert run(*lock, "--check").out.startswith(f"{file} unchanged")
    fetched = sdk.fetch(onnx, lock=file)
    assert json.loads(text)["targets"][0]["workloads"].keys() >= fetched.traces.keys() != set()
    file.write_text(text.replace(record, record[:-4] + "0000"))
    stale = run(*lock, "--check")
    assert stale.code == 1
    assert "no such record" in stale.err
    assert run(*lock, "--upgrade").code == 0
    assert file.read_text() == text

    covered = run("coverage", str(onnx), "--json").json()
    assert covered["complete"]
    assert [share["of_known_time"] for share in covered["shares"]] == [1.0, 0.0, 0.0]
    assert "exact" in run("coverage", str(onnx)).out

    assert run("keys", "create", str(key)).code == 0
    assert run("pack", "create", str(onnx), "--out", str(pack), "--key", str(key)).code == 0
    assert run("pack", "verify", str(pack), "--trusted", f"{key}.pub").code == 0
    assert run("pack", "verify", str(pack), TRUSTED_KEYS=str(tmp_path / "none")).code == 1
    assert "not verified" in run("pack", "show", str(pack)).out
    of_pack = run("coverage", str(onnx), "--pack", str(pack), "--trusted", f"{key}.pub", "--json").json()
    assert of_pack["shares"] == covered["shares"]


def test_records_are_listed_shown_and_replayed(run: Run, job: str, tmp_path: Path) -> None:
    listed = run("records", "list", "--json", "--limit", "1000").json()
    assert len(listed) >= TRIALS
    served = run("records", "list", "--served", job, "--json").json()
    answers = run("schedules", "lookup", job, "--json").json()["answers"]
    bests = [answer["best"] for answer in answers if answer["best"]["record"] is not None]
    assert [each["id"] for each in served] == [best["record"] for best in bests] != []
    best = bests[0]
    assert best["record"] in run("records", "list", "--served", job).out
    assert run("records", "list", "--served", job, "--failed").code == 2
    workload = next(each["workload"] for each in listed if each["id"] == best["record"])
    of_one = run("records", "list", "--json", "--workload", workload, "--limit", "2").json()
    assert [each["workload"] for each in of_one] == [workload] * len(of_one) != []
    failures = run("records", "list", "--json", "--failed").json()
    assert failures == [each for each in listed if each["result"]["outcome"] == "failed"][:50]

    shown = run("records", "show", best["record"])
    assert (shown.code, shown.err) == (0, "")
    task = next(task for task in run("jobs", "show", job, "--json").json()["tasks"] if task["workload"] == workload)
    assert workload in shown.out
    assert task["name"] in shown.out
    assert "--- tir" in shown.out
    assert "--- assembly" not in shown.out
    told = run("records", "show", best["record"], "--code", "--json").json()
    assert list(told["listing"]) == ["tir", "assembly", "failed"]
    assert told["record"]["trace"] == best["trace"]
    (tmp_path / "record.json").write_text(json.dumps(told))

    for record in (best["record"], str(tmp_path / "record.json")):
        replayed = run("records", "replay", record, "--json").json()
        assert replayed["record"] == best["record"]
        assert replayed["result"]["check"]["passed"]
        assert replayed["baseline"]["outcome"] == "timed"
        assert replayed["differences"] == []
    for record, code in (("rec_" + "0" * 26, 3), (str(tmp_path / "absent.json"), 2)):
        assert run("records", "show", record).code == run("records", "replay", record).code == code


def test_what_was_missed_is_listed_and_the_budget_for_it_is_set(run: Run, embedded: Client, job: str) -> None:
    assert run("misses", "budget", "7", "--json").json() == {"trials_per_day": 7, "spent_today": 0}
    assert run("misses", "budget").out == "7 trials a day, 0 granted today\n"
    run("misses", "budget", "0")
    # Only now: an idle worker would begin at once.
    task, target = embedded.job(job).tasks[0], embedded.job(job).targets[0]
    embedded.report_misses(MissReport(target=target, misses=(MissCount(workload=task.workload, runs=3),)))
    listed = run("misses", "list", "--json", "--target", target.key).json()
    assert (task.workload, 3) in [(one["workload"], one["runs"]) for one in listed]
    assert task.workload[:16] in run("misses", "list").out


def test_what_served_schedules_saved_is_told_by_day(run: Run, embedded: Client, job: str) -> None:
    found = next(embedded.records(embedded.job(job).tasks[0].workload, timed=True))
    ran = ServedCount(workload=found.workload, runs=2000, record=found.id, secs=1e-3, baseline_secs=2e-3)
    assert embedded.report_misses(MissReport(target=found.target, served=(ran,))).counted == 1
    days = run("schedules", "saved", "--json").json()["days"]
    assert len(days) == 7
    assert sum(day["runs"] for day in days) == 2000
    assert sum(day["baseline_saved_secs"] for day in days) == pytest.approx(2.0)
    assert "together" in run("schedules", "saved", "--days", "2").out
