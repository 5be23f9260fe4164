"""Why workloads of a model have no exact schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.child import run_step
from pitchpipe.client import Client
from pitchpipe.plugins import step
from pitchpipe.sdk import MAX_WORKLOADS, local_model
from pitchpipe.tune import detect_target
from pitchpipe.wire.record import ExplainRequest, ExplainResponse, Explanation
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import SignedWorkload


def explain_misses(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: Target | str = "auto",
    client: Client | None = None,
    trust: bool = False,
) -> ExplainResponse:
    """The workloads of a model that have no exact answer, with the nearest stored keys and what tells them apart.

    The model may never have been submitted: what its workloads compute is found out here and sent along, not the model.
    """
    service = client or Client()
    wanted = target if isinstance(target, Target) else detect_target(target)
    found = local_model(model, example_inputs, trust=trust)
    identity = run_step("identify", found.data, model_format=found.format.value, target=wanted.key)
    here = step("fingerprint")("cuda" if wanted.kind == "cuda" else "cpu").device_class if target == "auto" else None
    workloads, signatures = identity["workloads"], identity["signatures"]
    misses: list[Explanation] = []
    for start in range(0, len(workloads), MAX_WORKLOADS):
        part = workloads[start : start + MAX_WORKLOADS]
        request = ExplainRequest(
            target=wanted,
            workloads=tuple(part),
            device_class=here,
            toolchain=identity["toolchain"],
            signatures=tuple(SignedWorkload(workload=workload, **signatures[workload]) for workload in part),
        )
        misses += service.explain(request).misses
    return ExplainResponse(misses=tuple(misses))
