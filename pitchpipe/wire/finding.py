"""What looking for the cause of a wrong result, of a crash or of a refusal came to."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from pitchpipe.wire._base import Wire
from pitchpipe.wire.task import TensorShape

WALL_SECS = 120.0
"""Of one attempt, a build with its run, unless somebody says otherwise: one that is still going then hangs."""


class FindingKind(StrEnum):
    """What is wrong with a model or a task."""

    NOTHING = "nothing wrong"
    """It builds, runs, and computes what the framework that it came from computes."""
    WRONG = "wrong"
    """Its outputs differ by more than the documented tolerance."""
    BUILD_CRASH = "build crash"
    """Importing or compiling it ends the process, does not end, or raises what is no refusal."""
    RUN_CRASH = "run crash"
    """Running it does."""
    REFUSED = "refused"
    """It is refused by name."""


class Finding(Wire):
    """The smallest part of a model that still shows what is wrong with it."""

    kind: FindingKind
    detail: str = Field(description="how the outputs differ, how the process ended, or why the model is refused")
    reference: str | None = Field(default=None, description="what outputs were compared with")
    operator: str | None = Field(default=None, description="the first one whose output differs, or that crashes")
    node: str | None = Field(default=None, description="its name in the model")
    arguments: tuple[TensorShape, ...] = Field(default=(), description="what the part takes, weights aside")
    nodes: tuple[str, ...] = Field(default=(), description="operators of the part, in their order")
    cause: str | None = Field(default=None, description="the step at fault: the import, a rewrite by its name, ...")
    script: str | None = Field(default=None, description="path of a program that shows it")

    def sentence(self) -> str:
        """For a message: what differs, where, and whose fault it is."""
        if self.kind is FindingKind.NOTHING or self.operator is None:
            return self.detail
        what = {
            FindingKind.WRONG: "the first operator whose output differs is",
            FindingKind.REFUSED: "refused is",
        }.get(self.kind, f"{self.kind} at")
        where = f" (node {self.node!r})" if self.node else ""
        blamed = f"; at fault: {self.cause}" if self.cause else ""
        written = f"; {self.script} shows it" if self.script else ""
        return f"{what} {self.operator}{where}: {self.detail}{blamed}{written}"


class Refusal(Wire):
    """One thing in a model's file that cannot be taken."""

    operator: str | None = Field(default=None, description="none for an input or a file that is refused as a whole")
    node: str | None = None
    reason: str
