"""The dashboard in a real browser, over real processes: a job from its file to its schedule, a server that is killed meanwhile,
what a scope forbids, and whether everybody can use the pages. Chromium is the distribution's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from pitchpipe.wire.job import Scope, TokenRequest
from service.store import tokens
from tests.compiler import models
from tests.fleet import Fleet, until
from tests.patience import PATIENCE_SECS

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[1] / "vendored/axe-core/axe.min.js"
DEMO = Path(__file__).parents[2] / "examples/make_resnet18.py"
PATIENCE_MS = PATIENCE_SECS * 1000
SLOW_SCRIPT_MS = 1000
"""How late scripts come where a page must not depend on their order; longer than a connection of one machine takes to fail."""
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: `apt-get install chromium`")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to run as root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        expect.set_options(timeout=PATIENCE_MS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A server with its coordinator, which can be killed and started again, and a worker."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as made:
        restart(made)
        made.worker("w1")
        until(lambda: made.state("w1"))
        yield made


@pytest.fixture(scope="module")
def texts(fleet: Fleet) -> dict[str, str]:
    """A token of each scope."""
    with fleet.database.transaction() as session:
        return {
            scope.value: tokens.create(session, TokenRequest(project="default", scope=scope)).token
            for scope in (Scope.USER, Scope.WORKER, Scope.ADMIN)
        }


@pytest.fixture
def page(browser: Browser, fleet: Fleet) -> Iterator[Page]:
    """A page that has met no error of scripts or policies and asked no other host, when the test is over."""
    context = browser.new_context(base_url=fleet.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    found = context.new_page()
    errors: list[str] = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)
    found.on(
        "request", lambda asked: errors.append(asked.url) if not asked.url.startswith((fleet.url, "data:")) else None
    )
    yield found
    context.close()
    assert errors == []


def restart(fleet: Fleet) -> None:
    """Kills the server and starts one in its place."""
    port = fleet.url.rpartition(":")[2]
    fleet.processes[0].kill()
    fleet.processes[0].wait()
    listening = fleet.folder / f"port-{len(fleet.processes)}"
    fleet.processes[0] = fleet.spawn("server", "--with-coordinator", "--port", port, "--port-file", str(listening))
    fleet.processes.pop()
    until(listening.exists)


def sign_in(page: Page, token: str, path: str = "/") -> None:
    page.goto(path)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/sign-in" not in url)


def violations(page: Page) -> list[Any]:
    """What axe finds wrong with the page for those who cannot see it or use no mouse."""
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": AXE.read_text()})  # past the policy, which forbids it to pages
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    session.detach()
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]


@pytest.mark.parametrize("demo", [False, pytest.param(True, marks=pytest.mark.long)], ids=["small", "demo"])
def test_a_job_is_submitted_watched_over_a_lost_server_looked_into_and_pinned(
    page: Page, fleet: Fleet, texts: dict[str, str], tmp_path: Path, demo: bool
) -> None:
    file = tmp_path / ("resnet18.onnx" if demo else "tiny <b>network.onnx")
    if demo:  # the file that `make demo` tunes
        subprocess.run([sys.executable, DEMO, file], check=True)
    else:
        file.write_bytes(models.tiny_network().SerializeToString())
    sign_in(page, texts["user"], "/jobs")
    page.get_by_text("Submit a model").click()
    page.get_by_label(re.compile("File")).set_input_files(file)
    page.get_by_label("Trials").fill("12")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job of {file.name}")
    job = page.url.rpartition("/")[2]
    expect(page.locator("#tasks tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Pause the job").click()
    expect(page.locator("#state")).to_contain_text("paused")
    page.get_by_text("Extend the budget").click()
    assert violations(page) == []
    page.get_by_label("More trials").fill("4")
    page.get_by_role("button", name="Extend").click()
    expect(page.locator("#live")).to_contain_text("of 16")
    page.get_by_role("button", name="Resume the job").click()
    expect(page.locator("#state")).not_to_contain_text("paused")
    page.evaluate("window.notLoadedAgain = true")
    points = int(page.locator("figure").get_attribute("data-points") or 0)
    restart(fleet)
    expect(page.locator("#state")).to_have_text("done", timeout=PATIENCE_MS)
    assert page.evaluate("window.notLoadedAgain")
    assert int(page.locator("figure").get_attribute("data-points") or 0) > points
    expect(page.locator("figure canvas")).to_be_visible()
    assert violations(page) == []

    page.locator("#tasks tbody tr").first.get_by_role("link").click()
    expect(page.locator('figure[data-plot="trials"] canvas').first).to_be_visible()
    expect(page.locator("#programs pre").first).to_contain_text("def main", timeout=PATIENCE_MS)
    page.get_by_label("Show").select_option("code")
    page.locator("#programs").get_by_role("button", name="Show").click()
    expect(page.get_by_label("assembly of Baseline")).to_contain_text("ret", timeout=PATIENCE_MS)
    assert violations(page) == []
    page.get_by_role("link", name="Choose among all candidates").click()
    page.locator("#trials").get_by_role("link", name="on the right").last.click()
    expect(page.get_by_role("heading", level=3)).to_have_count(2)
    assert violations(page) == []
    page.get_by_role("link", name="Back to the task").click()
    page.locator("#trials tbody tr").first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Trace")).to_be_visible()
    assert violations(page) == []

    page.get_by_role("link", name="Schedules").click()
    page.get_by_role("button", name=re.compile("^Pin the schedule")).first.click()
    expect(page.get_by_role("button", name=re.compile("^Unpin the schedule"))).to_have_count(1)
    page.get_by_role("button", name=re.compile("^Unpin the schedule")).click()
    expect(page.get_by_role("button", name=re.compile("^Unpin the schedule"))).to_have_count(0)

    expect(page.get_by_role("img", name=re.compile("^Shares of the model's time"))).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="Workers").click()
    page.get_by_role("link", name="w1").click()
    expect(page.get_by_text("Trials a second", exact=True)).to_be_visible()
    assert violations(page) == []

    page.goto("/jobs")
    expect(page.get_by_role("link", name=job)).to_be_visible()


@pytest.mark.long
def test_a_page_whose_first_connections_fail_shows_what_happens_without_being_loaded_again(
    page: Page, fleet: Fleet, texts: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "another.onnx"
    file.write_bytes(models.tiny_network().SerializeToString())
    sign_in(page, texts["user"], "/jobs")
    page.get_by_text("Submit a model").click()
    page.get_by_label(re.compile("File")).set_input_files(file)
    page.get_by_label("Trials").fill("1000000")
    failures: list[Callable[[Route], None]] = [
        lambda route: route.abort("connectionrefused"),
        lambda route: route.fulfill(status=502, content_type="text/html", body="<p>Bad Gateway</p>"),
    ]
    shown: list[str] = []

    def connect(route: Route) -> None:
        shown.append(page.locator("#live").inner_text())
        failures.pop(0)(route) if failures else route.continue_()

    def load_late(route: Route) -> None:
        page.wait_for_timeout(SLOW_SCRIPT_MS)
        route.continue_()

    page.route(re.compile(r"/live\?"), connect)
    page.route(re.compile(r"/(live|plots|hx-sse\.min)\.js$"), load_late)
    with page.expect_response(lambda answer: "/live?" in answer.url and answer.ok):
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url(re.compile(r"/jobs/job_\w+$"))
        page.evaluate("window.notLoadedAgain = true")
    assert failures == []
    assert all("Cancel the job" in text and "Bad Gateway" not in text for text in shown)
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="Cancel the job").click()
    # The other page stays open: Chromium may never close one that is going elsewhere (crbug.com/536385539).
    expect(other.locator("#state")).to_have_text("cancelled")
    expect(page.locator("#state")).to_have_text("cancelled")
    assert page.evaluate("window.notLoadedAgain")


def test_a_table_is_sorted_and_searched_without_loading_the_page_again(
    page: Page, fleet: Fleet, texts: dict[str, str]
) -> None:
    sign_in(page, texts["admin"], "/instance")
    page.evaluate("window.notLoadedAgain = true")
    page.get_by_role("table", name="").first.wait_for()
    page.locator("#tokens").get_by_role("link", name="Scope").click()
    expect(page.locator("#tokens th", has_text="Scope")).to_have_attribute("aria-sort", "ascending")
    page.locator("#tokens").get_by_label("Search in Tokens").fill("bootstrap")
    page.locator("#tokens").get_by_role("button", name="Filter").click()
    expect(page.locator("#tokens tbody tr")).to_have_count(1)
    assert page.evaluate("window.notLoadedAgain")
    assert "tokens.search=bootstrap" in page.url


def test_what_a_scope_forbids_is_refused_in_words(page: Page, texts: dict[str, str]) -> None:
    sign_in(page, texts["worker"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(["Workers", "Instance"])
    answer = page.goto("/jobs")
    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_role("alert")).to_contain_text("scope admin or user")
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_every_page_can_be_used_by_everybody(
    browser: Browser, fleet: Fleet, texts: dict[str, str], scheme: Any, width: int
) -> None:
    context = browser.new_context(
        base_url=fleet.url, color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/sign-in")
    found = {"/sign-in": violations(page)}
    sign_in(page, texts["admin"])
    for path in ("/", "/jobs", "/workers", "/schedules", "/misses", "/cost-models", "/instance", "/jobs/none"):
        page.goto(path)
        found[path] = violations(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    context.close()
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_a_keyboard_is_enough(page: Page, texts: dict[str, str]) -> None:
    page.goto("/sign-in")
    page.keyboard.type(texts["user"])  # the field has the focus
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_documentation_of_the_api_works_without_other_hosts(page: Page) -> None:
    page.goto("/docs")
    expect(page.get_by_text("/v1/schedules/lookup").first).to_be_visible()


@pytest.mark.long
def test_a_database_of_this_machine_is_shown_by_a_link_that_signs_in_once(browser: Browser, tmp_path: Path) -> None:
    database = tmp_path / "own.db"
    environment = os.environ | {"PITCHPIPE_DATABASE_URL": f"sqlite:///{database}"}
    run = [sys.executable, "-m", "pitchpipe.cli.main"]
    subprocess.run([*run, "db", "upgrade"], env=environment, check=True)
    with subprocess.Popen([*run, "dashboard", str(database)], stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            link = shown.stdout.readline().strip()
            assert link.startswith("http://127.0.0.1:")
            page = browser.new_context().new_page()
            page.goto(link)
            expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
            answer = browser.new_context().new_page().goto(link)
            assert answer is not None
            assert answer.status == 401
            busy = subprocess.run([*run, "dashboard", str(database)], capture_output=True, text=True, check=False)
            assert busy.returncode != 0
            assert "in use by another" in busy.stderr
        finally:
            shown.send_signal(signal.SIGINT)
        assert shown.wait(PATIENCE_SECS) == 0
    listed = subprocess.run([*run, "tokens", "list", "--json"], env=environment, capture_output=True, check=True)
    assert all(token["revoked_at"] for token in json.loads(listed.stdout))
