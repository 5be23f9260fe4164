"""Miss feedback: a deployment tells the service which of its workloads are misses, and how often they run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from pitchpipe.client import Client
from pitchpipe.deploy.identity import Identity
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.model.local import LocalModel
from pitchpipe.wire.miss import MAX_REPORTED, MissCount, MissReceipt, MissReport
from pitchpipe.wire.target import Target


def missed(schedules: Schedules, known: Identity) -> dict[str, int]:
    """Workloads of the model that are misses, with how often they occur in one run of it.

    None where the answers are earlier ones: they were reported when they came.
    """
    if schedules.stale is not None:
        return {}
    misses = {answer.workload for answer in schedules.response.answers if answer.tier.is_miss}
    return {workload: times for workload, times in known.weights.items() if workload in misses}


def report(
    client: Client,
    model: LocalModel,
    target: Target,
    runs: Mapping[str, int],
    *,
    default_secs: Mapping[str, float] | None = None,
) -> MissReceipt:
    """Counts so many more runs of workloads of the model. Only where the service knows one of them from no job is the
    model's graph uploaded, without its weights. `default_secs`: what one run takes now, by workload, where it is known.

    Raises errors of pitchpipe.errors.
    """
    workloads, counted = list(runs), 0
    unknown: list[str] = []
    uploaded: str | None = None
    for start in range(0, len(workloads), MAX_REPORTED):
        asked = workloads[start : start + MAX_REPORTED]
        for _ in range(2):
            misses = tuple(
                MissCount(workload=digest, runs=runs[digest], default_secs=(default_secs or {}).get(digest))
                for digest in asked
            )
            receipt = client.report_misses(MissReport(target=target, model=uploaded, misses=misses))
            counted += receipt.counted
            asked = list(receipt.unknown)
            if not asked:
                break
            uploaded = uploaded or client.upload_model(model.data, name=model.name, format=model.format).id
        unknown += asked
    return MissReceipt(counted=counted, unknown=tuple(unknown))


def report_beside(
    service: Callable[[], contextlib.AbstractContextManager[Client]],
    target: Target,
    missed: Sequence[tuple[LocalModel, Mapping[str, int]]],
) -> None:
    """Reports what each model missed from a thread that nobody waits for. Failing costs the report and nothing else."""

    def send() -> None:
        with contextlib.suppress(Exception), service() as client:
            for model, runs in missed:
                if runs:
                    report(client, model, target, runs)

    if any(runs for _, runs in missed):
        threading.Thread(target=send, name="pitchpipe-misses", daemon=True).start()
