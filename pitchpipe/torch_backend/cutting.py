"""Which parts of a graph can be compiled, as what, and under which digests: asked of a child, kept in the cache.

The child imports the compiler, asks it operator by operator (partition.py), and converts and identifies what it cut out.
That takes seconds, during which the program's own process is free; a later process reads what was found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.identity import Identity, machine_key, read_json, versions, write_json
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import step
from pitchpipe.target_kind import kind_named, kinds
from pitchpipe.torch_backend.graph_text import decode, encode
from pitchpipe.torch_backend.index_bounds import bounds, can_be_checked, is_proved
from pitchpipe.torch_backend.own_code import own_code
from pitchpipe.torch_backend.partition import name_of, split
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.precision import CONVOLUTIONS, PRODUCTS
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
    bounds: dict[str, tuple[int, int]] = {}
    """Those that hold indices -> the least and the largest that is right."""
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


def tf32_allowed(device: Any) -> tuple[str, ...]:
    """Which float32 contractions PyTorch's switches allow to be TF32 at the moment, of tensors on the device."""
    if not any(kind.device == device.type and kind.multiplies_tf32 for kind in kinds()):
        return ()
    switches = {PRODUCTS: torch.backends.cuda.matmul, CONVOLUTIONS: torch.backends.cudnn}
    return tuple(name for name, switch in switches.items() if _allows_tf32(switch))


def _allows_tf32(switch: Any) -> bool:
    """By the name that PyTorch has given its switches since 2.9: once one is set so, asking by the older name raises."""
    newer = getattr(switch, "conv", switch)
    return bool(newer.fp32_precision == "tf32" if hasattr(newer, "fp32_precision") else switch.allow_tf32)


def known_cut(
    module: Any, weights: Collection[str], target: Target | None, device: Any, tf32: Sequence[str]
) -> Cut | None:
    """What is kept about the graph; never asks a child."""
    target = target or read_json(_target_file(device), Target)
    return None if target is None else read_json(_file(encode(module), weights, target, tf32), Cut)


def cut(module: Any, weights: Collection[str], target: Target | None, device: Any, tf32: Sequence[str]) -> Cut:
    """What is kept about the graph, or what a child finds. Nothing is changed.

    weights: names of the placeholders that hold weights. target: None for this machine's, for tensors on the device.
    tf32: as `tf32_allowed` gave it when the program was compiled.
    Raises as `run_step`.
    """
    data = encode(module)
    target = target or read_json(_target_file(device), Target)
    if target is not None and (found := read_json(_file(data, weights, target, tf32), Cut)) is not None:
        return found
    answer = run_step(
        "cut_fx",
        data,
        weights=sorted(weights),
        device=str(device),
        target=None if target is None else target.key,
        tf32=list(tf32),
        timeout_secs=CUT_SECS,
    )
    found = Cut.model_validate(answer)
    if target is None:
        write_json(_target_file(device), found.target)
    write_json(_file(data, weights, found.target, tf32), found)
    return found


def cut_fx(
    model: bytes, _arrays: Mapping[str, Any], *, weights: list[str], device: str, target: str | None, tf32: list[str]
) -> dict[str, Any]:
    """Step: what `cut` keeps, of an encoded graph."""
    wanted = Target.parse(target) if target is not None else step("detect_target")(device)
    unsupported = step("unsupported_fx")

    # What lies on a GPU cannot be read without waiting for it, but for what stays there.
    readable = weights if kind_named(wanted.kind).has_streams else None

    def reason(node: Any) -> str | None:
        found: str | None = unsupported(node, indices_checked=can_be_checked(node, readable))
        return found if found is not None else _elsewhere(node, device)

    module = decode(model)
    proved = {node.name for node in module.graph.nodes if is_proved(node)}
    found = split(module, weights, reason)
    pieces = [_piece(found.module.get_submodule(name), found, name, wanted, tf32, proved) for name in found.weights]
    whole = Cut(target=wanted, operators=found.operators, left=found.left, pieces=tuple(pieces))
    return whole.model_dump(mode="json", by_alias=True)


def _piece(eager: Any, found: Any, name: str, target: Target, tf32: Sequence[str], proved: Collection[str]) -> Piece:
    told: dict[str, Any] = {
        "nodes": found.nodes[name],
        "takes": [node.name for node in eager.graph.find_nodes(op="placeholder")],
        "weights": sorted(found.weights[name]),
        "bounds": bounds(eager.graph, proved),
    }
    try:
        exported = step("export_fx")(eager, found.weights[name])
        data = step("set_precision")(exported, ModelFormat.RELAX.value, tf32)
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


def _file(data: bytes, weights: Collection[str], target: Target, tf32: Sequence[str]) -> Path:
    graph = [sha256(data), sorted(weights), list(tf32)]
    key = json_digest([*graph, target.key, versions(), torch.__version__, own_code()])
    return cache_dir() / "cuts" / f"{key}.json"
