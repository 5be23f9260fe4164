"""Why workloads of a model have no exact schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.client import Client
from pitchpipe.deploy import identity
from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.lookup import MAX_WORKLOADS, device_class, resolve_target, service_of
from pitchpipe.model.local import local_model
from pitchpipe.wire.record import ExplainRequest, ExplainResponse, Explanation
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import SignedWorkload


def explain_inexact(
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
    cache = cache_dir()
    wanted = resolve_target(target, cache)
    known = identity.identify(cache, local_model(model, example_inputs, trust=trust), wanted)
    here = device_class(wanted) if target == "auto" else None
    found: list[Explanation] = []
    with service_of(client) as service:
        for at in range(0, len(known.workloads), MAX_WORKLOADS):
            part = known.workloads[at : at + MAX_WORKLOADS]
            request = ExplainRequest(
                target=wanted,
                workloads=part,
                device_class=here,
                toolchain=known.toolchain,
                signatures=tuple(
                    SignedWorkload(workload=workload, **known.signatures[workload].model_dump()) for workload in part
                ),
            )
            found += service.explain(request).misses
    return ExplainResponse(misses=tuple(found))
