"""The trace codec: decodes and checks the text of a trace, and applies it to a workload.

A trace is `[instructions, decisions]` in JSON, as MetaSchedule writes it. An instruction is `[kind, inputs, attributes,
outputs]`; inputs and outputs name random variables (`b0` a block, `l4` a loop, `v11` a number), a decision is `[index
of a sampling instruction, value]`. Texts of templates (tuner/templates/text.py) are decoded and applied in its place.

A trace may begin with a rewrite of the workload, because no instruction of TVM's changes an algorithm: its first two
instructions then take the root block and annotate it with REWRITE and a name of REWRITES, and all of it applies to what the
rewrite makes of the workload. The names carry a version: a rewrite that changes gets a new name, and traces of
the old one are refused instead of meaning something else.

A trace is code: TVM executes what its annotations import and loads whatever object graph it carries. So a text is
decoded through allow-lists - instruction kinds, annotation keys, node types of an index map, caps on size, depth and
numbers - and anything else is refused. The text that comes out is canonical: equal traces have equal text in every
process.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.ids import canonical_json
from tuner.schedule.index_type import with_index_type
from tuner.schedule.rewrites import REWRITE, REWRITES, rewrite_of, rewritten
from tuner.templates.text import is_template, parse

MAX_BYTES = 1 << 20
"""Length of a trace's text, at most; also the limit of the wire type. MetaSchedule's traces have 2 to 60 KiB."""
MAX_INSTRUCTIONS = 4096
"""Instructions of a trace, at most. MetaSchedule's longest traces have a few hundred."""
MAX_ITEMS = 512
"""Items of one list inside an instruction, at most: loops of a reorder, consumers of a block."""
MAX_INDEX_MAP_NODES = 4096
MAX_DEPTH = 8
MAX_INT = 1 << 40
"""The largest number in a trace: far above extents, factors and unroll steps, and arithmetic on it stays within 64 bits."""

SAMPLING = frozenset({"SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile", "SamplePerfectTile"})
"""The kinds that carry a decision."""

KINDS = SAMPLING | frozenset(
    {
        *("GetSBlock", "GetLoops", "GetChildBlocks", "GetProducers", "GetConsumers", "GetOutputBlocks"),
        *("Fuse", "Split", "Merge", "LoopPartition", "Reorder", "ReorderBlockIterVar", "AddUnitLoop"),
        *("Parallel", "Vectorize", "Bind", "Unroll"),
        *("CacheRead", "CacheWrite", "CacheInplace", "CacheIndex", "ReIndex"),
        *("ReadAt", "WriteAt", "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline"),
        *("DecomposeReduction", "RFactor", "StorageAlign", "SetScope", "Blockize", "Tensorize"),
        *("Annotate", "Unannotate", "TransformLayout", "TransformBlockLayout"),
        *("DecomposePadding", "PadEinsum", "RollingBuffer", "EnterPostproc"),
    }
)
"""The instructions that a trace may have. UnsafeSetDType, UnsafeHideBufferAccess and AnnotateBufferAccess are left out on
purpose: they change the declared accesses of a block, so that a wrong program would pass TVM's own checks."""

ANNOTATIONS = frozenset(
    {
        "meta_schedule.auto_tensorize",
        "meta_schedule.auto_tensorize_init",
        "meta_schedule.cache_type",
        "meta_schedule.cooperative_fetch",
        "meta_schedule.inline_rule",
        "meta_schedule.layout_rewrite_preproc",
        "meta_schedule.parallel",
        "meta_schedule.random_compute_producer",
        "meta_schedule.thread_extent_high_inclusive",
        "meta_schedule.thread_extent_low_inclusive",
        "meta_schedule.tiling_structure",
        "meta_schedule.unroll_explicit",
        "meta_schedule.unroll_implicit",
        "meta_schedule.vectorize",
        "pragma_auto_unroll_max_step",
        "pragma_loop_partition_hint",
        "pragma_unroll_explicit",
        *("software_pipeline_async_stages", "software_pipeline_order", "software_pipeline_stage"),
        "tirx.manifest_shared_memory_local_stage",
        *("double_buffer_scope", "vector_bytes", "warp_execution"),
    }
)
"""Annotation keys that a trace may set. Above all `pragma_import_llvm` and `pragma_import_c` are refused, with which a trace
could pass foreign code to the code generator."""
REMOVABLE = ANNOTATIONS | {"schedule_rule"}
"""Those that a trace may remove: pooling names a rule to schedule it by, which MetaSchedule removes."""

_VARIABLE = re.compile(r"^[blv][0-9]{1,6}$")
_NAME = re.compile(r"^[A-Za-z0-9_.\-]{0,512}$")
_LITERAL = re.compile(r'^"[A-Za-z0-9_.\- ]{0,256}"$')
_THREAD = re.compile(r"^(blockIdx|threadIdx)\.[xyz]$|^vthread(\.[xyz])?$")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
_VERSION = re.compile(r"^[A-Za-z0-9_.+\-]{1,64}$")

_BINARY = frozenset({"span", "ty", "a", "b"})
_INDEX_MAP_NODES: Mapping[str, frozenset[str]] = {
    "tirx.IndexMap": frozenset({"initial_indices", "final_indices", "inverse_index_map"}),
    "ir.PrimType": frozenset({"span", "dtype"}),
    "ir.Var": frozenset({"span", "ty", "name"}),
    "ir.IntImm": frozenset({"span", "ty", "value"}),
    "prim.Cast": frozenset({"span", "ty", "value"}),
    **{f"prim.{kind}": _BINARY for kind in ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")},
}
"""Node types that an index map may have, with their fields: integer arithmetic on its own indices and nothing else."""


def decode_trace(text: str | bytes) -> str:
    """The canonical text of a trace or a template. Raises InvalidTrace, which names the fault, where it is not allowed.

    Needs no compiler. Does not check that it fits a workload: `apply_trace` does.
    """
    if is_template(text):
        return parse(text).text
    if len(text) > MAX_BYTES:
        raise InvalidTrace(f"the trace has {len(text)} bytes, the cap is {MAX_BYTES}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTrace(f"the trace is not JSON: {str(error)[:200]}") from error
    return canonical_json(_checked(value)).decode()


def encode_trace(trace: Any) -> str:
    """The canonical text of a TVM trace; raises InvalidTrace if it holds what `decode_trace` would refuse."""
    return canonical_json(_checked(_plain(trace.as_json()))).decode()


def without_postproc(text: str) -> str:
    """The part of a canonical trace before MetaSchedule's postprocessors: the part that a search may mutate."""
    instructions, decisions = json.loads(text)
    for index, instruction in enumerate(instructions):
        if instruction[0] == "EnterPostproc":
            kept = [decision for decision in decisions if decision[0] < index]
            return canonical_json([instructions[:index], kept]).decode()
    return text


def apply_trace(mod: Any, trace: str, *, checked: bool = True) -> Any:
    """The schedule that results from `trace` applied to the IRModule `mod`; raises InvalidTrace when it does not apply.

    The result depends on the arguments alone: sampling instructions have their decisions in a stored trace, and one without
    a decision is drawn from a fixed seed. `checked=False` skips the allow-list for a text that has passed it already.
    """
    import tuner.schedule.reducers  # noqa: F401  # instructions may divide their reductions
    from tuner.tvm_compat import Schedule, Trace

    if is_template(trace):
        from tuner.templates.kernels import marked

        return Schedule(marked(mod, trace), debug_mask=0, error_render_level="none")
    instructions, _ = value = json.loads(decode_trace(trace) if checked else trace)
    if (name := rewrite_of(instructions)) is not None:
        mod = rewritten(mod, name)
    schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
    try:
        Trace.apply_json_to_schedule(with_index_type(value, mod), schedule)
    except Exception as error:  # TVM raises whatever its C++ side met: ScheduleError, ValueError, KeyError, ...
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidTrace(f"the trace does not apply to the workload: {reason[-1][:300]}") from error
    return schedule


def _plain(value: Any) -> Any:
    """TVM's JSON objects as plain Python; immediates know their own type (bool, integer, float)."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    number = value.value  # IntImm or FloatImm
    if isinstance(number, float):
        return number
    return bool(number) if "bool" in str(getattr(value, "dtype", "")) else int(number)


def _checked(value: Any) -> list[Any]:
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value)):
        raise InvalidTrace("a trace is [instructions, decisions]")
    instructions, decisions = value
    if len(instructions) > MAX_INSTRUCTIONS:
        raise InvalidTrace(f"the trace has {len(instructions)} instructions, the cap is {MAX_INSTRUCTIONS}")
    known: set[str] = set()
    checked = [_instruction(index, instruction, known) for index, instruction in enumerate(instructions)]
    return [checked, _decisions(decisions, checked)]


def _instruction(index: int, instruction: Any, known: set[str]) -> list[Any]:
    where = f"instruction {index}"
    if not (isinstance(instruction, list) and len(instruction) == 4):
        raise InvalidTrace(f"{where} is not [kind, inputs, attributes, outputs]")
    kind, inputs, attributes, outputs = instruction
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidTrace(f"{where}: the kind {str(kind)[:64]!r} is not allowed")
    where = f"{where} ({kind})"
    if not all(isinstance(part, list) and len(part) <= MAX_ITEMS for part in (inputs, attributes, outputs)):
        raise InvalidTrace(f"{where}: inputs, attributes and outputs are lists of at most {MAX_ITEMS}")
    # Where an index map stands: beside the block it transforms, or as the attribute.
    maps = {"TransformLayout": (1, None), "TransformBlockLayout": (None, 0)}.get(kind, (None, None))
    inputs = [
        _index_map(where, item) if i == maps[0] else _input(where, item, known, 0) for i, item in enumerate(inputs)
    ]
    attributes = [
        _index_map(where, item) if i == maps[1] else _attribute(where, item, 0) for i, item in enumerate(attributes)
    ]
    if kind == "TransformLayout":
        attributes = _checked_layout(where, attributes)
    if kind in ("Annotate", "Unannotate"):
        key = attributes[0] if len(attributes) == 1 else None
        if key == REWRITE:
            _check_rewrite(index, kind, inputs)
        elif not isinstance(key, str) or key not in (ANNOTATIONS if kind == "Annotate" else REMOVABLE):
            raise InvalidTrace(f"{where}: the annotation {str(key)[:64]!r} is not allowed")
    if kind == "Bind" and not (
        len(attributes) == 1 and isinstance(attributes[0], str) and _THREAD.match(attributes[0])
    ):
        raise InvalidTrace(f"{where}: {str(attributes)[:64]} is not a thread axis")
    for name in outputs:
        if not isinstance(name, str) or not _VARIABLE.match(name) or name in known:
            raise InvalidTrace(f"{where}: {str(name)[:64]!r} is not a fresh variable name")
        known.add(name)
    return [kind, inputs, attributes, list(outputs)]


def _check_rewrite(index: int, kind: str, inputs: list[Any]) -> None:
    """A rewrite has to be the second instruction, where `apply_trace` looks for it; only b0 is defined by then."""
    if index != 1 or kind != "Annotate" or len(inputs) != 2 or inputs[0] != "b0":
        raise InvalidTrace(f"instruction {index} ({kind}): a rewrite is named by the second instruction and no other")
    if not isinstance(inputs[1], str) or inputs[1].strip('"') not in REWRITES:
        raise InvalidTrace(f"instruction {index} ({kind}): there is no rewrite {str(inputs[1])[:64]}")


def _checked_layout(where: str, attributes: list[Any]) -> list[Any]:
    """The attributes of a TransformLayout: buffer index, buffer index type, pad value, whether to assume an injective map.

    MetaSchedule's tensor-core sketches assume it, which skips a check and changes nothing else. Here the check is always
    made: with a map that puts two elements into one place the program is wrong, and only the output check would notice.
    """
    if len(attributes) != 4 or attributes[2] is not None or attributes[3] not in (0, 1):
        raise InvalidTrace(f"{where}: expects a buffer, no pad value and a flag")
    return [*attributes[:3], 0]


def _decisions(decisions: list[Any], instructions: list[list[Any]]) -> list[Any]:
    checked, last = [], -1
    for decision in decisions:
        if not (isinstance(decision, list) and len(decision) == 2 and type(decision[0]) is int):
            raise InvalidTrace("a decision is [instruction, value]")
        index, value = decision
        if not last < index < len(instructions) or instructions[index][0] not in SAMPLING:
            raise InvalidTrace(f"there is no sampling instruction {index} in order for a decision")
        last = index
        if isinstance(value, list) and len(value) <= MAX_ITEMS:
            checked.append([index, [_integer(f"decision {index}", item) for item in value]])
        else:
            checked.append([index, _integer(f"decision {index}", value)])
    return checked


def _integer(where: str, value: Any) -> int:
    if type(value) is not int or abs(value) > MAX_INT:
        raise InvalidTrace(f"{where}: {str(value)[:64]} is not an integer in range")
    return value


def _number(where: str, value: Any) -> Any:
    if value is None:
        return value
    if isinstance(value, bool):
        return int(value)  # TVM's files write flags as 0 and 1: one schedule, one text
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidTrace(f"{where}: {value} is not finite")
        return value
    return _integer(where, value)


def _items(where: str, value: list[Any], depth: int) -> list[Any]:
    if depth >= MAX_DEPTH or len(value) > MAX_ITEMS:
        raise InvalidTrace(f"{where}: a list deeper than {MAX_DEPTH} or longer than {MAX_ITEMS}")
    return value


def _input(where: str, value: Any, known: set[str], depth: int) -> Any:
    """A variable defined before, `None` (a factor to be inferred), a quoted string, a number, or a list of them."""
    if isinstance(value, list):
        return [_input(where, item, known, depth + 1) for item in _items(where, value, depth)]
    if isinstance(value, str):
        if value in known or value == "None" or _LITERAL.match(value):
            return value
        raise InvalidTrace(
            f"{where}: the input {value[:64]!r} is neither a variable defined before nor a quoted string"
        )
    return _number(where, value)


def _attribute(where: str, value: Any, depth: int) -> Any:
    """A plain name, a number, or a list of them."""
    if isinstance(value, list):
        return [_attribute(where, item, depth + 1) for item in _items(where, value, depth)]
    if isinstance(value, str):
        if _NAME.match(value):
            return value
        raise InvalidTrace(f"{where}: {value[:64]!r} is not a plain name")
    return _number(where, value)


def _index_map(where: str, text: Any) -> str:
    """The canonical text of an index map: TVM's object graph in JSON, nodes before their users."""
    if not isinstance(text, str):
        raise InvalidTrace(f"{where}: expects an index map")
    try:
        graph = json.loads(text)
        nodes, root, metadata = graph["nodes"], graph["root_index"], graph.get("metadata", {})
        if set(graph) - {"nodes", "root_index", "metadata"} or not isinstance(nodes, list):
            raise InvalidTrace(f"{where}: unknown parts in the index map")
        if len(nodes) > MAX_INDEX_MAP_NODES or not (type(root) is int and 0 <= root < len(nodes)):
            raise InvalidTrace(f"{where}: the index map is too large or has no root")
        for index, node in enumerate(nodes):
            _index_map_node(where, index, node)
        if nodes[root]["type"] != "tirx.IndexMap":
            raise InvalidTrace(f"{where}: the root is not an index map")
        version = metadata.get("tvm_version", "0")
        if set(metadata) - {"tvm_version"} or not isinstance(version, str) or not _VERSION.match(version):
            raise InvalidTrace(f"{where}: unknown metadata in the index map")
        return canonical_json(graph).decode()
    except InvalidTrace:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidTrace(f"{where}: not an index map") from error


def _index_map_node(where: str, index: int, node: Any) -> None:
    kind = node["type"]
    bad = InvalidTrace(f"{where}: node {index} of the index map is not allowed: {str(kind)[:64]!r}")
    if set(node) - {"type", "data"} or not isinstance(kind, str):
        raise bad
    if kind == "None":
        if "data" in node:
            raise bad
    elif kind == "int":
        _integer(where, node["data"])
    elif kind == "ffi.String":
        if not isinstance(node["data"], str) or not _IDENTIFIER.match(node["data"]):
            raise bad
    elif kind == "ffi.Array":
        if not isinstance(node["data"], list) or any(type(i) is not int or not 0 <= i < index for i in node["data"]):
            raise bad
    elif (fields := _INDEX_MAP_NODES.get(kind)) is not None:
        if set(node["data"]) != fields:
            raise bad
        for name, value in node["data"].items():
            if name == "dtype":
                if value not in ("int32", "int64"):
                    raise bad
            elif type(value) is not int or not 0 <= value < index:
                raise bad
    else:
        raise bad
