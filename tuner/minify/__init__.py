"""From a model that is wrong or crashes to the smallest part of it that still is, and a program that shows it.

A `Source` is a model in the framework that it came from, every value in it recorded from one run there. Any set of its
nodes can be cut out as a `Part`: a model of its own, whose inputs are the recorded values, and whose outputs are compared
with recorded values. attempts.py builds and runs a part in a child; reduction.py decides which part is tried next;
blame.py asks which step of ours is at fault; script.py writes the program; driver.py is all of it in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pitchpipe.model.comparison import difference
from pitchpipe.wire.finding import Finding, FindingKind, Refusal

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Finding", "FindingKind", "Node", "Part", "Refusal", "Source"]

Converted = tuple[bytes, Mapping[str, "np.ndarray"]]
"""A model in the `relax` format, and its weights by name."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operator of a model; one with several outputs is one node."""

    name: str
    """Unique in the model."""
    label: str
    """What its author calls it."""
    operator: str
    reads: tuple[str, ...]
    """Names of the values that it reads, weights included."""
    gives: tuple[str, ...]
    """Names of what it computes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A model that can be built and run, with what it should compute."""

    nodes: tuple[Node, ...]
    convert: Callable[[], Converted]
    """Imports it. May refuse, raise or crash: it is called in a child."""
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...] | None
    """None where it is not known, as nothing runs the model: then only crashes can be told."""
    operands: tuple[tuple[np.ndarray, ...], ...]
    """Per output, the arrays of floating point that it is computed from: the scale of what may cancel in it."""
    code: Callable[[], str] | None = None
    """Python text that defines `reference(inputs, weights)`, of lists of arrays and a dict; see script.py."""
    weights: Mapping[str, np.ndarray]
    """By the names that `code` uses."""

    def difference(self, found: Sequence[np.ndarray]) -> str | None:
        """How the outputs differ from what they should be; None when they do not.

        Each is compared for itself, as values of very different size are alive at the same time: a mask of -3e38 would
        hide any error. Operands are compared with themselves beside it, which only adds their size to the scale.
        """
        if self.expected is None:
            return None
        if len(found) != len(self.expected):
            return f"there are {len(found)} outputs, not {len(self.expected)}"
        for at, (a, r, operands) in enumerate(zip(found, self.expected, self.operands, strict=True)):
            told = difference([a, *operands], [r, *operands])
            if told is not None:
                return told.replace("output 0", f"output {at}", 1)
        return None


class Source(ABC):
    """A model in the framework that it came from, run once there."""

    framework: str
    """What recorded the values, for people."""
    nodes: Sequence[Node]
    """In an order of their data."""
    outputs: Sequence[str]
    """Names of the values that the model gives."""
    values: Mapping[str, np.ndarray]
    """By name: what every node computed from `inputs`, those inputs, and the weights."""
    constant: Collection[str]
    """Names of the values that depend on no input of the model, weights among them."""

    @abstractmethod
    def model(self) -> Part:
        """The whole model, as it came."""

    @abstractmethod
    def part(self, nodes: Sequence[Node], takes: Sequence[str], constants: Sequence[str], gives: Sequence[str]) -> Part:
        """The part of `nodes`, in order, that takes and gives these values and has `constants` for weights."""

    def cut(self, kept: Collection[str]) -> Part | None:
        """The part of the nodes of these names; None where it would take nothing or give nothing.

        With them comes what makes those values they read that are no tensor: shapes, sequences.
        """
        kept = self._with_makers(set(kept))
        inside = [node for node in self.nodes if node.name in kept]
        made = {value for node in inside for value in node.gives}
        used = {value for node in inside for value in node.reads}
        outside = {value for node in self.nodes if node.name not in kept for value in node.reads} | set(self.outputs)
        read = dict.fromkeys(value for node in inside for value in node.reads if value not in made)
        gives = [value for node in inside for value in node.gives if value in outside or value not in used]
        gives = [value for value in gives if value in self.values]
        takes = [value for value in read if value not in self.constant]
        if not takes or not gives or not all(value in self.values for value in read):
            return None
        return self.part(inside, takes, [value for value in read if value in self.constant], gives)

    def _with_makers(self, kept: set[str]) -> set[str]:
        for node in reversed(self.nodes):
            missing = set(node.reads) - set(self.values) if node.name in kept else set()
            kept |= {other.name for other in self.nodes if missing.intersection(other.gives)}
        return kept

    def operands_of(self, value: str) -> tuple[np.ndarray, ...]:
        """The arrays of floating point that the node of a value reads."""
        for node in self.nodes:
            if value in node.gives:
                found = (self.values[name] for name in node.reads if name in self.values)
                return tuple(array for array in found if is_floating(array))
        return ()


def is_floating(array: Any) -> bool:
    """Whether it holds floating-point numbers, those of ml_dtypes included."""
    return array.dtype.kind not in "biu" and bool(array.size)
