"""The arguments of a template that are worth trying for a workload, ranked by an analytic estimate of the time.

Notation. A block computes a tile of r x c in steps of d iterations of k; p parts, g stages, w warps. On a GPU with P
multiprocessors a multiprocessor holds o blocks at a time, bounded by its shared memory, registers and threads:

    blocks = s * ceil(i / r) * ceil(j / c) * p,     waves = ceil(blocks / (P * o)),     steps = ceil(k / (d * p))
    step   = max(2 r c d * o / F,  (r + c) d e * o / L,  (r + c) d e * o / (A min(4, w o)),  latency / (g - 1))
    time   = launch + max(bytes / B, waves * (latency + steps * step))
             + (parts written and read / B2 + latency + what is between, if p > 1)

F and L are operations and bytes from the L2 cache of a multiprocessor in a second, A bytes whose copies a quarter of it
issues, B the bandwidth of memory, B2 that of the L2 cache, e the bytes of an element. Kernels of `contraction-tma-1` issue
nothing, so that they lack that term. Between parts and their sum is a launch, or a barrier of a cluster, whose blocks run at
the same time within a group of multiprocessors, so that some of these are idle. It only ranks: times are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pitchpipe.wire.target import Target
from tuner.templates.contraction import ITEM_BYTES, MAX_ELEMENTS, Contraction
from tuner.templates.kernel_source import EARLIEST
from tuner.templates.matrices import OperandMatrix, operand_matrices
from tuner.templates.source import may_be_clusters
from tuner.templates.text import CONTRACTION, CONTRACTION_TMA, FETCHES, TEMPLATES, checked

MULTIPROCESSORS = 132
"""Of the devices that the estimate is for; others rank much alike."""
SHARED_BYTES, REGISTERS, WARPS, BLOCKS = 227 << 10, 65536, 64, 32
"""Of a multiprocessor."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, for each block."""
MAX_ACCUMULATORS, MAX_FRAGMENTS = 128, 64
"""Sums in the registers of a thread, at most, where four warps multiply from shared memory, and where operands are in
registers too: beyond it they are spilled, and the assembler takes long."""
FLOPS = {"float16": 5.0e12, "bfloat16": 5.0e12, "float32": 2.2e12, "int8": 9.0e12}
"""Of a multiprocessor with operands in shared memory, multiplications and additions counted."""
PLAIN_FLOPS = 0.3e12
"""The same in strict float32, without tensor cores."""
NARROW = 0.55
"""Share of FLOPS that is left in tiles of fewer than 64 rows for each four warps, which get older instructions."""
CACHE_BYTES, CACHE_BANDWIDTH, BANDWIDTH = 110e9, 5.0e12, 3.6e12
"""Bytes in a second: from the L2 cache to a multiprocessor, from it to all, from memory."""
ISSUED_BYTES = 90e9
"""Of the copies that one of the four parts of a multiprocessor issues in a second: 512 in some ten cycles."""
LATENCY_SECS, LAUNCH_SECS = 0.7e-6, 1.0e-6
EARLY_SAVES_SECS = 0.6e-6
"""What a launch that may begin early costs less."""
BARRIER_SECS = 0.2e-6
"""Of a cluster."""
GROUP = 16
"""Multiprocessors among which a cluster lies."""
TMA_CAPABILITY = 90
"""Of the devices that multiply what `contraction-tma-1` says: wgmma is of this one alone."""
LEAST_TMA_ROWS = 32
"""Rows of a result from which on tiles of 64 are worth multiplying."""
TMA_STAGES = (2, 3, 4, 5, 6, 8, 12, 16)
BARRIER_BYTES = 16
"""Of a stage, at most."""
PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)
ALIKE = 0.04
"""What each better point of the same tile and parts adds to an estimate, as a share of it, so that the first ones differ."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A point of a template's space."""

    text: str
    estimate_secs: float


def contraction_space(found: Contraction, target: Target) -> list[Ranked]:
    """The points of all templates of contractions for a contraction, the best by the estimate first."""
    limit = min(target.max_shared_memory_per_block or SHARED_BYTES, SHARED_BYTES)
    early = 0
    if capability(target) >= EARLIEST:
        early = 1 if found.weights_in(found.a) is None and found.weights_in(found.b) is None else FETCHES
    points = [(CONTRACTION, arguments) for arguments in _points(found, limit, early)]
    if capability(target) == TMA_CAPABILITY and (operands := operand_matrices(found)) is not None:
        points += [(CONTRACTION_TMA, arguments) for arguments in _tma_points(found, operands, limit)]
    if capability(target) >= EARLIEST:
        points += [(template, one | {"cluster": 1}) for template, one in points if may_be_clusters(one)]
    ranked = sorted(
        ((estimate_secs(found, template, arguments), template, arguments) for template, arguments in points),
        key=lambda one: (*one[:2], *one[2].values()),
    )
    return [
        Ranked(text=checked(template, arguments).text, estimate_secs=secs)
        for secs, template, arguments in _varied(ranked)
    ]


def capability(target: Target) -> int:
    """90 for sm_90a."""
    return int("".join(filter(str.isdigit, target.arch or "0")))


def shared_bytes(found: Contraction, template: str, arguments: Mapping[str, int]) -> int:
    """Shared memory of a block, at most: a stage for each copy that is on its way."""
    stages = min(arguments["stages"], _steps(found, arguments))
    tile = (arguments["rows"] + arguments["columns"]) * arguments["step"] * ITEM_BYTES[found.dtype]
    if template == CONTRACTION_TMA:
        return (tile + BARRIER_BYTES) * stages
    return max(tile * stages, arguments["rows"] * arguments["columns"] * 4)


def estimate_secs(found: Contraction, template: str, arguments: Mapping[str, int]) -> float:
    """The formula of the module's docstring."""
    rows, columns, step, parts = (arguments[name] for name in ("rows", "columns", "step", "parts"))
    warps, item = arguments["warps"], ITEM_BYTES[found.dtype]
    m, n, k, batch = found.extent("i"), found.extent("j"), found.extent("k"), found.extent("s")
    blocks = batch * -(-m // rows) * -(-n // columns) * parts
    registers = rows * columns // (32 * warps) + 64
    by_shared = SHARED_BYTES // (shared_bytes(found, template, arguments) + RESERVED_BYTES)
    held = max(1, min(by_shared, REGISTERS // (registers * 32 * warps), WARPS // warps, BLOCKS))
    multiprocessors = MULTIPROCESSORS // GROUP * GROUP if arguments["cluster"] else MULTIPROCESSORS
    together = min(held, -(-blocks // multiprocessors))
    waves = -(-blocks // (multiprocessors * held))
    flops = FLOPS[found.dtype] if found.dtype != "float32" or found.tf32 else PLAIN_FLOPS
    if found.dtype != "float32" and rows * 4 < 64 * warps:
        flops *= NARROW
    computing = 2 * rows * columns * step * together / flops
    copying = (rows + columns) * step * item * together / CACHE_BYTES
    issuing = (rows + columns) * step * item * together / (ISSUED_BYTES * min(4, warps * together))
    if template == CONTRACTION_TMA:
        issuing = 0.0  # by the accelerator
    waiting = LATENCY_SECS / max(1, min(arguments["stages"], 5) - 1)
    steps = _steps(found, arguments)
    moved = (m * k + k * n + m * n) * batch * item
    cached = blocks * steps * (rows + columns) * step * item / CACHE_BANDWIDTH
    secs = max(moved / BANDWIDTH, cached, waves * (LATENCY_SECS + steps * max(computing, copying, issuing, waiting)))
    launch = LAUNCH_SECS - (EARLY_SAVES_SECS if arguments["early"] else 0)
    if parts > 1:
        between = BARRIER_SECS if arguments["cluster"] else launch
        secs += LATENCY_SECS + between + 8 * parts * batch * m * n / CACHE_BANDWIDTH
    return secs + launch


def _steps(found: Contraction, arguments: Mapping[str, int]) -> int:
    return -(-found.extent("k") // (arguments["step"] * arguments["parts"]))


def _points(found: Contraction, limit: int, early: int) -> Iterator[dict[str, int]]:
    """Arguments that a block of a device can have, none of which is larger than the workload asks for."""
    values = TEMPLATES[CONTRACTION]
    m, n, k = found.extent("i"), found.extent("j"), found.extent("k")
    largest = {"rows": _covering(m), "columns": _covering(n), "step": _covering(k)}
    sides = [[one for one in values[name] if one <= most] for name, most in largest.items()]
    least_step = 32 if found.dtype == "int8" else 16
    for rows, columns, step, parts in itertools.product(*sides, PARTS):
        steps = -(-k // (step * parts))
        if rows * columns > 1 << 15 or step < min(least_step, largest["step"]) or step * (rows + columns) < 1024:
            continue
        if parts > 1 and (steps < 2 or (parts - 1) * steps * step >= k or parts * found.extent("sij") > MAX_ELEMENTS):
            continue
        for warps, stages in itertools.product((2, 4, 8), (1, 2, 3, 4, 5, 6)):
            if stages > max(1, steps) or (stages == 1 and steps > 1) or not _balanced(rows, columns, warps):
                continue
            groups = (0, 8) if -(-m // rows) > 8 else (0,)
            for group in groups:
                arguments = {"rows": rows, "columns": columns, "step": step, "parts": parts, "stages": stages}
                arguments |= {"warps": warps, "group": group, "early": early, "cluster": 0}
                if shared_bytes(found, CONTRACTION, arguments) <= limit:
                    yield arguments


def _tma_points(
    found: Contraction, operands: tuple[OperandMatrix, OperandMatrix], limit: int
) -> Iterator[dict[str, int]]:
    """The same of `contraction-tma-1`."""
    values = TEMPLATES[CONTRACTION_TMA]
    m, n, k = found.extent("i"), found.extent("j"), found.extent("k")
    if m <= LEAST_TMA_ROWS:
        return
    whole = not all(one.ends_in_zeros for one in operands)
    sides = itertools.product(values["rows"], values["columns"], values["step"], PARTS, values["warps"])
    for rows, columns, step, parts, warps in sides:
        steps = -(-k // (step * parts))
        if rows > max(64, _covering(m)) or columns > _covering(n) or step > _covering(k):
            continue
        if whole and k % (step * parts):
            continue
        if any(
            one.span != most and one.span % side
            for one, most, side in zip(operands, (m, n), (rows, columns), strict=True)
        ):
            continue
        if parts > 1 and (steps < 2 or (parts - 1) * steps * step >= k or parts * found.extent("sij") > MAX_ELEMENTS):
            continue
        if rows < 16 * warps or not 4 <= rows * columns // (32 * warps) <= MAX_ACCUMULATORS:
            continue
        for stages in {min(stages, steps) for stages in TMA_STAGES}:
            if stages == 1 and steps > 1:
                continue
            for group in (0, 8) if -(-m // rows) > 8 else (0,):
                arguments = {"rows": rows, "columns": columns, "step": step, "parts": parts, "stages": stages}
                arguments |= {"warps": warps, "group": group, "early": 1, "cluster": 0}
                if shared_bytes(found, CONTRACTION_TMA, arguments) <= limit:
                    yield arguments


def _balanced(rows: int, columns: int, warps: int) -> bool:
    """Whether a thread has sums enough to be worth its place, and registers enough for them."""
    return 4 <= rows * columns // (32 * warps) <= (MAX_ACCUMULATORS if warps >= 4 and rows >= 64 else MAX_FRAGMENTS)


def _covering(extent: int) -> int:
    """The side of the smallest tile that holds the extent, at least the smallest tile's."""
    return max(16, 1 << (extent - 1).bit_length())


def _varied(ranked: Sequence[tuple[float, str, dict[str, int]]]) -> list[tuple[float, str, dict[str, int]]]:
    """Ranked points, in an order in which those of one template, tile, parts and cluster do not all come together."""
    seen: dict[tuple[str | int, ...], int] = {}
    placed = []
    for number, (secs, template, arguments) in enumerate(ranked):
        tile: tuple[str | int, ...] = (template, *(arguments[name] for name in ("rows", "columns", "parts", "cluster")))
        seen[tile] = seen.get(tile, 0) + 1
        placed.append((secs * (1 + ALIKE) ** (seen[tile] - 1), number, secs, template, arguments))
    return [one[2:] for one in sorted(placed, key=lambda one: one[:2])]
