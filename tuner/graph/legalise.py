"""Operators become tensor functions: as TVM makes them, but for those that it does not make right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.graph import image_norms, max_pools
from tuner.tvm_compat import relax

LEGALISED: Mapping[str, Callable[[Any, Any], Any]] = {**image_norms.LEGALISED, **max_pools.LEGALISED}


def legalise(mod: Any) -> Any:
    """The module with the operators of its functions as calls of tensor functions."""
    return relax.transform.LegalizeOps(dict(LEGALISED))(mod)
