"""Dynamo captures recurrent layers where this backend compiles for inference.

By default Dynamo breaks the graph at torch.nn's RNN, GRU and LSTM, so that no backend ever sees them: whoever takes them
apart gets several operators for every step. This one keeps them whole. With gradients they would be taken apart before they
come here, and stay with PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.callback import callback_handler

_COMPILES = "_compile"
"""The function of Dynamo's that compiles a frame, by the backend in its argument `compiler_fn`."""


class _Lasting(list[Any]):
    """Callbacks that outlast `torch._dynamo.reset()`, which clears their list, and others that do not."""

    def __init__(self, others: list[Any], lasting: Callable[[Any], None]) -> None:
        super().__init__([*others, lasting])
        self._lasting = lasting

    def clear(self) -> None:
        self[:] = [self._lasting]


def capture_recurrent_layers(backend: Callable[..., Any]) -> None:
    """From now on. Who has set torch._dynamo.config.allow_rnn keeps it."""
    changed: list[bool] = []

    def begins(_: Any) -> None:
        if not (config.allow_rnn or torch.is_grad_enabled()) and _compiles_with(backend, sys._getframe()):
            changed.append(True)
            config.allow_rnn = True

    def ends(_: Any) -> None:
        if changed:
            changed.clear()
            config.allow_rnn = False

    callback_handler.start_callbacks = _Lasting(callback_handler.start_callbacks, begins)
    callback_handler.end_callbacks = _Lasting(callback_handler.end_callbacks, ends)


def _compiles_with(backend: Callable[..., Any], frame: FrameType | None) -> bool:
    """Whether Dynamo, which called this, compiles by the backend. torch.compile wraps backends in callable objects."""
    while frame is not None and not (frame.f_code.co_name == _COMPILES and "compiler_fn" in frame.f_locals):
        frame = frame.f_back
    found = None if frame is None else frame.f_locals["compiler_fn"]
    while found is not None and found is not backend:
        found = getattr(found, "__wrapped__", None) or getattr(found, "compiler_fn", None)
    return found is backend
