"""What /metrics shows: counters of this process, and gauges read from the database when it is asked."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pitchpipe.errors import PitchpipeError
from pitchpipe.wire.measure import Measurement
from pitchpipe.wire.record import ScheduleAnswer
from service.db import Database
from service.store import batches, jobs, leases, workers

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
        self.answers = Counter(
            "pitchpipe_lookup_answers_total",
            "Workloads looked up, by the tier of the answer; answers that still held (304) left out",
            ("tier",),
            registry=self.registry,
        )
        self.registry.register(_Queue(database))

    def count_results(self, results: Iterable[Measurement]) -> None:
        """Adds reported results by outcome: `timed`, or the kind of failure."""
        for result in results:
            self.trials.labels("timed" if result.outcome == "timed" else result.kind.value).inc()

    def count_answers(self, answers: Iterable[ScheduleAnswer]) -> None:
        """Adds answered workloads by tier."""
        for tier, count in Tally(answer.tier for answer in answers).items():
            self.answers.labels(tier.value).inc(count)

    def page(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class _Queue(Collector):
    """What the database knows: candidates of running jobs and jobs by state, workers by steadiness, leases taken back; and
    whether it answers. One transaction per scrape. Every server of a database shows the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterable[Metric]:
        # Registration would otherwise read the database, which may not be migrated yet.
        return []

    def collect(self) -> Iterator[Metric]:
        answers = "Whether this scrape could read the database: 1 or 0"
        candidates, states, unserved = {"queued": 0, "leased": 0, "terminal": 0}, Tally[str](), 0
        try:
            with self._database.reading() as session:
                for _project, job, state in jobs.active(session):
                    counts = batches.counts(session, job)
                    candidates["queued"] += counts.queued
                    candidates["leased"] += counts.leased
                    candidates["terminal"] += counts.terminal
                    unserved += batches.unserved(session, job)
                    states[state.value] += 1
                steadiness = workers.by_steadiness(session)
                expired = leases.expired(session)
        except PitchpipeError:
            # The process's own counters are most wanted when the database is away.
            yield GaugeMetricFamily("pitchpipe_database_up", answers, value=0)
            return
        yield GaugeMetricFamily("pitchpipe_database_up", answers, value=1)
        yield _by(
            "pitchpipe_candidates", "Candidates of running jobs: queue depth, out on leases, ended", "state", candidates
        )
        yield GaugeMetricFamily(
            "pitchpipe_candidates_unserved",
            "Queued candidates, those of paused jobs left out, that no active worker of their project may lease",
            value=unserved,
        )
        yield _by("pitchpipe_jobs", "Jobs that have not ended", "state", states)
        yield _by(
            "pitchpipe_workers",
            "Workers that answer: quiet, noisy (its timings of the reference drift), or unknown (it has not told)",
            "steadiness",
            steadiness,
        )
        yield CounterMetricFamily(
            "pitchpipe_leases_expired",
            "Leases taken back: not renewed in time, or of a worker that started anew",
            value=expired,
        )


def _by(name: str, documentation: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    """A gauge with a series for each value of its only label."""
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for of, value in values.items():
        family.add_metric((of,), value)
    return family
