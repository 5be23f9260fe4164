"""What is known of whether a model, compiled, computes what the framework that it came from computes."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from pitchpipe.wire._base import Wire

MAX_REASON = 500
"""Characters of a reason; whoever makes one cuts it."""


class Comparison(Wire):
    """A model that agreed with its source, or the reason why the two were not compared.

    There is no third kind: a model that differs is refused (WrongResult) where that is found, so it is never stored.
    """

    reference: str | None = Field(
        default=None, max_length=100, description="framework and version that ran the source; absent: not compared"
    )
    input_sets: int = Field(default=0, ge=0, le=1000, description="on which all outputs agreed")
    error: float | None = Field(default=None, ge=0, description="largest, relative; see docs/comparison.md")
    tolerance: float | None = Field(default=None, ge=0, description="of the output whose error is told")
    reason: str | None = Field(
        default=None, max_length=MAX_REASON, description="why it was not compared, or not on more input sets"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        compared = self.reference is not None
        if compared != (self.input_sets > 0) or compared != (self.error is not None and self.tolerance is not None):
            raise ValueError("a comparison names its reference, input sets, error and tolerance, or none of them")
        if not compared and not self.reason:
            raise ValueError("what was not compared says why")
        return self

    @property
    def compared(self) -> bool:
        return self.reference is not None

    def __str__(self) -> str:
        if not self.compared:
            return f"not compared: {self.reason}"
        sets = f"{self.input_sets} input set{'s' if self.input_sets > 1 else ''}"
        told = f"compared with {self.reference} on {sets}: largest relative error {self.error:.1e}"
        told += f", {self.tolerance:.0e} is allowed"
        return told if self.reason is None else f"{told}; {self.reason}"


def not_compared(reason: str) -> Comparison:
    """The comparison that did not take place; the reason is one line and is cut where it is too long."""
    return Comparison(reason=(" ".join(reason.split()) or "no reason was told")[:MAX_REASON])
