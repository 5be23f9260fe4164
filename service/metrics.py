"""What /metrics shows: counters of this process, and gauges read from the database when it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pitchpipe.errors import PitchpipeError
from pitchpipe.wire.measure import Measurement
from service.db import Database
from service.store import batches, jobs, workers

# A second series per counter that nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]
_LATENCY_BUCKETS_SECS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One registry per app, so that several apps of one process do not add up. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "pitchpipe_requests_total",
            "Requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.latency = Histogram(
            "pitchpipe_request_duration_seconds",
            "Time from a request's arrival to the end of its answer; long polls and event streams left out",
            ("method", "route"),
            buckets=_LATENCY_BUCKETS_SECS,
            registry=self.registry,
        )
        self.shed = Counter("pitchpipe_requests_shed_total", "Requests refused for overload", registry=self.registry)
        self.running = Gauge("pitchpipe_requests_running", "Requests at work", ("kind",), registry=self.registry)
        self.leases = Counter("pitchpipe_leases_total", "Leases granted", registry=self.registry)
        self.trials = Counter(
            "pitchpipe_results_total", "Results reported by workers", ("outcome",), registry=self.registry
        )
        self.registry.register(_Queue(database))

    def count_results(self, results: Iterable[Measurement]) -> None:
        """Adds reported results by outcome: `timed`, or the kind of failure."""
        for result in results:
            self.trials.labels("timed" if result.outcome == "timed" else result.kind.value).inc()

    def page(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class _Queue(Collector):
    """Candidates of running jobs by state, jobs by state, workers by steadiness; one transaction per scrape."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterable[GaugeMetricFamily]:
        # Registration would otherwise read the database, which may not be migrated yet.
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        candidates = GaugeMetricFamily(
            "pitchpipe_candidates", "Candidates of running jobs: queue depth, out on leases, ended", labels=("state",)
        )
        running = GaugeMetricFamily("pitchpipe_jobs", "Jobs that have not ended", labels=("state",))
        answering = GaugeMetricFamily(
            "pitchpipe_workers",
            "Workers that answer: quiet, noisy (its timings of the reference drift), or unknown (it has not told)",
            labels=("steadiness",),
        )
        totals = {"queued": 0, "leased": 0, "terminal": 0}
        states: dict[str, int] = {}
        try:
            with self._database.reading() as session:
                for _project, job, state in jobs.active(session):
                    counts = batches.counts(session, job)
                    totals["queued"] += counts.queued
                    totals["leased"] += counts.leased
                    totals["terminal"] += counts.terminal
                    states[state.value] = states.get(state.value, 0) + 1
                steadiness = workers.by_steadiness(session)
        except PitchpipeError:
            # The process's own counters are most wanted when the database is away.
            return
        for name, value in totals.items():
            candidates.add_metric((name,), value)
        for name, value in states.items():
            running.add_metric((name,), value)
        for name, value in steadiness.items():
            answering.add_metric((name,), value)
        yield from (candidates, running, answering)
