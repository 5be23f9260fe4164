"""What people see while a job runs and when it has ended."""

import io
from datetime import UTC, datetime

import pytest
import typer
from rich.console import Console

from pitchpipe.cli.job_commands import share_of
from pitchpipe.cli.tables import _peer, interval, milliseconds, roofs, show_tuning, steady
from pitchpipe.tuning.progress import Bar, Lines, _done, describe
from pitchpipe.tuning.progress import Progress as ProgressLine
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import Budget, JobState, JobView, Progress, TaskView
from pitchpipe.wire.lease import Steadiness
from pitchpipe.wire.record import Best
from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.task import TaskKind
from tuner.tuning.testing import TARGET


def job(state: JobState = JobState.TUNING, **progress: object) -> JobView:
    return JobView(
        id=new_id("job"),
        model=new_id("mdl"),
        model_name="net",
        targets=(TARGET,),
        budget=Budget(trials=100),
        seed=0,
        state=state,
        progress=Progress(**progress),
        created_at=datetime.now(UTC),
    )


def task(weight: int = 1, tuned_secs: float | None = None) -> TaskView:
    return TaskView(
        workload="0" * 64,
        name="softmax",
        target=TARGET,
        kind=TaskKind.TUNED,
        weight=weight,
        flops=1.0,
        bytes=1.0,
        trials=0,
        failed_trials=0,
        reused=False,
        tuned_secs=tuned_secs,
    )


def test_the_line_shows_trials_best_and_the_time_left_with_its_interval():
    line = describe(job(trials=40, failed_trials=2, best_secs=0.0125, eta_secs=30, eta_low_secs=20, eta_high_secs=45))
    assert line == "tuning: 40/100 trials, 2 failed, best 12.50 ms, 30 s left (20 to 45)"


def test_the_line_says_how_many_tasks_of_the_sum_are_estimated():
    assert "best 12.50 ms (tasks estimated: 3)" in describe(job(best_secs=0.0125, estimated_tasks=3))


def test_the_line_has_no_best_where_all_of_it_is_estimated():
    view = job(best_secs=0.0125, estimated_tasks=1)
    assert "best" in describe(view)
    assert "best" not in describe(view.model_copy(update={"tasks": (task(),)}))


def test_the_last_line_has_what_was_confirmed():
    ended = job(JobState.DONE, best_secs=0.0125).model_copy(
        update={"tasks": (task(weight=2, tuned_secs=0.008),), "budget": Budget(trials=0)}
    )
    assert describe(ended, 0.05) == "done: 0 trials, confirmed 16.00 ms against 50.00 ms by default"
    assert "best 12.50 ms" in describe(ended.model_copy(update={"state": JobState.CONFIRMING}))


def test_the_line_says_what_was_gained_and_what_is_expected():
    ahead = {"forecast_secs": 0.011, "forecast_low_secs": 0.0105, "forecast_high_secs": 0.0125, "minute_gain": 0.004}
    line = describe(job(trials=40, best_secs=0.0125, gain=0.25, **ahead))
    assert line.endswith("best 12.50 ms, 25% saved, expected 11.00 ms (10.50 ms to 12.50 ms), another minute 0.4%")


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5 %", 0.005), ("0.02", 0.02)])
def test_a_share_is_typed_in_per_cent_or_as_a_number(text: str, share: float):
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "1", "100%", "-1%", "one", "1%%", "nan"])
def test_what_is_no_share_is_refused(text: str):
    with pytest.raises(typer.BadParameter, match="such as 1%"):
        share_of(text)


def test_an_ended_job_has_no_time_left():
    assert "left" not in describe(job(JobState.DONE, eta_secs=30, eta_low_secs=20, eta_high_secs=45))


def test_the_line_compares_the_best_with_the_default_schedules():
    assert "best 12.50 ms against 50.00 ms by default" in describe(job(best_secs=0.0125), default_secs=0.05)


def test_a_pipe_gets_a_plain_line_in_ten_seconds_and_the_last_one(capsys: pytest.CaptureFixture[str]):
    now = 0.0
    with ProgressLine(Lines(clock=lambda: now)) as line:
        for trials in range(50):
            line.show(job(trials=trials, best_secs=0.002))
            now += 0.25
        line.show(job(JobState.DONE, trials=50))
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.splitlines()
    assert [text.split(",")[0] for text in lines] == [f"tuning: {n}/100 trials" for n in (0, 40)] + [
        "done: 50/100 trials"
    ]
    assert all("best 2.00 ms" in text for text in lines[:-1])
    assert "\x1b" not in written.err


def test_without_a_terminal_and_a_notebook_lines_are_shown(capsys: pytest.CaptureFixture[str]):
    with ProgressLine() as line:
        line.show(job())
    assert capsys.readouterr().err.startswith("tuning: 0/100 trials")


def test_a_terminal_gets_a_bar_that_is_gone_in_the_end():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with ProgressLine(Bar(console)) as line:
        line.show(job(trials=50, best_secs=0.002))
    assert "50/100 trials, best 2.00 ms" in text.getvalue()
    assert text.getvalue().rstrip("\r").endswith("\x1b[2K")


def test_the_share_that_is_done_is_that_of_the_budget():
    assert _done(job(trials=25)) == 0.25
    assert _done(job(JobState.DONE)) == 1.0
    timed = job(eta_secs=30).model_copy(update={"budget": Budget(seconds=120)})
    assert _done(timed) == 0.75
    assert _done(timed.model_copy(update={"progress": Progress()})) is None


def test_the_table_has_every_task_and_the_whole_model():
    tasks = [
        {"name": f"task {i}", "weight": 2, "flops": 1e9, "trials": 8, "untuned_secs": 1.0, **told}
        for i, told in enumerate(
            (
                {"tuned_secs": 0.01, "flops_per_sec": 123e9, "bytes_per_sec": 45e9, "bound_share": 0.876},
                dict.fromkeys(("tuned_secs", "flops_per_sec", "bytes_per_sec", "bound_share")),
            )
        )
    ]
    result = {
        "model": "net",
        "device": "a processor",
        "tasks": tasks,
        "untuned_secs": 2.0,
        "default_secs": 0.05,
        "tuned_secs": 0.02,
        "speedup": 2.5,
        "peer": "ONNX Runtime 2",
        "peer_secs": 0.03,
        "peer_speedup": 1.5,
        "max_abs_error": 1e-6,
        "reference": "ONNX Runtime",
        "comparison": {
            "default": {"reference": "ONNX Runtime 1", "input_sets": 3, "error": 1e-7, "tolerance": 1e-3},
            "tuned": {"reason": "it was asked not to"},
        },
        "trials": 16,
        "failed_trials": 0,
        "reused_tasks": 0,
        "replayed_tasks": 0,
        "seconds": 60.0,
    }
    text = io.StringIO()
    show_tuning(result, Console(file=text))
    for part in (
        "task 0",
        "task 1",
        "123.0",
        "45.0",
        "88%",
        "10.000",
        "50.000 ms",
        "20.000 ms, 2.50x as fast",
        "ONNX Runtime 2",
        "30.000 ms; tuned is 1.50x as fast",
        "2000.000 ms",
        "1.00e-06 against ONNX Runtime",
        "60",
    ):
        assert part in text.getvalue()


def test_where_no_peer_is_installed_the_table_says_why():
    result = {"peer": "onnxruntime is not installed", "peer_secs": None}
    assert _peer(result) == [("best peer", "none: onnxruntime is not installed")]


def test_a_worker_is_quiet_noisy_by_how_much_or_unknown():
    def told(ratio: float, noisy: bool) -> Steadiness:
        return Steadiness(reference_secs=ratio, usual_secs=1.0, ratio=ratio, noisy=noisy, beats=1, repeated=0)

    assert [steady(each) for each in (told(1.04, False), told(1.32, True), None)] == ["quiet", "noisy 1.3x", "unknown"]


def test_a_device_is_shown_with_its_roofs():
    levels = tuple(
        MemoryLevel(name=n, inside_bytes=1, bytes_per_sec=rate) for n, rate in (("L2", 3e11), ("memory", 5e10))
    )
    device = Roofline(threads=2, flops_per_sec=5.4e11, levels=levels)
    assert [roofs(each) for each in (device, None)] == [("540", "300/50"), ("-", "-")]


def test_a_served_time_is_shown_with_its_interval():
    best = Best(
        record=None,
        trace="[[],[]]",
        secs=2e-3,
        secs_low=1.9e-3,
        secs_high=2.2e-3,
        baseline_secs=2e-3,
        device_class="0" * 64,
        toolchain="t",
        confirmed_at=datetime.now(UTC),
    )
    assert [interval(each) for each in (best, None)] == ["1.900 to 2.200", "-"]


@pytest.mark.parametrize(
    ("secs", "told"),
    [
        (None, "-"),
        (0.0, "0.000"),
        (2.61e-7, "0.000261"),
        (-2.61e-7, "-0.000261"),
        (1.5e-4, "0.150"),
        (0.0125, "12.500"),
    ],
)
def test_a_time_has_three_digits_at_least(secs: float | None, told: str):
    assert milliseconds(secs) == told


def test_what_goes_on_around_a_job_delays_none_of_its_lines(capsys: pytest.CaptureFixture[str]):
    with ProgressLine(Lines(clock=lambda: 0.0)) as line:
        line.say("net: building it with default schedules")
        line.show(job(forecast_secs=2.5e-6, forecast_low_secs=2e-6, forecast_high_secs=3e-6))
    told = "tuning: 0/100 trials, expected 2.5 µs (2.0 µs to 3.0 µs)"
    assert capsys.readouterr().err.splitlines() == ["net: building it with default schedules", told]
