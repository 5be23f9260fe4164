"""What every wire type shares: frozen, keyword-only, unknown fields refused, aware UTC times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
"""Version of the wire types; stored with everything that outlives a request."""


class Wire(BaseModel):
    """Base of all wire types."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=False)


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs a zone")
    return value.astimezone(UTC)


Instant = Annotated[datetime, AfterValidator(_utc)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, lower-case hexadecimal")]
Seconds = Annotated[float, Field(gt=0, lt=1e5, description="a measured duration in seconds")]
