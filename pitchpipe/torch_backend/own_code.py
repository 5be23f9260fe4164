"""The code of this package as a part of keys: what it decided before a change of it is decided anew."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pitchpipe.deploy.identity import code_digest, preparation
from pitchpipe.wire.ids import json_digest


@cache
def own_code() -> str:
    """Digest of the code that decides what is cut out, converted, compiled and compared."""
    return json_digest([preparation(), code_digest([Path(__file__).parent])])
