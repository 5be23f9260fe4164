"""Names in an ONNX graph: the values that its nodes may read, and the attributes of the function call around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from pitchpipe.errors import InvalidModel
from tuner.ingest.onnx.values import Value

MAIN_DOMAINS = ("", "ai.onnx")


class Scope:
    """The values that a graph's nodes may read: its own, and those of the graphs around it."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        parent: Scope | None = None,
        declared: Mapping[str, Any] | None = None,
        references: Mapping[str, Any] | None = None,
    ) -> None:
        self.opsets = opsets
        """Domain -> version; the main domain is the empty one."""
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.declared = declared or {}
        """Name -> TypeProto that the file declares, for names whose type ONNX's inference cannot tell."""
        self.references = references or {}
        """Name -> attribute of the function call whose body this is."""
        self.depth: int = 0 if parent is None else parent.depth + 1

    def find(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise InvalidModel(f"tensor {name!r} is made by no node")


def domain_of(proto: Any) -> str:
    """The domain of a node; ONNX's own is the empty one, whichever of its two names is written."""
    return "" if proto.domain in MAIN_DOMAINS else str(proto.domain)


def resolved(proto: Any, scope: Scope) -> Any:
    """The node with attributes of the function call around it in place of references to them."""
    if not any(entry.ref_attr_name for entry in proto.attribute):
        return proto
    copy = onnx.NodeProto.FromString(proto.SerializeToString())
    kept = []
    for entry in copy.attribute:
        if not entry.ref_attr_name:
            kept.append(entry)
        elif entry.ref_attr_name in scope.references:
            value = onnx.AttributeProto.FromString(scope.references[entry.ref_attr_name].SerializeToString())
            value.name = entry.name
            kept.append(value)
    kept = [onnx.AttributeProto.FromString(entry.SerializeToString()) for entry in kept]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    return copy
