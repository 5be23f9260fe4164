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
    items: tuple[ModelView, ...]


class JobPage(Page):
    items: tuple[JobView, ...] = Field(description="without their tasks")


class RecordPage(Page):
    items: tuple[TuningRecord, ...]


class WorkerPage(Page):
    items: tuple[WorkerView, ...]


class MissPage(Page):
    items: tuple[MissView, ...]


class CostModelPage(Page):
    items: tuple[CostModelView, ...]


class TokenPage(Page):
    items: tuple[TokenView, ...]
