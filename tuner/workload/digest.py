"""Workload digests: SHA-256 over a canonical form of a tensor program.

The canonical form is a depth-first walk of the program's objects through TVM's reflection. It keeps types, shapes,
constants, attributes and the order of statements, and drops what is only a label or derived: names of variables,
buffers and blocks, source spans, the global symbol, the function's own type. A variable is written in full where it is
first met and as its number afterwards, so programs are equal exactly when some renaming makes them equal. Maps are
walked in key order. The form is salted with IR_SCHEMA_VERSION and depends on no process, host, hash seed or Python
version.

A digest is stable for one version of TVM's object schema. A TVM that renames a class or adds a field gives other
digests; tests/golden then fails, and IR_SCHEMA_VERSION must be raised on purpose.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from typing import Any

from pitchpipe.errors import InvalidModel
from tuner.tvm_compat import IRModule, PrimFunc, tvm_ffi

IR_SCHEMA_VERSION = 1
"""Version of the canonical form; part of every digest."""

DROPPED = {
    ("ir.Var", "name"),
    ("ir.GlobalVar", "name_hint"),
    ("ir.GlobalVar", "ty"),
    ("s_tir.SBlock", "name_hint"),
    ("tirx.PrimFunc", "ty"),
}
"""Fields left out, next to every `span`: labels and derived types."""

DROPPED_ATTRIBUTES = frozenset({"global_symbol"})
"""Function attributes left out: the name under which a function is linked."""

_MAX_DEPTH = 1000
"""Deepest nesting of a program that is accepted. Real ones nest 20 to 40 deep, a concatenation one more per operand."""

_FRAMES_PER_LEVEL = 6
"""Python stack frames per level of nesting, at most."""


def workload_digest(mod: Any) -> str:
    """Digest of an IRModule that holds one PrimFunc. Raises InvalidModel for any other module."""
    functions = [function for _, function in mod.functions.items()] if isinstance(mod, IRModule) else []
    if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
        raise InvalidModel("a workload is a module of exactly one tensor function")
    return primfunc_digest(functions[0])


def primfunc_digest(function: Any) -> str:
    """Digest of a PrimFunc: equal to workload_digest of a module that contains only it."""
    salt = hashlib.sha256(f"pitchpipe workload, IR schema {IR_SCHEMA_VERSION}".encode())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _MAX_DEPTH * _FRAMES_PER_LEVEL))
    try:
        salt.update(_Walk().digest(function))
    finally:
        sys.setrecursionlimit(limit)
    return salt.hexdigest()


class _Walk:
    """One walk over one program. The digest of a node is a hash over its type and the digests of its fields; a variable that
    was met before is represented by its number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.keep_alive: list[Any] = []
        self.memo: dict[int, bytes] = {}
        self.depth = 0

    def digest(self, value: Any) -> bytes:
        if value is None:
            return b"n"
        if isinstance(value, bool):
            return b"t" if value else b"f"
        if isinstance(value, int):
            return b"i%d;" % value
        if isinstance(value, float):
            return b"d" + struct.pack("<d", value)
        if isinstance(value, str):
            text = value.encode()
            return b"s%d:" % len(text) + text
        if isinstance(value, tvm_ffi.dtype):
            return self.digest(str(value))
        if isinstance(value, tvm_ffi.Tensor):
            array = value.numpy()
            data = hashlib.sha256(array.tobytes()).digest()
            return self._node("tensor", [self.digest(str(value.dtype)), self.digest(list(array.shape)), data])
        if isinstance(value, (list, tuple, tvm_ffi.Array)):
            return self._node("list", [self.digest(item) for item in value])
        if isinstance(value, (dict, tvm_ffi.Map)):
            return self._map(value)
        return self._object(value)

    def _map(self, value: Any) -> bytes:
        entries = [(key, item) for key, item in value.items() if key not in DROPPED_ATTRIBUTES]
        if all(isinstance(key, str) for key, _ in entries):
            entries.sort(key=lambda entry: entry[0])
            return self._node("map", [part for key, item in entries for part in (self.digest(key), self.digest(item))])
        # Keys that are objects have been met before (variables) or hold none, so their digests do not depend on order.
        pairs = sorted((self.digest(key), item) for key, item in entries)
        return self._node("map", [part for key, item in pairs for part in (key, self.digest(item))])

    def _object(self, value: Any) -> bytes:
        info = getattr(type(value), "__tvm_ffi_type_info__", None)
        if info is None:
            raise InvalidModel(f"a workload cannot hold a value of type {type(value).__name__}")
        handle = value.__chandle__()
        is_variable = info.type_key == "ir.Var"
        if is_variable and handle in self.numbers:
            return b"v%d;" % self.numbers[handle]
        if handle in self.memo:
            return self.memo[handle]
        before = len(self.numbers)
        if is_variable:
            self.numbers[handle] = before
            # The address of a freed object may be reused, so the walk keeps the variables that it met alive.
            self.keep_alive.append(value)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise InvalidModel(f"the program nests deeper than {_MAX_DEPTH} levels")
        parts = []
        for field in _fields(info):
            parts += [self.digest(field.name), self.digest(field.getter(value))]
        self.depth -= 1
        found = self._node(info.type_key, parts)
        if len(self.numbers) == before:
            # No variable was first met inside, so this object has the same digest wherever it occurs again.
            self.memo[handle] = found
            self.keep_alive.append(value)
        return found

    @staticmethod
    def _node(kind: str, parts: list[bytes]) -> bytes:
        sha = hashlib.sha256(kind.encode() + b"(")
        for part in parts:
            sha.update(part)
        return b"h" + sha.digest()


def _fields(info: Any) -> list[Any]:
    """Reflected fields of a type and its ancestors, by name, without those that are dropped."""
    found = _FIELDS.get(info.type_key)
    if found is None:
        found, level = [], info
        while level is not None:
            found += [f for f in level.fields or () if f.name != "span" and (info.type_key, f.name) not in DROPPED]
            level = level.parent_type_info
        found.sort(key=lambda field: field.name)
        _FIELDS[info.type_key] = found
    return found


_FIELDS: dict[str, list[Any]] = {}
