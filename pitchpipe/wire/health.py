"""What the service says of itself."""

from __future__ import annotations

from typing import Literal

from pitchpipe.wire._base import Wire


class Health(Wire):
    """Anything but `ok` comes as a problem."""

    status: Literal["ok"] = "ok"
    version: str
