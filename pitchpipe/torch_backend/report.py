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
class ProgramReport:
    """One graph that Dynamo captured, and what it became."""

    graphs: list[GraphReport] = field(default_factory=list)
    runs: str = "undecided"
    """pitchpipe (its partitions, as they say), eager or inductor."""
    reason: str = ""
    secs: float | None = None
    eager_secs: float | None = None


@dataclass(kw_only=True)
class Explanation:
    """What `pitchpipe.explain` found; print it."""

    programs: list[ProgramReport] = field(default_factory=list)
    graph_breaks: dict[str, int] = field(default_factory=dict)
    """Reason -> times that Dynamo had to leave the program to Python."""
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"Graphs captured: {len(self.programs)}, graph breaks: {sum(self.graph_breaks.values())}"]
        lines += [f"  break: {_short(reason)} ({times} times)" for reason, times in self.graph_breaks.items()]
        for index, program in enumerate(self.programs):
            lines.append(f"Graph {index}: {program.runs}{_because(program.reason)}{_times(program)}")
            for graph in program.graphs:
                lines += _graph_lines(graph)
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def _graph_lines(graph: GraphReport) -> list[str]:
    at = "".join(f" {name}={size}" for name, size in graph.sizes.items())
    lines = [f"  {graph.kind}{at}: {graph.operators} operators, {len(graph.partitions)} partitions; {graph.source}"]
    for part in graph.partitions:
        tiers = ", ".join(f"{tier.value} {count}" for tier, count in part.tiers.items()) or "not looked up"
        lines.append(f"    {part.name}: {part.operators} operators, {part.workloads} workloads ({tiers})")
        expected = "" if part.expected_secs is None else f"; expected {_ms(part.expected_secs)}"
        lines.append(f"      {part.runs}{_because(part.reason)}{expected}{_times(part)}")
    lines += [f"    eager: {count} operators: {reason}" for reason, count in Counter(graph.left).most_common()]
    return lines


def _because(reason: str) -> str:
    return f", since {reason}" if reason else ""


def _times(found: ProgramReport | PartitionReport) -> str:
    if found.secs is None or found.eager_secs is None:
        return ""
    return f"; measured {_ms(found.secs)}, eager {_ms(found.eager_secs)}"


def _ms(secs: float) -> str:
    return f"{secs * 1e3:.3g} ms"


def _short(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "unknown"
