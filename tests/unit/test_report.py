"""Reports: figures from a job's view and events, in four forms, with names that somebody else chose."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pitchpipe.cli import report_commands
from pitchpipe.cli.main import main
from pitchpipe.tuning import rendering
from pitchpipe.tuning.inside import Inside
from pitchpipe.tuning.plots import Line, bars, lines
from pitchpipe.tuning.report import Figures, Report, compare, duration, report_of
from pitchpipe.wire.context import WholeRun
from pitchpipe.wire.ids import new_id
from pitchpipe.wire.job import Budget, EventKind, JobEvent, JobState, JobView, Progress, TaskView
from pitchpipe.wire.task import TaskKind
from tuner.tuning.testing import TARGET

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NASTY = "<script>alert('x')</script>|`*_[a](javascript:b)"


def task(number: int, tuned_secs: float | None, **told: Any) -> TaskView:
    given: dict[str, Any] = {
        "name": f"task {number}",
        "weight": 2,
        "trials": 4,
        "untuned_secs": 1.0,
        "bound_share": 0.5,
    }
    return TaskView(
        workload=f"{number:064x}",
        target=TARGET,
        kind=TaskKind.TUNED,
        flops=1e9,
        bytes=1e6,
        failed_trials=0,
        reused=False,
        tuned_secs=tuned_secs,
        **given | told,
    )


def job(*tasks: TaskView, name: str = "net") -> JobView:
    return JobView(
        id=new_id("job"),
        model=new_id("mdl"),
        model_name=name,
        targets=(TARGET,),
        budget=Budget(trials=100),
        seed=0,
        state=JobState.DONE,
        progress=Progress(trials=40, failed_trials=2),
        tasks=tasks,
        created_at=BEGAN,
        started_at=BEGAN,
        finished_at=BEGAN + timedelta(seconds=60),
    )


def events(*best_secs: float | None) -> list[JobEvent]:
    return [
        JobEvent(
            seq=1 + at,
            kind=EventKind.PROGRESS,
            data=Progress(best_secs=secs).model_dump(),
            at=BEGAN + timedelta(seconds=10 * at),
        )
        for at, secs in enumerate(best_secs)
    ]


@pytest.fixture
def report() -> Report:
    figures = Figures(default_secs=1.0, tuned_secs=0.25, peer="eager PyTorch 2", peer_secs=0.5)
    view = job(task(1, 0.05), task(2, 0.15), task(3, None, untuned_secs=None, bound_share=None), name=NASTY)
    view = view.model_copy(update={"progress": Progress(trials=40, failed_trials=2, best_secs=0.8)})
    return report_of(view, events(None, 0.9, 0.4), figures=figures, runs="the tuned build runs")


def test_a_task_has_its_share_of_the_model_its_gain_on_the_baseline_and_its_share_of_the_bound(report: Report) -> None:
    assert [one.name for one in report.tasks] == ["task 2", "task 1", "task 3"]
    assert [one.share for one in report.tasks] == pytest.approx([0.375, 0.125, None])
    assert [one.gain for one in report.tasks] == pytest.approx([1 / 0.15, 20.0, None])
    assert [one.bound_share for one in report.tasks] == [0.5, 0.5, None]
    assert (report.figures.speedup, report.figures.peer_speedup) == (4.0, 2.0)


def test_tasks_without_a_confirmed_time_are_told_and_take_their_part_of_the_model() -> None:
    view = job(task(1, 0.25), task(2, None))
    found = report_of(view.model_copy(update={"progress": Progress(trials=40, best_secs=2.0)}))
    assert [row.share for row in found.tasks] == [0.25, None]
    assert "1 of 2 tasks have no confirmed time and run default schedules: another run goes on" in str(found)
    assert "confirmed" not in str(report_of(job(task(1, 0.25))))
    inside = Inside(
        tried=1, rounds=(), before=WholeRun(run_secs=(2.0,), processes=1), after=WholeRun(run_secs=(1.0,), processes=1),
        changed=(view.tasks[1].workload,), trials=1, build_secs=1.0, search_secs=1.0,
    )  # fmt: skip
    assert report_of(view, inside=inside).unconfirmed_tasks == 0, "a schedule of it won inside the model"
    unknown = report_of(job(task(1, 0.25), task(2, None)))
    assert (unknown.expected_secs, unknown.tasks[0].share) == (None, None)


def test_the_history_has_what_events_tell_of_the_best(report: Report) -> None:
    assert [(point.secs, point.best_secs) for point in report.history] == [(10.0, 0.9), (20.0, 0.4)]


def test_a_running_job_is_plotted_between_its_bound_its_forecast_and_its_baseline() -> None:
    view = job(task(1, 0.2, bound_secs=0.05), task(2, None, bound_secs=0.1)).model_copy(
        update={"state": JobState.TUNING, "finished_at": None, "progress": Progress(forecast_secs=0.5)}
    )
    report = report_of(view, events(3.0, 0.9))
    assert (report.baseline_secs, report.forecast_secs) == (4.0, 0.5)
    assert report.bound_secs == pytest.approx(0.3)
    plot = report.page().plots[0]
    assert all(f"{name}: {value}" in plot for name, value in (("bound", 300), ("forecast", 500), ("baseline", "4e+03")))
    flat = report_of(view.model_copy(update={"state": JobState.DONE}), events(1.0, 0.9))
    assert flat.forecast_secs is None
    assert "baseline: " not in flat.page().plots[0]
    assert "4.000 s" in str(flat)


def test_the_text_has_the_three_figures_and_every_task(report: Report) -> None:
    text = str(report)
    for part in (
        "1.000 s",
        "250.000 ms, 4.00x as fast",
        "500.000 ms; tuned is 2.00x",
        "37.5%",
        "20.00x",
        "50.0%",
        "task 3",
    ):
        assert part in text
    assert "the tuned build runs" in text


def test_what_tuning_inside_the_model_brought_is_told() -> None:
    before, after = (WholeRun(run_secs=(secs,) * 18, processes=3) for secs in (3e-4, 2.94e-4))
    told: dict[str, Any] = {
        "before": before, "after": after, "tried": 30, "rounds": (0.02, 0.0), "trials": 60, "build_secs": 4.0,
        "search_secs": 2.0,
    }  # fmt: skip
    won = report_of(job(task(1, 0.1)), inside=Inside(changed=("1".zfill(64),), **told))
    assert "1 task with other schedules in the model: 300.0 to 294.0 us, 2.0% less" in str(won)
    assert Report.model_validate_json(won.to_json()).inside == won.inside
    lost = report_of(job(task(1, 0.1)), inside=Inside(changed=(), **told))
    assert "none of 30 other schedules is faster in the model for certain" in str(lost)
    none = report_of(job(task(1, 0.1)), inside=Inside(changed=(), **{**told, "before": None, "after": None}))
    for one in (lost, none):
        assert one.inside is not None
        assert one.inside.gain == 0.0
        assert "none of 30" in str(one)
    assert "inside the model" not in str(report_of(job(task(1, 0.1))))


def test_json_is_read_again(report: Report) -> None:
    assert Report.model_validate_json(report.to_json()) == report


class Seen(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attributes

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_file_that_loads_and_runs_nothing(report: Report) -> None:
    evil = report.model_copy(update={"tasks": tuple(one.model_copy(update={"name": NASTY}) for one in report.tasks)})
    for page in (evil.html(), evil._repr_html_()):
        seen = Seen(page)
        assert "script" not in seen.tags
        assert not {"img", "link", "iframe", "object", "a"} & seen.tags
        assert not [name for name, _ in seen.attributes if name.startswith("on") or name in ("src", "href")]
        assert NASTY in seen.text
    assert "default-src 'none'" in evil.html()


def test_markdown_shows_names_as_they_are(report: Report) -> None:
    text = report.markdown()
    assert "\\<script\\>" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = {len(re.findall(r"(?<!\\)\|", row)) for row in rows[-3:]}
    assert cells == {8}


def test_plots_are_well_formed_and_keep_within_their_frame() -> None:
    drawn = [Line(name="<a>", points=((0.0, 5.0), (10.0, 2.0))), Line(name="b", points=((0.0, 4.0),))]
    for plot in (
        lines("t<", "s", "ms", drawn, [("default", 8.0)]),
        bars("shares", [(NASTY, 0.75), ("b", 0.0)]),
        bars("", []),
    ):
        root = ElementTree.fromstring(plot)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(text.attrib["x"]) <= width
            assert 0 <= float(text.attrib["y"]) <= height


def test_a_constant_line_of_zeros_is_drawn() -> None:
    ElementTree.fromstring(lines("t", "s", "ms", [Line(name="a", points=((0.0, 0.0),))], []))


def test_times_have_a_unit_that_fits_them() -> None:
    assert [duration(secs) for secs in (None, 2.0, 0.0125, 34.2e-6)] == ["-", "2.000 s", "12.500 ms", "34.2 µs"]


def test_jobs_are_compared_task_by_task() -> None:
    one, other = report_of(job(task(1, 0.1), task(2, 0.2))), report_of(job(task(2, 0.1), task(3, 0.4)))
    rows = {row[0]: row[1:4] for row in compare(one, other).tables[1].rows}
    assert rows == {
        "task 1": ("100.000 ms", "-", "-"),
        "task 2": ("200.000 ms", "100.000 ms", "2.00x"),
        "task 3": ("-", "400.000 ms", "-"),
    }
    assert "0.60x" in rendering.text(compare(one, other))


class FakeService:
    """What the commands ask of a Client."""

    def __init__(self, *jobs: JobView) -> None:
        self.views = {view.id: view for view in jobs}

    def __call__(self, *_: Any, **__: Any) -> FakeService:
        return self

    def __enter__(self) -> FakeService:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, job: str) -> JobView:
        return self.views[job]

    def events(self, job: str) -> list[JobEvent]:
        return events(0.9, 0.4)


def test_the_commands_write_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = job(task(1, 0.1)), job(task(1, 0.2))
    monkeypatch.setattr(report_commands, "client_of", FakeService(one, other))

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 0
        return capsys.readouterr().out

    file = tmp_path / "report.html"
    assert run("report", one.id, "--html", str(file)) == ""
    assert "<svg" in file.read_text()
    assert json.loads(run("report", one.id, "--json"))["job"] == one.id
    assert run("report", one.id, "--markdown").startswith("# net: done")
    assert "task 1" in run("report", one.id)
    assert [told["job"] for told in json.loads(run("compare", one.id, other.id, "--json"))] == [one.id, other.id]
    assert "0.50x" in run("compare", one.id, other.id)
