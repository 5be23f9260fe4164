"""Tensors without elements, which no tensor program has: followed while a graph is converted, and nowhere after."""

from __future__ import annotations

from typing import Any

import torch


class Nothing:
    """A tensor without elements, in the place of a Relax expression."""

    def __init__(self, value: Any) -> None:
        self.value = torch.empty(tuple(value.shape), dtype=value.dtype)
        """Of its shape and type."""
