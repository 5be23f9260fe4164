"""Recurrent models for latency.py: MODELS[name]() -> (module, example_inputs). Random weights, float32."""

from __future__ import annotations

import torch
from torch import nn


class _LastStep(nn.Module):
    """A classifier of sequences: what a recurrent layer says after the last step."""

    def __init__(self, layer: nn.RNNBase, classes: int = 10) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.layer(x)
        return self.head(states[:, -1])


def lstm_h128_s32():
    return _LastStep(nn.LSTM(64, 128, batch_first=True)).eval(), (torch.randn(1, 32, 64),)


def lstm_h256_s64_2_layers():
    return _LastStep(nn.LSTM(128, 256, num_layers=2, batch_first=True)).eval(), (torch.randn(1, 64, 128),)


def bigru_h128_s32():
    return _LastStep(nn.GRU(64, 128, batch_first=True, bidirectional=True)).eval(), (torch.randn(1, 32, 64),)


def lstm_h128_s32_batch8():
    return _LastStep(nn.LSTM(64, 128, batch_first=True)).eval(), (torch.randn(8, 32, 64),)


MODELS = {f.__name__: f for f in (lstm_h128_s32, lstm_h256_s64_2_layers, bigru_h128_s32, lstm_h128_s32_batch8)}
