"""Lists on the wire: a page, and the cursor of the next one."""

from __future__ import annotations

from pydantic import Field

from pitchpipe.wire._base import Wire
from pitchpipe.wire.cost_model import CostModelView
from pitchpipe.wire.job import JobView, ModelView, TokenView
from pitchpipe.wire.lease import WorkerView
from pitchpipe.wire.miss import MissView
from pitchpipe.wire.record import TuningRecord

MAX_PAGE = 200
"""Most items of one page."""


class Page(Wire):
    """`next_cursor` is absent on the last page; it is opaque and stays valid while its list lives."""

    next_cursor: str | None = Field(default=None, max_length=256)


class ModelPage(Page):
    """A page of models."""

    items: tuple[ModelView, ...]


class JobPage(Page):
    """A page of jobs, without their tasks."""

    items: tuple[JobView, ...] = Field(description="without their tasks")


class RecordPage(Page):
    """A page of records."""

    items: tuple[TuningRecord, ...]


class WorkerPage(Page):
    """A page of workers."""

    items: tuple[WorkerView, ...]


class MissPage(Page):
    """A page of misses."""

    items: tuple[MissView, ...]


class CostModelPage(Page):
    """A page of versions of cost models."""

    items: tuple[CostModelView, ...]


class TokenPage(Page):
    """A page of tokens, without their text."""

    items: tuple[TokenView, ...]
