"""Recurrent networks in all their forms: layers of PyTorch, cells, and recurrences written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .small import VOCABULARY, Builder, built, tokens

KINDS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
STEPS, WIDTH = 7, 16


def _sequence() -> torch.Tensor:
    return torch.randn(2, STEPS, 8)


class _Layer(nn.Module):
    """All outputs of a recurrent layer, its last states among them."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = KINDS[kind](8, WIDTH, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, states = self.layer(x)
        return (y, *states) if isinstance(states, tuple) else (y, states)


class _Classifier(nn.Module):
    """Tokens, a recurrent layer, and a dense one on its last step."""

    def __init__(self, kind: str, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.layer = KINDS[kind](8, WIDTH, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(WIDTH * (2 if bidirectional else 1), 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(self.embed(ids))[0][:, -1])
        return found


class _LastState(nn.Module):
    """What the last layer's state after the last step says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.head = KINDS[kind](8, WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, states = self.layer(x)
        found: torch.Tensor = self.head((states[0] if isinstance(states, tuple) else states)[-1])
        return found


class _Cells(nn.Module):
    """A cell, step by step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, steps = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            steps.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(steps, 1)


class _WithStates(nn.Module):
    """A layer that is given its first states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.layer(x, (h, c))
        return y, h, c


class _Translator(nn.Module):
    """An encoder, and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.encoder = nn.GRU(8, WIDTH, batch_first=True, bidirectional=True)
        self.decoder, self.head = nn.GRUCell(8 + 2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        keys, states = self.encoder(self.embed(source))
        state, found = torch.cat([states[0], states[1]], -1), []
        for word in self.embed(target).unbind(1):
            weights = torch.softmax((keys @ state.unsqueeze(-1)).squeeze(-1) / 5, -1)
            read = (weights.unsqueeze(1) @ keys).squeeze(1)
            state = self.decoder(torch.cat([word, read], -1), state)
            found.append(self.head(state))
        return torch.stack(found, 1)


class _Convolutional(nn.Module):
    """A convolutional LSTM over a video's frames."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 + 8, 32, 3, padding=1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        batch, _, _, height, width = frames.shape
        h = c = frames.new_zeros(batch, 8, height, width)
        for frame in frames.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class _Minimal(nn.Module):
    """A minimal gated unit written by hand, run backwards through negative indices."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(8 + WIDTH, WIDTH), nn.Linear(8 + WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], WIDTH)
        for at in range(1, x.shape[1] + 1):
            both = torch.cat([x[:, -at], h], -1)
            gate = torch.sigmoid(self.gate(both))
            h = (1 - gate) * h + gate * torch.tanh(self.new(both))
        return h


class _SelectiveScan(nn.Module):
    """A diagonal state space whose steps depend on the input, one step after another."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.step, self.out = nn.Linear(8, WIDTH), nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
        self.write, self.read = nn.Linear(8, 4), nn.Linear(8, 4)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, 5).repeat(WIDTH, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, delta = self.into(x), nn.functional.softplus(self.step(x))
        kept = torch.exp(-delta.unsqueeze(-1) * torch.exp(self.decay))
        added = (delta * u).unsqueeze(-1) * self.write(x).unsqueeze(2)
        state, found = added[:, 0] * 0, []
        for at in range(x.shape[1]):
            state = kept[:, at] * state + added[:, at]
            found.append((state * self.read(x)[:, at].unsqueeze(1)).sum(-1))
        return x + self.out(torch.stack(found, 1) * nn.functional.silu(u))


class _Sums(nn.Module):
    """A linear recurrence by cumulative sums, its last step chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.weight = nn.Linear(8, WIDTH), nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.exp(torch.tanh(self.weight(x)))
        mean = (weight * self.value(x)).cumsum(1) / weight.cumsum(1)
        return mean, mean.select(1, -1)


MODELS: dict[str, Builder] = {
    **{f"{kind}_last_step": built(lambda kind=kind: _Classifier(kind), tokens) for kind in KINDS},
    **{
        f"{kind}_bidirectional_last_step": built(lambda kind=kind: _Classifier(kind, bidirectional=True), tokens)
        for kind in KINDS
    },
    **{f"{kind}_steps_first": built(lambda kind=kind: _Layer(kind), _sequence) for kind in KINDS},
    **{
        f"{kind}_bidirectional": built(lambda kind=kind: _Layer(kind, batch_first=True, bidirectional=True), _sequence)
        for kind in KINDS
    },
    **{
        f"{kind}_stacked": built(lambda kind=kind: _Layer(kind, batch_first=True, num_layers=3), _sequence)
        for kind in KINDS
    },
    **{f"{kind}_last_state": built(lambda kind=kind: _LastState(kind), _sequence) for kind in KINDS},
    "lstm_without_bias": built(lambda: _Layer("lstm", bias=False, batch_first=True), _sequence),
    "lstm_projected": built(lambda: _Layer("lstm", proj_size=6, batch_first=True), _sequence),
    "lstm_bidirectional_stacked": built(lambda: _Layer("lstm", num_layers=2, bidirectional=True), _sequence),
    "lstm_given_states": built(
        _WithStates, _sequence, lambda: torch.randn(1, 2, WIDTH), lambda: torch.randn(1, 2, WIDTH)
    ),
    "rnn_relu": built(lambda: _Layer("rnn", nonlinearity="relu", batch_first=True), _sequence),
    "gru_one_sequence": built(lambda: _Layer("gru"), lambda: torch.randn(STEPS, 8)),
    "lstm_cell": built(lambda: _Cells(nn.LSTMCell(8, WIDTH)), _sequence),
    "gru_cell": built(lambda: _Cells(nn.GRUCell(8, WIDTH)), _sequence),
    "rnn_cell": built(lambda: _Cells(nn.RNNCell(8, WIDTH)), _sequence),
    "recurrent_translator": built(_Translator, tokens, tokens),
    "convolutional_lstm": built(_Convolutional, lambda: torch.randn(2, 3, 2, 8, 8)),
    "minimal_gated_unit": built(_Minimal, _sequence),
    "selective_scan": built(_SelectiveScan, _sequence),
    "cumulative_mean": built(_Sums, _sequence),
}
