"""The dashboard and the alert rules ask for metrics that exist, with labels that these have; and their page explains all of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pitchpipe.wire.job import JobState
from pitchpipe.wire.measure import FailureKind
from pitchpipe.wire.record import ScheduleAnswer, Tier
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.wake import Wake
from tests.scene import WORKLOAD, Scene, candidates, timed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/observability.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/pitchpipe.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ASKED = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
GROUPED = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"


@pytest.fixture(scope="module")
def shown(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, set[str]], dict[str, set[str]]]]:
    """What /metrics shows once something of each kind has happened: series -> its labels, and label -> its values."""
    path = tmp_path_factory.mktemp("metrics") / "pitchpipe.db"
    shutil.copyfile(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    scene = Scene(database)
    scene.issue(candidates(0, 2))
    app = create_app(Settings(), database, Blobs("memory:///"), Wake())
    metrics = app.state.context.metrics
    metrics.requests.labels("GET", "/healthz", "200").inc()
    metrics.latency.labels("GET", "/healthz").observe(0.1)
    metrics.running.labels("request").inc()
    metrics.count_results([timed(candidates(0, 1)[0].digest)])
    metrics.count_answers([ScheduleAnswer(workload=WORKLOAD.digest, tier=Tier.NONE, reason="never tuned")])
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    values = {
        "route": set(app.openapi()["paths"]),
        "status": {str(status.value) for status in HTTPStatus},
        "outcome": {"timed", *(kind.value for kind in FailureKind)},
        "tier": {tier.value for tier in Tier},
        "state": {"queued", "leased", "terminal", *(state.value for state in JobState)},
        "steadiness": {"quiet", "noisy", "unknown"},
    }
    yield series, values
    database.close()


def selectors(expression: str) -> list[tuple[str, str]]:
    """(metric, its label matchers) of a PromQL expression."""
    plain = re.sub(GROUPED, "", re.sub(r"\[[^]]*\]", "", expression))
    return re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{([^}]*)\})?", plain)


def test_selectors_are_found_in_an_expression() -> None:
    asked = 'sum by (le) (rate(a_bucket{x="1",y=~"2|3"}[5m])) / on () group_left () b > 0.25'
    assert selectors(asked) == [("a_bucket", 'x="1",y=~"2|3"'), ("b", "")]


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_exists(name: str, shown: tuple[dict[str, set[str]], dict[str, set[str]]]) -> None:
    series, values = shown
    found = selectors(ASKED[name])
    assert found
    grouped = {label.strip() for labels in re.findall(GROUPED, ASKED[name]) for label in labels.split(",")} - {""}
    for metric, matchers in found:
        assert metric in series
        assert grouped <= series[metric]
        for label, operator, wanted in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in series[metric]
            for each in wanted.split("|") if "~" in operator else [re.escape(wanted)]:
                assert any(re.fullmatch(each, value) for value in values[label]), f"{label} is never {wanted}"


def test_the_page_explains_every_metric_with_its_labels(
    shown: tuple[dict[str, set[str]], dict[str, set[str]]],
) -> None:
    exposed: dict[str, set[str]] = {}
    for name, labels in shown[0].items():
        exposed.setdefault(re.sub(r"_(bucket|sum|count)$", "", name), set()).update(labels - {"le"})
    rows = re.findall(r"^\| `(pitchpipe_\w+)` \|([^|]*)\|", PAGE, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == exposed


def test_the_page_says_what_to_do_about_every_alert() -> None:
    assert re.findall(r"^\| `(Pitchpipe\w+)` \|", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_alerts_wait_and_say_how_grave_they_are() -> None:
    for rule in RULES:
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_panels_lie_beside_each_other_and_ask_the_source_that_is_chosen() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        places |= {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in DASHBOARD["panels"])
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
