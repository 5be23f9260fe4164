"""Our readers by operator, and which operators have none because the standard's own definition is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.ingest.onnx.node import Node

Result = Any
"""A Relax expression, a list with one value for each output, BODY, a FunctionProto to be read in the node's place, or None
where the reader leaves the node to TVM's."""
Reader = Callable[[Node], Result]

BODY = object()
"""A reader's answer where the function body by which the standard defines the operator is to be read."""

READERS: dict[tuple[str, str], Reader] = {}
"""(domain, operator) -> reader; the domain of ONNX itself is the empty one."""


def reader(*operators: str, domain: str = "") -> Callable[[Reader], Reader]:
    """Registers a function as the reader of operators."""

    def register(function: Reader) -> Reader:
        for operator in operators:
            if (domain, operator) in READERS:
                raise ValueError(f"two readers for {operator}")
            READERS[domain, operator] = function
        return function

    return register
