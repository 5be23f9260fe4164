"""Pitchpipe: tune a model once for a whole fleet, fetch the schedules in milliseconds.

Importing this package loads neither TVM nor torch nor SQLAlchemy; names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pitchpipe.async_client import AsyncClient
    from pitchpipe.client import Client
    from pitchpipe.deploy.artifact import CompiledModel
    from pitchpipe.deploy.fetch import fetch
    from pitchpipe.deploy.packs import open_pack
    from pitchpipe.deploy.safe import FallbackWarning, SafeModel, load_safely
    from pitchpipe.errors import PitchpipeError
    from pitchpipe.sdk import load, submit
    from pitchpipe.torch_backend import explain
    from pitchpipe.tuning.call import tune
    from pitchpipe.tuning.tuned import TunedModel
    from pitchpipe.wire.target import Target

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "CompiledModel",
    "FallbackWarning",
    "PitchpipeError",
    "SafeModel",
    "Target",
    "TunedModel",
    "explain",
    "fetch",
    "load",
    "load_safely",
    "open_pack",
    "submit",
    "tune",
]

_HOMES = {
    "AsyncClient": "pitchpipe.async_client",
    "Client": "pitchpipe.client",
    "CompiledModel": "pitchpipe.deploy.artifact",
    "FallbackWarning": "pitchpipe.deploy.safe",
    "PitchpipeError": "pitchpipe.errors",
    "SafeModel": "pitchpipe.deploy.safe",
    "Target": "pitchpipe.wire.target",
    "TunedModel": "pitchpipe.tuning.tuned",
    "explain": "pitchpipe.torch_backend",
    "fetch": "pitchpipe.deploy.fetch",
    "load": "pitchpipe.sdk",
    "load_safely": "pitchpipe.deploy.safe",
    "open_pack": "pitchpipe.deploy.packs",
    "submit": "pitchpipe.sdk",
    "tune": "pitchpipe.tuning.call",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pitchpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
