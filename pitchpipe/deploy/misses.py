"""Miss feedback: a deployment tells the service which of its workloads are misses, and how often they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pitchpipe.client import Client
from pitchpipe.model.local import LocalModel
from pitchpipe.wire.miss import MAX_REPORTED, MissCount, MissReceipt, MissReport
from pitchpipe.wire.record import LookupResponse
from pitchpipe.wire.target import Target


def missed(response: LookupResponse) -> list[str]:
    """Digests of the workloads that are misses."""
    return [answer.workload for answer in response.answers if answer.tier.is_miss]


def report(
    client: Client,
    model: LocalModel,
    target: Target,
    workloads: Sequence[str],
    *,
    runs: int = 1,
    default_secs: Mapping[str, float] | None = None,
) -> MissReceipt:
    """Counts `runs` more runs of each of the model's workloads. Only where the service knows one of them from no job is the
    model's graph uploaded, without its weights. `default_secs`: what one run takes now, by workload, where it is known.
    """
    counted = 0
    unknown: list[str] = []
    uploaded: str | None = None
    for start in range(0, len(workloads), MAX_REPORTED):
        asked = list(workloads[start : start + MAX_REPORTED])
        for _ in range(2):
            misses = tuple(
                MissCount(workload=digest, runs=runs, default_secs=(default_secs or {}).get(digest)) for digest in asked
            )
            receipt = client.report_misses(MissReport(target=target, model=uploaded, misses=misses))
            counted += receipt.counted
            asked = list(receipt.unknown)
            if not asked:
                break
            uploaded = uploaded or client.upload_model(model.data, name=model.name, format=model.format).id
        unknown += asked
    return MissReceipt(counted=counted, unknown=tuple(unknown))
