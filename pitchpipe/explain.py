"""Why workloads of a model have no exact schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe import identity
from pitchpipe.artifact import cache_dir
from pitchpipe.client import Client
from pitchpipe.sdk import local_model, requests, resolve_target
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
    wanted = resolve_target(target, cache_dir())
    known = identity.identify(cache_dir(), local_model(model, example_inputs, trust=trust), wanted)
    misses: list[Explanation] = []
    for asked in requests(known, wanted, here=target == "auto"):
        signed = [SignedWorkload(workload=one, **known.signatures[one].model_dump()) for one in asked.workloads]
        misses += service.explain(ExplainRequest(**asked.model_dump(), signatures=tuple(signed))).misses
    return ExplainResponse(misses=tuple(misses))
