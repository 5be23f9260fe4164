"""Which parts of a graph can be compiled, as what, and under which digests: asked of a child, kept in the cache.

The child imports the compiler, asks it operator by operator (partition.py), and converts and identifies what it cut out.
That takes seconds, during which the program's own process is free; a later process reads what was found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.identity import Identity, machine_key, read_json, versions, write_json
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import step
from pitchpipe.torch_backend.graph_text import decode, encode
from pitchpipe.torch_backend.own_code import own_code
from pitchpipe.torch_backend.partition import name_of, split
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target

CUT_SECS = 600.0
"""Longest that the child may take: minutes, of a graph of thousands of operators on a machine that is busy."""


class Piece(Wire):
    """A partition of a graph: nodes that are compiled together, and what they became."""

    nodes: tuple[str, ...]
    """Names of the graph's nodes that are in it, in order."""
    takes: tuple[str, ...]
    """Names of the placeholders of its module, in order."""
    weights: tuple[str, ...]
    """Those that hold weights."""
    model: str | None = None
    """The `relax` format; None where it cannot be converted."""
    identity: Identity | None = None
    reason: str = ""
    """Why there is no model or no identity."""


class Cut(Wire):
    """What was found out about a graph on a target."""

    target: Target
    operators: int
    left: dict[str, int]
    """Reason -> operators that stay with PyTorch for it."""
    pieces: tuple[Piece, ...]


def known_cut(module: Any, weights: Collection[str], target: Target | None, device: Any) -> Cut | None:
    """What is kept about the graph; never asks a child."""
    target = target or read_json(_target_file(device), Target)
    return None if target is None else read_json(_file(encode(module), weights, target), Cut)


def cut(module: Any, weights: Collection[str], target: Target | None, device: Any) -> Cut:
    """What is kept about the graph, or what a child finds. Nothing is changed.

    weights: names of the placeholders that hold weights. target: None for this machine's, for tensors on the device.
    Raises as `run_step`.
    """
    data = encode(module)
    target = target or read_json(_target_file(device), Target)
    if target is not None and (found := read_json(_file(data, weights, target), Cut)) is not None:
        return found
    answer = run_step(
        "cut_fx",
        data,
        weights=sorted(weights),
        device=str(device),
        target=None if target is None else target.key,
        timeout_secs=CUT_SECS,
    )
    found = Cut.model_validate(answer)
    if target is None:
        write_json(_target_file(device), found.target)
    write_json(_file(data, weights, found.target), found)
    return found


def cut_fx(
    model: bytes, _arrays: Mapping[str, Any], *, weights: list[str], device: str, target: str | None
) -> dict[str, Any]:
    """Step: what `cut` keeps, of an encoded graph."""
    wanted = Target.parse(target) if target is not None else step("detect_target")(device)
    unsupported = step("unsupported_fx")

    def reason(node: Any) -> str | None:
        found: str | None = unsupported(node)
        return found if found is not None else _elsewhere(node, device)

    found = split(decode(model), weights, reason)
    pieces = [_piece(found.module.get_submodule(name), found, name, wanted) for name in found.weights]
    whole = Cut(target=wanted, operators=found.operators, left=found.left, pieces=tuple(pieces))
    return whole.model_dump(mode="json", by_alias=True)


def _piece(eager: Any, found: Any, name: str, target: Target) -> Piece:
    told: dict[str, Any] = {
        "nodes": found.nodes[name],
        "takes": [node.name for node in eager.graph.find_nodes(op="placeholder")],
        "weights": sorted(found.weights[name]),
    }
    try:
        data = step("export_fx")(eager, found.weights[name])
    except Exception as error:  # noqa: BLE001 - importers raise whatever they met
        return Piece(**told, reason=f"it cannot be converted: {error}")
    try:
        identity = step("identify")(data, {}, model_format=ModelFormat.RELAX.value, target=target.key, own=True)
    except Exception as error:  # noqa: BLE001 - as do passes
        return Piece(**told, model=data.decode(), reason=f"it cannot be prepared: {error}")
    return Piece(**told, model=data.decode(), identity=Identity.model_validate(identity))


def _elsewhere(node: Any, device: str) -> str | None:
    for one in (node, *node.all_input_nodes):
        value = one.meta.get("val")
        if isinstance(value, torch.Tensor) and value.stays_on != device:
            return f"{name_of(node)} has tensors on {value.stays_on} and {device}"
    return None


def _target_file(device: Any) -> Path:
    return cache_dir() / "targets" / f"{machine_key()}-{device.type}.json"


def _file(data: bytes, weights: Collection[str], target: Target) -> Path:
    key = json_digest([sha256(data), sorted(weights), target.key, versions(), torch.__version__, own_code()])
    return cache_dir() / "cuts" / f"{key}.json"
