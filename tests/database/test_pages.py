"""The dashboard's pages over a real store, in process: what each shows, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from pitchpipe.errors import StepDied
from pitchpipe.wire.cost_model import TaskMarks
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import EventKind, JobState, Progress, Scope, TokenRequest
from pitchpipe.wire.lease import WorkerSeconds
from pitchpipe.wire.measure import Failed, FailureKind
from pitchpipe.wire.miss import MissCount, MissReport, ServedCount
from pitchpipe.wire.task import Workload
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.http.auth import SESSION_COOKIE
from service.http.pages import PAGES
from service.http.pages.static import ADDRESS
from service.settings import Settings
from service.store import cost_models, events, job_tasks, jobs, misses, pace, records, sessions, tokens, workers
from service.store.cost_models import NewVersion
from service.wake import Wake
from tests.scene import OTHER_TARGET, TARGET, WORKLOAD, Scene, best, candidates, failed, record, roofline, task, timed

SCRIPT = "<script>alert(1)</script>\"'&{{7*7}}"
EVIL_HOSTS = ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/v1/jobs", "/\x01x")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A service with a project that has one of everything, and browsers."""

    app: Any
    database: Database
    scene: Scene
    tokens: dict[str, str]
    record: str
    cost_model: str
    settings: Settings

    def browser(self, who: str | None = None, url: str = "http://testserver") -> TestClient:
        """A browser, signed in with the token of a scope."""
        found = TestClient(self.app, base_url=url, follow_redirects=False)
        if who is not None:
            assert found.post("/sign-in", data={"token": self.tokens[who]}).status_code == 303
        return found

    @property
    def pages(self) -> list[str]:
        job = self.scene.job
        return [
            *("/", "/jobs", f"/jobs/{job}", f"/jobs/{job}/tasks/0", f"/jobs/{job}/tasks/0/programs"),
            *(f"/records/{self.record}", "/workers", f"/workers/{self.scene.worker}", "/schedules", "/misses"),
            *("/cost-models", f"/cost-models/{self.cost_model}", "/instance"),
        ]


def marks() -> TaskMarks:
    """Of a held-out task."""
    points = ((1.0, 0.9), (0.5, 0.2), (0.0, -0.1))
    of = {"pairwise": 0.8, "peak_1": 1.0, "peak_5": 1.0, "rival_pairwise": 0.6}
    return TaskMarks(workload=WORKLOAD.digest, candidates=8, points=points, **of)


@pytest.fixture
def make_site(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    monkeypatch.setattr("service.http.pages.programs.has_compiler", lambda: False)

    def make(**options: Any) -> Site:
        settings = Settings(
            database_url="sqlite:///unused.db", blob_url="memory:///", poll_secs=0.01, model_check_secs=0, **options
        )
        scene = Scene(database)
        scene.register("worker-b", roofline=roofline())
        proposed = candidates(0, 4)
        scene.issue(proposed)
        grant = scene.granted()
        detail = Failed(candidate=proposed[2].digest, kind=FailureKind.BUILD_ERROR, detail=SCRIPT)
        scene.report(grant, [timed(proposed[0].digest), detail, failed(proposed[1].digest)])
        with database.transaction() as session:
            found = record(candidates(8, 9)[0])
            records.add(session, scene.project, [found])
            records.set_best(session, scene.project, WORKLOAD.digest, TARGET, best(found))
            report = MissReport(target=TARGET, model=scene.model, misses=(MissCount(workload=WORKLOAD.digest, runs=3),))
            misses.report(session, scene.project, report)
            for digest in "de":
                new = NewVersion(digest=digest * 64, samples=100, reason=SCRIPT, held_out=[marks()])
                served = cost_models.add(session, scene.project, "llvm", new)
                cost_models.serve(session, scene.project, "llvm", served, SCRIPT)
            (shown, _), _ = cost_models.list_(session, scene.project, None, None, 10)
            progress = Progress(trials=3, failed_trials=2, best_secs=1e-3)
            jobs.update_progress(session, scene.job, progress, 1.0)
            events.append(session, scene.job, EventKind.PROGRESS, progress.model_dump())
            made = {
                scope.value: tokens.create(
                    session,
                    TokenRequest(
                        project=None if scope is Scope.OPERATOR else scene.name,
                        scope=scope,
                        label=f"{scope.value} {SCRIPT}",
                    ),
                ).token
                for scope in Scope
            }
        app = create_app(settings, database, Blobs("memory:///"), Wake())
        return Site(
            app=app,
            database=database,
            scene=scene,
            tokens=made,
            record=found.id,
            cost_model=shown.id,
            settings=settings,
        )

    return make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


def csrf(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


# --- pages


def test_every_page_is_shown_and_confined(site: Site) -> None:
    browser = site.browser("admin")
    for path in site.pages:
        answer = browser.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_no_page_has_a_script_a_style_or_an_address_that_its_policy_forbids(site: Site) -> None:
    browser = site.browser("admin")
    for path in [*site.pages, "/docs", "/sign-in", "/jobs/none"]:
        text = browser.get(path).text
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:", text), path
        inline = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", text)
        assert set(inline) <= {'<script type="application/json">'}, path
        assert not re.search(r"(?:src|href|action)=\"(?:[a-z]+:)?//", text), path


def test_scripts_and_styles_come_from_this_server(site: Site) -> None:
    browser = site.browser("admin")
    loaded = set()
    for path in (f"/jobs/{site.scene.job}", "/docs"):
        loaded |= set(re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", browser.get(path).text))
    assert len(loaded) >= 8
    for path in loaded:
        answer = TestClient(site.app).get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")


def test_a_file_is_kept_by_browsers_only_under_the_address_that_names_its_contents(site: Site) -> None:
    client = TestClient(site.app)
    answer = client.get("/static/of-another-server/pages.css")
    assert (answer.text, answer.headers["cache-control"]) == (client.get(f"{ADDRESS}/pages.css").text, "no-cache")
    for missing in ("none.css", "vendored", "../templates/base.html", ""):
        assert client.get(f"{ADDRESS}/{missing}").status_code == 404


def test_the_documentation_of_the_api_loads_nothing_from_elsewhere(site: Site) -> None:
    assert "://" not in TestClient(site.app).get("/docs").text


def test_stored_text_is_escaped_wherever_it_is_shown(site: Site) -> None:
    with site.database.transaction() as session:
        jobs.transition(session, site.scene.job, JobState.FAILED, error=SCRIPT)
    browser = site.browser("admin")
    shown = 0
    for path in site.pages:
        text = browser.get(path).text
        assert "<script>alert" not in text, path
        assert "{{7*7}}" in text or "49" not in re.findall(r"&#39;&amp;(\S\S)", text), path
        shown += "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert shown >= 3


def test_what_an_address_says_is_escaped_where_it_is_repeated(site: Site) -> None:
    browser = site.browser("admin")
    asked = {"jobs.search": SCRIPT, f"other{SCRIPT}": SCRIPT}
    assert "<script>alert" not in browser.get("/jobs", params=asked).text
    refused = browser.get("/jobs", params={"jobs.sort": SCRIPT})
    assert (refused.status_code, "<script>alert" in refused.text) == (400, False)
    assert "<script>alert" not in browser.get("/sign-in", params={"next": f"/jobs?{SCRIPT}"}).text
    assert "<script>alert" not in browser.get(f"/jobs/{SCRIPT}").text


def test_a_failure_is_grouped_with_its_messages(site: Site) -> None:
    text = site.browser("user").get(f"/jobs/{site.scene.job}/tasks/0").text
    assert "build error, 2" in text
    assert "a test says so" in text


# --- two schedules of a task


@pytest.fixture
def compiler(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A compiler beside the server that gives every trace a text, whose third line is a script; what it was asked."""
    asked: list[dict[str, Any]] = []

    def run_step(name: str, **given: Any) -> dict[str, Any]:
        assert name == "list_code"
        asked.append(given)
        code = {"lowered": "lowered", "assembly": f"vmovaps {given['trace']}"} if given["compiled"] else {}
        return {"tir": f"def main\n{given['trace']}\n{SCRIPT}", "code": code, "failed": None}

    monkeypatch.setattr("service.http.programs.run_step", run_step)
    monkeypatch.setattr("service.http.pages.programs.has_compiler", lambda: True)
    return asked


def test_the_served_schedule_stands_beside_the_baseline(site: Site, compiler: list[dict[str, Any]]) -> None:
    browser, path = site.browser("user"), f"/jobs/{site.scene.job}/tasks/0"
    assert f'hx-get="{path}/programs"' in browser.get(path).text
    assert compiler == []  # the task's page itself waits for no compiler
    text = browser.get(f"{path}/programs").text
    assert "<script>alert" not in text
    assert re.search(r"<h3>Baseline</h3>", text)
    assert f'Served: <a href="/records/{site.record}">' in text
    assert "<del>[[],[]]</del>" in text
    assert "<ins>[[],[8]]</ins>" in text
    assert "1 lines only left, 1 only right" in text
    assert "outputs checked on 1 input sets" in text
    browser.get(f"{path}/programs")
    assert [(each["trace"], each["compiled"]) for each in compiler] == [("[[],[]]", False), ("[[],[8]]", False)]


def test_any_two_candidates_of_a_task_are_compared_in_any_form(site: Site, compiler: list[dict[str, Any]]) -> None:
    browser, path = site.browser("user"), f"/jobs/{site.scene.job}/tasks/0/programs"
    ids = re.findall(r'aria-label="(rec_\w+) on the left"', browser.get(path).text)
    assert len(ids) == 4
    broken = next(each for each in ids if "build error" in browser.get(f"/records/{each}").text)
    text = browser.get(path, params={"left": broken, "right": ids[0], "form": "code"}).text
    assert "vmovaps" in text
    assert "assembly of Candidate" in text
    assert "&lt;script&gt;" not in re.findall(r"<pre.*?</pre>", text, re.DOTALL)[0]
    for wrong in ("rec_none", SCRIPT[:64]):
        assert browser.get(path, params={"left": wrong}).status_code == 404
    with site.database.transaction() as session:
        stranger = record(candidates(0, 1)[0], target=OTHER_TARGET)
        records.add(session, site.scene.project, [stranger])
    assert browser.get(path, params={"left": stranger.id}).status_code == 404


def test_what_the_compiler_dies_of_is_told_and_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_step(name: str, **given: Any) -> dict[str, Any]:
        asked.append(given["trace"])
        raise StepDied(f"its child died of {SCRIPT}")

    monkeypatch.setattr("service.http.programs.run_step", run_step)
    monkeypatch.setattr("service.http.pages.programs.has_compiler", lambda: True)
    browser, path = site.browser("user"), f"/jobs/{site.scene.job}/tasks/0/programs"
    for _ in range(2):
        text = browser.get(path).text
        assert "its child died of &lt;script&gt;" in text
    assert len(asked) == 4


def test_a_server_without_a_compiler_names_the_command(site: Site) -> None:
    text = site.browser("user").get(f"/jobs/{site.scene.job}/tasks/0/programs").text
    assert f"pitchpipe records show {site.record} --lowered --code" in text
    assert "<pre" not in text


def test_what_is_absent_is_a_page_that_says_so(site: Site) -> None:
    answer = site.browser("user").get("/jobs/job_none")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "no job job_none" in answer.text


def test_another_projects_rows_are_absent(site: Site, database: Database) -> None:
    other = Scene(database)
    browser = site.browser("admin")
    for path in (f"/jobs/{other.job}", f"/jobs/{other.job}/tasks/0", f"/workers/{other.worker}"):
        assert browser.get(path).status_code == 404, path
    assert other.job not in browser.get("/jobs").text


# --- tables


def test_the_overview_tells_what_served_schedules_saved(site: Site, database: Database) -> None:
    browser, scene = site.browser("user"), site.scene
    page = browser.get("/").text
    assert "No deployment has reported runs" in page
    assert "the unscheduled program" in page
    ran = ServedCount(workload=WORKLOAD.digest, runs=5000, record=site.record, secs=1e-3, baseline_secs=4e-3)
    with database.transaction() as session:
        misses.report(session, scene.project, MissReport(target=TARGET, served=(ran,)))
    page = browser.get("/").text
    assert page.count("<dd>15 s</dd>") == 2, "today, and in seven days"
    assert "<dd>5,000, 0</dd>" in page
    assert 'data-plot="savings"' in page
    assert "pitchpipe schedules saved --days 30" in page
    bearer = {"authorization": f"Bearer {site.tokens['user']}"}
    (day,) = browser.get("/v1/schedules/savings", params={"days": 1}, headers=bearer).json()["days"]
    assert (day["runs"], day["baseline_saved_secs"], day["default_runs"]) == (5000, pytest.approx(15.0), 0)


def test_a_table_sorts_searches_filters_and_pages(site: Site) -> None:
    made = {site.scene.submit(trials=n + 1) for n in range(60)} | {site.scene.job}
    browser = site.browser("user")
    seen: list[str] = []
    path: str | None = "/jobs?jobs.sort=best_secs&jobs.state=tuning&jobs.search=MODEL"
    while path is not None:
        text = browser.get(path).text
        seen += re.findall(r'<td><a href="/jobs/(job_\w+)">', text)
        following = re.search(r'<a href="([^"]+)"[^>]* rel="next"', text)
        path = None if following is None else following[1].replace("&amp;", "&")
    assert len(seen) == len(set(seen))
    assert set(seen) == made
    assert seen[0] == site.scene.job  # the only one with a time; those without come last
    assert "Nothing matches" in browser.get("/jobs?jobs.search=no%25such").text


def test_every_table_sorts_by_every_column_in_both_directions(site: Site) -> None:
    browser = site.browser("admin")
    for path in site.pages:
        for href in re.findall(r'<th scope="col"[^>]*><a href="([^"]+)"', browser.get(path).text):
            for flipped in (
                href,
                href.replace(".sort=-", ".sort="),
                href.replace(".sort=", ".sort=-").replace("--", "-"),
            ):
                assert browser.get(flipped.replace("&amp;", "&")).status_code == 200, flipped


def test_every_table_downloads_as_csv_without_formulas(site: Site) -> None:
    browser = site.browser("admin")
    with site.database.transaction() as session:
        tokens.create(session, TokenRequest(project=site.scene.name, scope=Scope.USER, label="=1+1"))
    tables = 0
    for path in site.pages:
        for href in re.findall(r'<a href="([^"]+)" download', browser.get(path).text):
            answer = browser.get(href.replace("&amp;", "&"))
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
            assert len(answer.text.splitlines()[0].split(",")) > 3
            tables += 1
    assert tables >= 10
    assert "'=1+1" in browser.get("/instance?csv=tokens").text


@pytest.mark.parametrize("cursor", ["x", "e30", "WzEsMiwzXQ", "WyItY3JlYXRlZF9hdCIsICJ0ZXh0IiwgImpvYiJd"])
def test_a_cursor_that_no_table_gave_is_refused(site: Site, cursor: str) -> None:
    assert site.browser("user").get(f"/jobs?jobs.cursor={cursor}").status_code == 400


# --- signing in


def test_a_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(site: Site) -> None:
    answer = site.browser().post("/sign-in", data={"token": site.tokens["user"]})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=43200" in cookie
    assert "Secure" not in cookie
    assert site.tokens["user"] not in cookie
    secure = site.browser(url="https://testserver").post("/sign-in", data={"token": site.tokens["user"]})
    assert "Secure" in secure.headers["set-cookie"]


def test_a_wrong_token_signs_nobody_in_and_is_not_repeated(site: Site) -> None:
    answer = site.browser().post("/sign-in", data={"token": "pp_not-a-token"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert "pp_not-a-token" not in answer.text


def test_whoever_is_not_signed_in_is_led_to_the_form_and_back(site: Site) -> None:
    browser = site.browser()
    for path in site.pages:
        answer = browser.get(f"{path}?a=1")
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/sign-in?next=%2F")
    form = browser.get(browser.get("/jobs?a=1").headers["location"]).text
    assert 'name="next" value="/jobs?a=1"' in form
    back = browser.post("/sign-in", data={"token": site.tokens["user"], "next": "/jobs?a=1"})
    assert back.headers["location"] == "/jobs?a=1"


@pytest.mark.parametrize("next", EVIL_HOSTS)
def test_signing_in_leads_nowhere_else(site: Site, next: str) -> None:
    answer = site.browser().post("/sign-in", data={"token": site.tokens["user"], "next": next})
    assert answer.headers["location"] == "/"


def test_a_session_ends_with_its_time_its_token_and_when_one_signs_out(make_site: Callable[..., Site]) -> None:
    site = make_site(token_cache_secs=0)
    browser = site.browser("user")
    site.database.clock_offset_secs += 43201
    assert browser.get("/jobs").status_code == 303
    browser = site.browser("user")
    assert browser.post("/sign-out", data={"csrf": csrf(browser.get("/jobs").text)}).status_code == 303
    assert browser.get("/jobs").status_code == 303
    browser = site.browser("user")
    with site.database.transaction() as session:
        for view in tokens.list_(session)[0]:
            if view.scope is Scope.USER:
                tokens.revoke(session, view.id)
    assert browser.get("/jobs").status_code == 303


def test_signing_out_ends_the_session_and_not_only_the_cookie(site: Site) -> None:
    browser = site.browser("user")
    kept = browser.cookies[SESSION_COOKIE]
    browser.post("/sign-out", data={"csrf": csrf(browser.get("/jobs").text)})
    thief = TestClient(site.app, cookies={SESSION_COOKIE: kept}, follow_redirects=False)
    assert thief.get("/jobs").status_code == 303


def test_a_link_signs_in_once(site: Site) -> None:
    with site.database.transaction() as session:
        token = tokens.authenticate(session, site.tokens["admin"]).token_id
        code = sessions.link(session, token)
    browser = site.browser()
    assert browser.get(f"/sign-in/{code}").status_code == 303
    assert browser.get("/jobs").status_code == 200
    again = site.browser().get(f"/sign-in/{code}")
    assert again.status_code == 401
    assert "set-cookie" not in again.headers
    thief = TestClient(site.app, cookies={SESSION_COOKIE: code}, follow_redirects=False)
    assert thief.get("/jobs").status_code == 303


def test_a_token_makes_a_link_that_may_do_what_the_token_may(site: Site) -> None:
    for who, path in (("user", "/jobs"), ("worker", "/workers"), ("operator", "/instance")):
        asked = site.browser().post("/v1/sessions/links", headers={"authorization": f"Bearer {site.tokens[who]}"})
        assert (asked.status_code, asked.headers["cache-control"]) == (201, "no-store")
        browser = site.browser()
        browser.get(asked.json()["path"])
        assert browser.get(path).status_code == 200
        assert browser.get("/schedules").status_code == (200 if who == "user" else 403)
    assert site.browser("user").post("/v1/sessions/links").status_code == 401


def test_a_cookie_is_no_token_and_a_token_no_cookie(site: Site) -> None:
    browser = site.browser("user")
    cookie = browser.cookies[SESSION_COOKIE]
    assert browser.get("/v1/jobs").status_code == 401
    assert browser.get("/v1/jobs", headers={"authorization": f"Bearer {cookie}"}).status_code == 401
    other = TestClient(site.app, cookies={SESSION_COOKIE: site.tokens["user"]}, follow_redirects=False)
    assert other.get("/jobs").status_code == 303


# --- what changes something


def posts(site: Site) -> dict[str, dict[str, str]]:
    """Every form of the pages, filled in."""
    with site.database.reading() as session:
        token = tokens.list_(session)[0][0].id
    return {
        "/sign-out": {},
        "/jobs": {"target": TARGET.key, "trials": "3"},
        **{f"/jobs/{site.scene.job}/{what}": {} for what in ("cancel", "pause", "resume", "extend")},
        "/schedules/pin": {"workload": WORKLOAD.digest, "target_key": "t", "device_class": "d", "pinned": "true"},
        "/misses/idle-budget": {"trials": "7"},
        **{f"/cost-models/{site.cost_model}/{what}": {} for what in ("promote", "rollback")},
        "/instance/tokens": {"scope": "user"},
        f"/instance/tokens/{token}/revoke": {},
        "/instance/sessions/ses_x/end": {},
    }


def test_every_route_that_changes_something_is_among_those_tested_here(site: Site) -> None:
    known = [re.sub(r"/(tok_\w+|ses_x|job_\w+|cm_\w+)", "/X", path) for path in posts(site)]
    found = {
        re.sub(r"\{\w+\}", "X", route.path)
        for page in PAGES
        for route in page.router.routes
        if isinstance(route, APIRoute) and route.methods - {"GET", "HEAD"}
    }
    assert found - {"/sign-in"} == set(known)


def test_nothing_changes_without_the_forms_own_token(site: Site) -> None:
    browser, other = site.browser("admin"), site.browser("admin")
    stolen = csrf(other.get("/jobs").text)
    for path, values in posts(site).items():
        files = {"file": ("m.onnx", b"x")} if path == "/jobs" else None
        for given in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": stolen}):
            answer = browser.post(path, data=values | given, files=files)
            assert answer.status_code == 403, (path, given)
    with site.database.reading() as session:
        assert jobs.get(session, site.scene.project, site.scene.job).state is JobState.TUNING
        assert misses.budget(session, site.scene.project).trials_per_day == 0


@pytest.mark.parametrize(
    "headers", [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}]
)
def test_nothing_changes_when_the_browser_says_that_another_site_asks(site: Site, headers: dict[str, str]) -> None:
    browser = site.browser("admin")
    token = csrf(browser.get("/jobs").text)
    assert browser.post("/misses/idle-budget", data={"csrf": token, "trials": "7"}, headers=headers).status_code == 403
    assert site.browser().post("/sign-in", data={"token": site.tokens["user"]}, headers=headers).status_code == 403


def test_scopes_are_those_of_the_api(site: Site) -> None:
    allowed = {
        "worker": {"/workers", f"/workers/{site.scene.worker}", "/instance", "/"},
        "operator": {"/instance", "/"},
        "user": set(site.pages),
    }
    for who, paths in allowed.items():
        browser = site.browser(who)
        for path in site.pages:
            status = browser.get(path, follow_redirects=True).status_code
            assert status == (200 if path in paths else 403), (who, path)
    refused = site.browser("worker").get("/jobs")
    assert "scope admin or user" in refused.text
    user = site.browser("user")
    token = csrf(user.get("/jobs").text)
    for path in ("/instance/tokens", "/instance/tokens/tok_x/revoke", "/instance/sessions/ses_x/end"):
        assert user.post(path, data={"csrf": token, "scope": "admin"}).status_code == 403
    assert site.tokens["user"] not in user.get("/instance").text


def test_an_admin_makes_a_token_sees_it_once_and_revokes_it(site: Site) -> None:
    browser = site.browser("admin")
    token = csrf(browser.get("/instance").text)
    made = browser.post("/instance/tokens", data={"csrf": token, "scope": "user", "label": "new one"})
    text = re.search(r'<code id="created">([^<]+)</code>', made.text)
    assert text is not None
    assert made.headers["cache-control"] == "no-store"
    assert text[1] not in browser.get("/instance").text
    with site.database.reading() as session:
        (listed,) = [view for view in tokens.list_(session)[0] if view.label == "new one"]
    second = TestClient(site.app, follow_redirects=False)
    second.post("/sign-in", data={"token": text[1]})
    assert second.get("/jobs").status_code == 200
    assert browser.post(f"/instance/tokens/{listed.id}/revoke", data={"csrf": token}).status_code == 303
    assert second.get("/jobs").status_code == 303


def test_a_session_is_ended_by_an_admin_of_its_project_only(site: Site, database: Database) -> None:
    user, admin = site.browser("user"), site.browser("admin")
    page = admin.get("/instance?sessions.search=user").text
    session_id = re.search(r"/instance/sessions/(ses_\w+)/end", page)
    assert session_id is not None
    other = Scene(database)
    with database.transaction() as session:
        text = tokens.create(session, TokenRequest(project=other.name, scope=Scope.ADMIN)).token
    stranger = TestClient(site.app, follow_redirects=False)
    stranger.post("/sign-in", data={"token": text})
    path = f"/instance/sessions/{session_id[1]}/end"
    assert stranger.post(path, data={"csrf": csrf(stranger.get("/jobs").text)}).status_code == 404
    assert user.get("/jobs").status_code == 200
    assert admin.post(path, data={"csrf": csrf(page)}).status_code == 303
    assert user.get("/jobs").status_code == 303


def test_what_is_pinned_stays_until_it_is_unpinned(site: Site) -> None:
    browser = site.browser("user")
    page = browser.get("/schedules").text
    fields = dict(
        re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page[page.index("/schedules/pin") :])
    )
    faster = record(candidates(9, 10)[0], timed(candidates(9, 10)[0].digest, 5e-4))

    def serve_faster() -> float:
        with site.database.transaction() as session:
            records.add(session, site.scene.project, [faster])
            records.set_best(session, site.scene.project, WORKLOAD.digest, TARGET, best(faster, secs=5e-4))
            found = records.best(session, site.scene.project, WORKLOAD.digest, TARGET)
        assert found is not None
        return found.secs

    assert browser.post("/schedules/pin", data=fields).status_code == 303
    assert serve_faster() == 1e-3
    assert ">Unpin</button>" in browser.get("/schedules").text
    assert browser.post("/schedules/pin", data=fields | {"pinned": "false"}).status_code == 303
    assert serve_faster() == 5e-4


def test_a_job_is_paused_resumed_and_cancelled_and_an_idle_budget_set(site: Site) -> None:
    browser = site.browser("user")
    token = csrf(browser.get("/jobs").text)
    for what, offered in (("pause", "Resume the job"), ("resume", "Pause the job")):
        assert browser.post(f"/jobs/{site.scene.job}/{what}", data={"csrf": token}).status_code == 303
        assert offered in browser.get(f"/jobs/{site.scene.job}").text
    assert browser.post("/misses/idle-budget", data={"csrf": token, "trials": "70"}).status_code == 303
    assert 'value="70"' in browser.get("/misses").text
    assert browser.post(f"/jobs/{site.scene.job}/cancel", data={"csrf": token}).status_code == 303
    assert "cancelled" in browser.get(f"/jobs/{site.scene.job}").text


def test_a_worker_tells_where_its_seconds_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, path = site.browser("worker"), f"/workers/{site.scene.worker}"
    worker = site.scene.register("worker-c")
    assert "measured nothing yet" in browser.get(f"/workers/{worker}").text
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with site.database.transaction() as session:
        for n, secs in enumerate((0, 5, 10, 4000, 4010)):
            candidate = candidates(50 + n, 51 + n)[0]
            result = timed(candidate.digest, 0.5) if n % 2 else failed(candidate.digest)
            told = {"worker": worker, "created_at": at + timedelta(seconds=secs)}
            records.add(session, site.scene.project, [record(candidate, result).model_copy(update=told)])
        found = pace.of_worker(session, site.scene.project, worker)
    assert found == pace.Pace(records=5, secs=20.0)
    text = browser.get(f"/workers/{worker}").text
    assert "0.25" in text
    assert "does not tell where its seconds go" in text
    with site.database.transaction() as session:
        told = WorkerSeconds(total_secs=400.0, build_secs=100.0, check_secs=60.0, time_secs=180.0, wait_secs=20.0)
        workers.touch(session, site.scene.project, worker, seconds=told)
    text = browser.get(f"/workers/{worker}").text
    for part in (
        "Checking outputs</dt><dd>60 s, 15 %",
        "Waiting for others</dt><dd>20 s, 5 %",
        "to measure</dt><dd>40 s, 10 %",
    ):
        assert part in text
    assert browser.get(path).status_code == 200


def test_coverage_is_a_bar_of_the_models_time(site: Site) -> None:
    browser = site.browser("user")
    text = browser.get("/schedules").text
    assert text.count('<rect class="exact" x="0.0000"') == 1
    assert "exact 100 %" in text
    other = Workload(digest=sha256(b"other"), ir="{}")
    job = site.scene.submit(tasks=[task(), task(other)])
    with site.database.transaction() as session:
        job_tasks.update_task(session, job, other.digest, TARGET, untuned_secs=3e-3)
    text = browser.get("/schedules", params={"model": site.scene.model}).text
    assert "exact 25 %, none 75 %" in text
    assert f'href="/jobs/{job}"' in text
    assert Scene(site.database).model not in text


def test_a_jobs_budget_is_extended_while_it_searches(site: Site) -> None:
    browser, path = site.browser("user"), f"/jobs/{site.scene.job}"
    page = browser.get(path).text
    assert 'name="trials"' in page
    assert 'name="seconds"' not in page  # the job has no such bound
    form = {"csrf": csrf(page)}
    assert browser.post(f"{path}/extend", data=form | {"trials": "500"}).status_code == 303
    assert "1,500 trials" in browser.get(path).text
    for wrong in ({}, {"trials": "-1"}, {"trials": "many"}, {"seconds": "5"}, {"trials": "0", "seconds": "nan"}):
        assert browser.post(f"{path}/extend", data=form | wrong).status_code == 400, wrong
    with site.database.transaction() as session:
        jobs.transition(session, site.scene.job, JobState.CONFIRMING)
    assert "Extend the budget" not in browser.get(path).text
    refused = browser.post(f"{path}/extend", data=form | {"trials": "5"})
    assert (refused.status_code, "submit its model anew" in refused.text) == (409, True)


def test_a_file_becomes_a_model_and_a_job(site: Site) -> None:
    browser = site.browser("user")
    token = csrf(browser.get("/jobs").text)
    form = {"csrf": token, "target": TARGET.key, "trials": "12", "seconds": ""}
    answer = browser.post("/jobs", data=form, files={"file": (f"../{SCRIPT}.onnx", b"a model")})
    assert answer.status_code == 303
    page = browser.get(answer.headers["location"]).text
    assert "<script>alert" not in page
    assert "12 trials" in page
    for file, budget, why in (
        (("m.exe", b"x"), "1", "told by its name"),
        (("m.onnx", b""), "1", "empty"),
        (("m.onnx", b"x"), "many", "number of trials"),
        (("m.onnx", b"x"), "", "budget"),
    ):
        refused = browser.post("/jobs", data=form | {"trials": budget}, files={"file": file})
        assert (refused.status_code, why in refused.text) == (400, True), file


# --- live


def test_a_watched_job_sends_what_changed_and_resumes_after_a_loss(site: Site) -> None:
    browser = site.browser("user")
    page = browser.get(f"/jobs/{site.scene.job}").text
    live = re.search(r'hx-sse:connect="([^"]+)"', page)
    assert live is not None
    with site.database.transaction() as session:
        progress = Progress(trials=4, failed_trials=2, best_secs=5e-4)
        seq = events.append(session, site.scene.job, EventKind.PROGRESS, progress.model_dump())
        jobs.cancel(session, site.scene.project, site.scene.job)
    text = browser.get(live[1].replace("&amp;", "&")).text
    assert text.count("event: point") == 1
    assert "0.0005" in text
    assert "cancelled" in text
    assert f'href="/jobs/{site.scene.job}?tasks.sort=' in text
    assert "/live" not in text
    assert "event: end" in text
    resumed = browser.get(live[1].replace("&amp;", "&"), headers={"last-event-id": str(seq)}).text
    assert "event: point" not in resumed
    assert "event: end" in resumed
    assert browser.get("/jobs/job_none/live").status_code == 404


def test_another_replica_shows_the_same_to_who_signed_in_here_and_goes_on_with_a_watched_job(site: Site) -> None:
    browser = site.browser("user")
    app = create_app(site.settings, site.database, Blobs("memory:///"), Wake())
    replica = TestClient(app, cookies=dict(browser.cookies), follow_redirects=False)
    watched = f"/jobs/{site.scene.job}"
    page = browser.get(watched).text
    assert replica.get(watched).text == page
    live = re.search(r'hx-sse:connect="([^"]+)"', page)
    assert live is not None
    with site.database.transaction() as session:
        seen = events.append(
            session, site.scene.job, EventKind.PROGRESS, Progress(trials=4, best_secs=7e-4).model_dump()
        )
        events.append(session, site.scene.job, EventKind.PROGRESS, Progress(trials=5, best_secs=5e-4).model_dump())
        jobs.cancel(session, site.scene.project, site.scene.job)
    resumed = replica.get(live[1].replace("&amp;", "&"), headers={"last-event-id": str(seen)}).text
    assert resumed.count("event: point") == 1
    assert "0.0005" in resumed
    assert "0.0007" not in resumed
    assert replica.post("/sign-out", data={"csrf": csrf(page)}).status_code == 303
    assert browser.get(watched).status_code == 303


def test_a_cost_model_is_rolled_back_and_promoted_and_its_candidates_are_plotted(site: Site) -> None:
    browser = site.browser("user")
    page = browser.get(f"/cost-models/{site.cost_model}").text
    assert "[[0.0,-0.1,0],[0.5,0.2,0],[1.0,0.9,0]]" in page
    token = csrf(page)
    back = browser.post(f"/cost-models/{site.cost_model}/rollback", data={"csrf": token})
    assert back.status_code == 303
    assert back.headers["location"] != f"/cost-models/{site.cost_model}"
    assert "version 2 was rolled back by a user" in browser.get(back.headers["location"]).text
    assert browser.post(f"/cost-models/{site.cost_model}/rollback", data={"csrf": token}).status_code == 409
    assert browser.post(f"/cost-models/{site.cost_model}/promote", data={"csrf": token}).status_code == 303
    assert "promoted by a user" in browser.get("/cost-models").text
