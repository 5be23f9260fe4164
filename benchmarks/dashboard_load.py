"""How fast the dashboard's pages are over a large PostgreSQL, and what a watched job costs the server.

    python benchmarks/dashboard_load.py --json             # a million records
    python benchmarks/dashboard_load.py --json --quick     # 20,000

One browser's connection asks for each page in turns, after one round that is not counted: time from the request to the last
byte, 50th and 95th percentile. Aim: 200 ms at p95. Then one job is watched while it reports a batch a second: the server's
processor time, less that of the same server while the job reports and nobody watches. Aim: 1 % of a core.
The page of two schedules is left out: it waits for a compiler.
"""

from __future__ import annotations

import http.client
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import dashboard_store  # noqa: E402
from environment import environment, parser, show  # noqa: E402
from lookup import Served, cpu_secs, postgres, serving  # noqa: E402

from pitchpipe.wire.job import EventKind, Progress  # noqa: E402
from service.db import Database  # noqa: E402
from service.store import events  # noqa: E402

RECORDS, QUICK_RECORDS = 1_000_000, 20_000
AIM_SECS, AIM_CORE = 0.2, 0.01


class Browser:
    """One connection that is signed in."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        form = {"content-type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/sign-in", urlencode({"token": served.token}), form)
        answer = self._connection.getresponse()
        answer.read()
        self.cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    def get(self, path: str) -> tuple[float, bytes]:
        """(seconds until the last byte, the page). Ends the script unless the page is there."""
        started = time.perf_counter()
        self._connection.request("GET", path, headers={"cookie": self.cookie})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}")
        return time.perf_counter() - started, body


def paths(of: dashboard_store.Filled) -> dict[str, str]:
    """Pages by their names, and the dearest orders and searches of their tables."""
    task = f"/jobs/{of.job}/tasks/3"
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs, searched": "/jobs?jobs.search=model+7&jobs.sort=best_secs",
        "job": f"/jobs/{of.job}",
        "task": task,
        "task, searched": f"{task}?trials.search=build%3A+7&trials.sort=-created_at",
        "record": f"/records/{of.record}",
        "workers": "/workers",
        "worker": f"/workers/{of.worker}",
        "schedules": "/schedules",
        "schedules, sorted": "/schedules?schedules.sort=-speedup&schedules.search=cpu",
        "misses": "/misses",
        "cost models": "/cost-models",
        "cost model": f"/cost-models/{of.cost_model}",
        "instance": "/instance",
    }


def percentile(values: list[float], share: float) -> float:
    """The least of the values that this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def pages(browser: Browser, of: dashboard_store.Filled, rounds: int) -> list[dict[str, Any]]:
    """p50 and p95 of each page, seconds."""
    taken: dict[str, list[float]] = {name: [] for name in paths(of)}
    for turn in range(rounds + 1):
        for name, path in paths(of).items():
            secs, _ = browser.get(path)
            if turn:
                taken[name].append(secs)
    return [
        {"row": "page", "page": name, "p50_secs": percentile(secs, 0.5), "p95_secs": percentile(secs, 0.95)}
        for name, secs in taken.items()
    ]


@contextmanager
def reporting(url: str, job: str) -> Iterator[None]:
    """The job tells of a batch once a second, as the coordinator does."""
    database, ended = Database(url), threading.Event()

    def report() -> None:
        while not ended.wait(1.0):
            with database.transaction() as session:
                events.append(session, job, EventKind.PROGRESS, Progress(trials=1, best_secs=2e-2).model_dump())

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        database.close()


@contextmanager
def watching(served: Served, job: str) -> Iterator[list[bytes]]:
    """A browser that follows the job; the chunks that it got."""
    browser = Browser(served)
    page = browser.get(f"/jobs/{job}")[1].decode()
    live = page.partition('hx-sse:connect="')[2].partition('"')[0].replace("&amp;", "&")
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("GET", live, headers={"cookie": browser.cookie})
    answer, got = connection.getresponse(), []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            got.append(answer.read1())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield got
    ended.set()
    thread.join(5)
    connection.close()


def watched(served: Served, url: str, job: str, secs: float) -> dict[str, Any]:
    """Shares of a core that the server takes with and without somebody who watches."""

    def share() -> float:
        before = cpu_secs(served.process.pid)
        time.sleep(secs)
        return (cpu_secs(served.process.pid) - before) / secs

    with reporting(url, job):
        unwatched = share()
        with watching(served, job) as got:
            time.sleep(2)  # the stream's beginning is a page's price, not a second's
            busy = share()
            parts = b"".join(got).count(b"event: point")
    return {
        "row": "watched",
        "secs": secs,
        "points": parts,
        "core": busy,
        "idle_core": unwatched,
        "cost": busy - unwatched,
    }


def main() -> None:
    arguments = parser(__doc__).parse_args()
    records, rounds, secs = (QUICK_RECORDS, 10, 15.0) if arguments.quick else (RECORDS, 100, 60.0)
    found = environment(records=records, jobs=dashboard_store.JOBS, rounds=rounds)
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder)) as server:
        server.execute("CREATE DATABASE dashboard")
        url = server.url("dashboard")
        of = dashboard_store.fill(url, records)
        with serving(url, records) as served:
            rows = pages(Browser(served), of, rounds)
            rows.append(watched(served, url, of.job, secs))
    slowest = max(rows[:-1], key=lambda row: row["p95_secs"])
    summary = {
        "slowest_page": slowest["page"],
        "slowest_p95_secs": slowest["p95_secs"],
        "aim_secs": AIM_SECS,
        "pages_met": slowest["p95_secs"] <= AIM_SECS,
        "watched_core": rows[-1]["cost"],
        "aim_core": AIM_CORE,
        "watched_met": rows[-1]["cost"] <= AIM_CORE,
    }
    show({"environment": found, "rows": rows, "summary": summary}, arguments.json)


if __name__ == "__main__":
    main()
