"""What became of a program: its graphs, their partitions, what runs them and why. Times are in seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pitchpipe.wire.record import Tier


@dataclass(kw_only=True)
class PartitionReport:
    """One partition of one graph."""

    name: str
    operators: int
    workloads: int = 0
    tiers: dict[Tier, int] = field(default_factory=dict)
    """How many of its workloads have a schedule of the tier."""
    expected_secs: float | None = None
    """The sum of its workloads' times where they were confirmed, if all have one."""
    runs: str = "undecided"
    """pitchpipe, eager or inductor; undecided before its first call."""
    reason: str = ""
    secs: float | None = None
    """Measured here, when it first ran; None where it was not."""
    eager_secs: float | None = None


@dataclass(kw_only=True)
class GraphReport:
    """One graph that AOTAutograd gave: of an inference, or one direction of a training step."""

    kind: str
    """inference, forward or backward."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What its symbolic dimensions were fixed to."""
    operators: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """Reason -> operators that stay with PyTorch for it."""
    partitions: list[PartitionReport] = field(default_factory=list)
    source: str = ""
    """Who was asked for schedules."""


@dataclass(kw_only=True)
class BucketReport:
    """One set of sizes that a program is compiled for."""

    sizes: dict[str, int]
    """Its symbolic dimensions, rounded; empty where it has none."""
    built: bool = False
    """Whether its partitions have been built, beside the program."""
    tried: list[dict[str, int]] = field(default_factory=list)
    """The caller's own sizes at which there was a verdict, in order; what follows is of the last."""
    runs: str = "undecided"
    """pitchpipe or eager."""
    reason: str = ""
    secs: float | None = None
    eager_secs: float | None = None


@dataclass(kw_only=True)
class ProgramReport:
    """One graph that Dynamo captured, and what it became."""

    graphs: list[GraphReport] = field(default_factory=list)
    buckets: list[BucketReport] = field(default_factory=list)
    """One, where sizes are known."""
    eager_calls: int = 0
    """Calls that ran as PyTorch runs them because the compiled program was not ready, not decided on, or slower there."""
    runs: str = "undecided"
    """pitchpipe (its partitions, as they say), eager or inductor; with symbolic sizes, at the sizes that were tried last."""
    reason: str = ""
    secs: float | None = None
    eager_secs: float | None = None


@dataclass(kw_only=True)
class CompileReport:
    """What became of everything that one call compiled, as `explain` returns it; print it."""

    programs: list[ProgramReport] = field(default_factory=list)
    graph_breaks: dict[str, int] = field(default_factory=dict)
    """Reason -> times that Dynamo had to leave the program to Python."""
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"Graphs captured: {len(self.programs)}, graph breaks: {sum(self.graph_breaks.values())}"]
        lines += [f"  break: {_short(reason)} ({times} times)" for reason, times in self.graph_breaks.items()]
        for index, program in enumerate(self.programs):
            lines.append(f"Graph {index}: {program.runs}{_because(program.reason)}{_times(program)}")
            for bucket in program.buckets:
                lines += _bucket_lines(bucket)
            for graph in program.graphs:
                lines += _graph_lines(graph)
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def _bucket_lines(bucket: BucketReport) -> list[str]:
    if not bucket.sizes:
        return []
    tried = ", ".join(_sizes(sizes) for sizes in bucket.tried) or "none"
    last = f"{bucket.runs}{_because(bucket.reason)}{_times(bucket)}"
    return [f"  sizes{_sizes(bucket.sizes)}: tried with{tried}: {last}"]


def _sizes(sizes: dict[str, int]) -> str:
    return "".join(f" {name}={size}" for name, size in sizes.items())


def _graph_lines(graph: GraphReport) -> list[str]:
    size = f"{graph.operators} operators, {len(graph.partitions)} partitions"
    lines = [f"  {graph.kind}{_sizes(graph.sizes)}: {size}; {graph.source}"]
    for part in graph.partitions:
        tiers = ", ".join(f"{tier.value} {count}" for tier, count in part.tiers.items()) or "not looked up"
        lines.append(f"    {part.name}: {part.operators} operators, {part.workloads} workloads ({tiers})")
        expected = "" if part.expected_secs is None else f"; expected {_ms(part.expected_secs)}"
        lines.append(f"      {part.runs}{_because(part.reason)}{expected}{_times(part)}")
    lines += [f"    eager: {count} operators: {reason}" for reason, count in Counter(graph.left).most_common()]
    return lines


def _because(reason: str) -> str:
    return f", since {reason}" if reason else ""


def _times(found: ProgramReport | BucketReport | PartitionReport) -> str:
    if found.secs is None or found.eager_secs is None:
        return ""
    return f"; measured {_ms(found.secs)}, eager {_ms(found.eager_secs)}"


def _ms(secs: float) -> str:
    return f"{secs * 1e3:.3g} ms"


def _short(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "unknown"
