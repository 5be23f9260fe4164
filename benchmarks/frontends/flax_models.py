"""The same with flax's linen modules. Needs flax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax import numpy as jnp

from frontends.jax_models import Model, Weights


def applied(module: Any, *inputs: Any) -> Model:
    variables = module.init(jax.random.key(0), *inputs)
    return lambda *given: module.apply(variables, *given), inputs


class Convolutional(nn.Module):
    @nn.compact
    def __call__(self, image: Any) -> Any:
        x = image
        for features in (16, 32):
            x = nn.Conv(features, (3, 3), strides=2)(x)
            x = nn.BatchNorm(use_running_average=True)(x)
            x = nn.avg_pool(nn.relu(x), (2, 2), (1, 1), "SAME")
        x = nn.ConvTranspose(16, (3, 3), strides=(2, 2))(x)
        return nn.Dense(10)(nn.max_pool(nn.GroupNorm(4)(x), (2, 2), (2, 2)).reshape(x.shape[0], -1))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = nn.Embed(64, 32)(ids) + self.param("positions", nn.initializers.normal(0.1), (ids.shape[1], 32))
        mask = nn.make_causal_mask(ids)
        for _ in range(2):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y, mask=mask)
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.RMSNorm()(x))))
        return nn.Dense(64)(x)


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, sequence: Any) -> Any:
        x = nn.RNN(nn.LSTMCell(24))(sequence)
        x = nn.RNN(nn.GRUCell(16))(x)
        return nn.Dense(5)(x[:, -1])


def _images() -> Any:
    return Weights(1).input(2, 16, 16, 3)


MODELS: dict[str, Callable[[], Model]] = {
    "flax convolutional": lambda: applied(Convolutional(), _images()),
    "flax transformer": lambda: applied(Transformer(), jnp.asarray(Weights(2).ids(64, 2, 12))),
    "flax lstm and gru": lambda: applied(Recurrent(), Weights(3).input(2, 6, 16)),
}
