"""The registry of cost models: versions of a project and kind of target, their marks, and which replaced which.

Cost models are advisory. Which version serves decides how fast a search finds good schedules, and never what is answered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pitchpipe.wire._base import Digest, Instant, Wire
from pitchpipe.wire.target import KindName

MAX_POINTS = 64
"""Candidates of one TaskMarks that are kept as points."""
Share = Annotated[float, Field(ge=0, le=1)]


class CostModelOrigin(StrEnum):
    """Where a version is from."""

    TRAINED = "trained"
    """On the project's own records."""
    PACKAGED = "packaged"
    """It came with the package; it has no parent."""


class CostModelState(StrEnum):
    """What a version does."""

    SERVING = "serving"
    """Searches rank candidates by it. At most one of a project and kind of target."""
    SHADOW = "shadow"
    """It predicts beside the serving one what is measured, until it is decided on. At most one, too."""
    REPLACED = "replaced"
    """It served, and another version does now."""
    REFUSED = "refused"
    """It was found to be worse than the one that served."""
    SUPERSEDED = "superseded"
    """A newer version came before there was enough to decide on this one."""


class TaskMarks(Wire):
    """How well a version ranked some candidates of one workload that it was not trained on, beside its rival: the version
    that served at the time, on the same candidates."""

    workload: Digest
    candidates: int = Field(ge=2)
    pairwise: Share = Field(
        description="share of the pairs of different speed that are in the right order; half a pair for equal scores"
    )
    peak_1: Share = Field(description="speed of the candidate with the best score, over the best speed")
    peak_5: Share = Field(description="mean over j up to 5 of the best speed of the j best scores, over the best speed")
    rival_pairwise: Share | None = Field(default=None, description="of the rival; absent without one")
    points: tuple[tuple[float, float], ...] = Field(
        default=(),
        max_length=MAX_POINTS,
        description="(measured speed over the best speed, 0 of a failure; predicted score) of some of the candidates",
    )


class Marks(Wire):
    """Means over tasks."""

    tasks: int = Field(ge=0, description="held-out workloads, or groups of candidates measured while in the shadow")
    pairwise: Share | None = None
    peak_1: Share | None = None
    peak_5: Share | None = None
    rival_pairwise: Share | None = Field(default=None, description="of the version that served, on the same tasks")


class TrainingData(Wire):
    """What a version was trained on: records of the project."""

    samples: int = Field(ge=0, description="measured candidates, failures included")
    tasks: int = Field(ge=0, description="workloads that they are of")
    since: Instant = Field(description="when the oldest of them was measured")
    until: Instant = Field(description="when the newest of them was")


class CostModelView(Wire):
    """A version."""

    id: str
    target_kind: KindName
    version: int = Field(ge=1, description="counted per project and kind of target")
    origin: CostModelOrigin
    state: CostModelState
    reason: str = Field(description="why it is in this state")
    parent: int | None = Field(
        default=None, description="the version that served when this one was trained, which it was compared with"
    )
    samples: int = Field(ge=0, description="that it was trained on; 0 of a packaged one, whose card tells")
    data: TrainingData | None = Field(default=None, description="absent of a packaged one, and of old ones")
    held_out: Marks = Field(description="on workloads that were kept out of the training of what is judged")
    shadow: Marks | None = Field(default=None, description="on what was measured after it was trained")
    created_at: Instant


class CostModelChange(Wire):
    """A version began to serve."""

    version: int
    replaced: int | None = Field(default=None, description="the version that served before; absent of the first")
    reason: str
    by: str | None = Field(default=None, description="id of the token of who decided; absent where the rule did")
    at: Instant


class CostModelDetail(CostModelView):
    """A version with the tasks behind its marks, and every change of the serving version of its kind of target."""

    held_out_tasks: tuple[TaskMarks, ...] = ()
    shadow_tasks: tuple[TaskMarks, ...] = ()
    changes: tuple[CostModelChange, ...] = Field(default=(), description="newest first, 100 at most")
