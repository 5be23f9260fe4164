"""Look-ups against a real server on a real PostgreSQL with a million served schedules.

    python benchmarks/lookup.py --folder ~/.cache/pitchpipe-lookup            # fills the databases first, once
    python benchmarks/lookup.py --folder ~/.cache/pitchpipe-lookup --json

One `pitchpipe server` process, PostgreSQL and the load generator share the machine's cores. PostgreSQL's buffers are a
quarter of the memory, as its manual advises for a machine of its own. Rows:

    closed loop   1, 8 and 64 clients, each asking again as soon as it was answered, for 1 and for 30 workloads
    open loop     500 requests/s (Poisson) on 64 connections, for 1 and for 30 workloads, and with the tag of an answer
                  that still holds, three times over; latencies count from when a request was due
    growth        one client on 10 thousand and on 1 million records, by turns

p99_ms is that of one workload in the open loop, the middle one of the three; growth the larger of both request sizes' ratio
of medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment, parser, show

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import lookup_store  # noqa: E402
import psycopg  # noqa: E402

from tests.postgres import PostgresServer, start_postgres  # noqa: E402

RATE = 500.0
KEYS = (1, 30)
CLIENTS = (1, 8, 64)
OPEN_CLIENTS, OPEN_RUNS = 64, 3
KNOWN_BODIES = 200
GROWTH_ROUNDS = 6
START_SECS = 60.0


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running `pitchpipe server` and what its database holds."""

    port: int
    token: str
    bests: int
    process: subprocess.Popen[bytes]

    def load(self, keys: int, clients: int, secs: float, **more: Any) -> dict[str, Any]:
        """One run of the generator, in a process of its own."""
        order = {
            "port": self.port,
            "token": self.token,
            "workloads": self.bests // len(lookup_store.TARGETS),
            "target": lookup_store.ASKING.attributes(),
            "device_class": lookup_store.DEVICE.device_class,
            "toolchain": lookup_store.TOOLCHAIN.key,
            "keys": keys,
            "clients": clients,
            "secs": secs,
            "warm_secs": 0.5,
            "seed": secrets.randbelow(1 << 31),
            **more,
        }
        program = [sys.executable, str(Path(__file__).with_name("http_load.py"))]
        before = cpu_secs(self.process.pid)
        started = time.monotonic()
        done = subprocess.run(program, input=json.dumps(order), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        server_cpu = (cpu_secs(self.process.pid) - before) / (time.monotonic() - started)
        found: dict[str, Any] = json.loads(done.stdout)
        if set(found["statuses"]) - {"200", "304"}:
            raise SystemExit(f"not every look-up was answered: {found['statuses']}")
        return {"keys": keys, "clients": clients, "records": self.bests, "server_cpu": server_cpu, **found}


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_secs(pid: int) -> float:
    """Processor time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[PostgresServer]:
    """The server whose files are in the folder, made if there are none. It runs as another user than root."""
    kept = folder / "postgres.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        server = PostgresServer(binaries=Path(found["binaries"]), folder=folder, user=found["user"])
    else:
        server = start_postgres(folder)
        kept.write_text(json.dumps({"binaries": str(server.binaries), "user": server.user}))
        server.run("pg_ctl", "-D", str(folder / "data"), "-m", "fast", "-w", "stop")
    server.start(f"-c shared_buffers={_memory_bytes() // 4 >> 20}MB")
    try:
        yield server
    finally:
        server.run("pg_ctl", "-D", str(folder / "data"), "-m", "fast", "-w", "stop")


def filled(server: PostgresServer, bests: int, parts: int) -> str | None:
    """URL of the database with so many bests, after storing at most so many parts of them; None if more are to come."""
    name, draft = f"lookup_{bests}", f"lookup_{bests}_draft"
    with psycopg.connect(server.url("postgres")) as connection:
        there = {found for (found,) in connection.execute("SELECT datname FROM pg_database")}
    if name in there:
        return server.url(name)
    server.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
    server.execute("SELECT pg_reload_conf()")
    if draft not in there:
        server.execute(f"CREATE DATABASE {draft}")
    for _ in range(parts):
        if lookup_store.fill(server.url(draft), bests):
            server.execute(f"ALTER DATABASE {draft} RENAME TO {name}")
            return server.url(name)
    return None


def warm(url: str) -> None:
    """Reads all that look-ups read, as a service has after some hours."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT count(DISTINCT workload), sum(length(trace)) FROM best")


@contextlib.contextmanager
def serving(url: str, bests: int) -> Iterator[Served]:
    """A `pitchpipe server` on that database."""
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as scratch:
        port_file = Path(scratch) / "port"
        command = [sys.executable, "-m", "pitchpipe.cli.main", "server", "--port", "0", "--port-file", str(port_file)]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PITCHPIPE_DATABASE_URL": url,
            "PITCHPIPE_BLOB_URL": "memory:///",
            "PITCHPIPE_BOOTSTRAP_TOKEN": token,
            "PITCHPIPE_LOG_LEVEL": "warning",
        }
        process = subprocess.Popen(command, env=environ)
        try:
            deadline = time.monotonic() + START_SECS
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the server does not start")
                time.sleep(0.05)
            yield Served(port=int(port_file.read_text()), token=token, bests=bests, process=process)
        finally:
            process.terminate()
            process.wait(30)


def growth(small: Served, large: Served, secs: float) -> list[dict[str, Any]]:
    """Medians of one client on both, by turns."""
    rows = []
    for keys in KEYS:
        medians: dict[int, list[float]] = {small.bests: [], large.bests: []}
        for turn in range(GROWTH_ROUNDS):
            for served in (small, large) if turn % 2 else (large, small):
                medians[served.bests].append(served.load(keys, 1, secs)["p50_secs"])
        few, many = (statistics.median(medians[each.bests]) for each in (small, large))
        rows.append({"row": "growth", "keys": keys, "small_secs": few, "large_secs": many, "ratio": many / few})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """What the claims are about; None of what was not measured."""

    def p99(name: str, keys: int) -> float | None:
        found = [1e3 * row["p99_secs"] for row in rows if (row["row"], row["keys"]) == (name, keys)]
        return statistics.median(found) if found else None

    return {
        "p99_ms": p99("open loop", 1),
        "p99_ms_30_keys": p99("open loop", 30),
        "p99_ms_unchanged": p99("open loop, unchanged", 30),
        "growth": max((row["ratio"] for row in rows if row["row"] == "growth"), default=None),
    }


def join(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of several, each with `--only` a part of it, made on one machine."""
    rows = [row for result in results for row in result["rows"]]
    return {"environment": results[0]["environment"], "rows": rows, "summary": summary(rows)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="keeps the filled databases; a temporary one by default")
    arguments.add_argument("--records", type=int, default=1_000_000, help="bests in the large database")
    arguments.add_argument("--parts", type=int, default=1 << 30, help="fill no more than so many parts, then end")
    arguments.add_argument("--only", choices=("fill", "growth", "closed", "open"), help="a part of it")
    arguments.add_argument("--join", type=Path, nargs="+", help="print one result of these, and measure nothing")
    options = arguments.parse_args()
    if options.join:
        show(join([json.loads(path.read_text()) for path in options.join]), options.json)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    few, many = (1_000, 20_000) if options.quick else (10_000, options.records)
    secs = 0.5 if options.quick else 2.0
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        server = stack.enter_context(postgres(folder))
        urls = {bests: filled(server, bests, options.parts) for bests in (few, many)}
        small_url, large_url = urls[few], urls[many]
        if options.only == "fill" or small_url is None or large_url is None:
            return
        result: dict[str, Any] = {"environment": environment(records=many, rate=RATE), "rows": []}
        rows = result["rows"]
        for url in (small_url, large_url):
            warm(url)
        large = stack.enter_context(serving(large_url, many))
        for keys in KEYS:
            large.load(keys, 8, secs)
        if options.only in (None, "open"):
            for keys, more in OPEN_RUNS * ((1, {}), (30, {}), (30, {"known": True, "bodies": KNOWN_BODIES})):
                name = "open loop, unchanged" if more else "open loop"
                rows.append({"row": name, **large.load(keys, OPEN_CLIENTS, 4 * secs, rate=RATE, **more)})
        if options.only in (None, "closed"):
            rows += [{"row": "closed loop", **large.load(keys, n, secs)} for keys in KEYS for n in CLIENTS]
        if options.only in (None, "growth"):
            small = stack.enter_context(serving(small_url, few))
            small.load(30, 1, secs)
            rows += growth(small, large, secs / 5)
        result["summary"] = summary(rows)
        show(result, options.json)


if __name__ == "__main__":
    main()
