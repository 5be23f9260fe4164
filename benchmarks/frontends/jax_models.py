"""Small models as JAX users write them: plain JAX, and flax's linen. Random weights, outputs of ordinary size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

Model = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function to be jitted, and example inputs."""


class Weights:
    """Normal arrays, one after another from one seed, of the size that keeps a layer's output as large as its input."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Any:
        inputs = int(np.prod(shape[:-1])) if len(shape) > 1 else shape[0]
        return jnp.asarray(self._rng.normal(0, inputs**-0.5, shape), jnp.float32)

    def input(self, *shape: int) -> Any:
        return jnp.asarray(self._rng.normal(0, 1, shape), jnp.float32)

    def ids(self, below: int, *shape: int) -> Any:
        return jnp.asarray(self._rng.integers(0, below, shape), jnp.int32)


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * (1 + scale) + bias


def conv(x: Any, kernel: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=numbers, feature_group_count=groups
    )


def mlp_mixer() -> Model:
    w, patches, width = Weights(1), 16, 32
    stem = w(4, 4, 3, width)
    blocks = [(w(width), w(width), w(patches, 48), w(48, patches), w(width, 64), w(64, width)) for _ in range(2)]
    head = w(width, 10)

    def forward(image: Any) -> Any:
        x = conv(image, stem, 4, "VALID").reshape(image.shape[0], patches, width)
        for scale, bias, tokens_in, tokens_out, channels_in, channels_out in blocks:
            mixed = nn.gelu(jnp.swapaxes(layer_norm(x, scale, bias), 1, 2) @ tokens_in) @ tokens_out
            x = x + jnp.swapaxes(mixed, 1, 2)
            x = x + nn.gelu(layer_norm(x, bias, scale) @ channels_in, approximate=False) @ channels_out
        return x.mean(1) @ head

    return forward, (w.input(2, 16, 16, 3),)


def convolutional() -> Model:
    """Batch norm with stored statistics, both poolings, a log-softmax."""
    w = Weights(2)
    layers = [(w(3, 3, 3, 16), w(16), w(16), w(16)), (w(3, 3, 16, 32), w(32), w(32), w(32))]
    deep, head = w(3, 3, 1, 32), w(4 * 4 * 32, 10)

    def forward(image: Any) -> Any:
        x = image
        for kernel, mean, variance, bias in layers:
            x = conv(x, kernel)
            x = nn.relu((x - mean) * lax.rsqrt(jnp.abs(variance) + 1.0) + bias)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        x = nn.hard_swish(conv(x, deep, groups=32))
        x = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9.0
        return nn.log_softmax(jnp.tile(x, (1, 2, 2, 1)).reshape(x.shape[0], -1) @ head)

    return forward, (w.input(2, 16, 16, 3),)


def group_norm_resnet() -> Model:
    w, groups = Weights(3), 4
    stem = w(3, 3, 3, 16)
    blocks = [
        (w(3, 3, 16, 16), w(3, 3, 16, 16), None, 1),
        (w(3, 3, 16, 32), w(3, 3, 32, 32), w(1, 1, 16, 32), 2),
    ]
    head = w(32, 10)

    def norm(x: Any) -> Any:
        grouped = x.reshape(*x.shape[:-1], groups, -1)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = jnp.square(grouped - mean).mean((1, 2, 4), keepdims=True)
        return ((grouped - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape)

    def forward(image: Any) -> Any:
        x = conv(image, stem)
        for first, second, short, stride in blocks:
            y = conv(nn.silu(norm(x)), first, stride)
            y = conv(nn.silu(norm(y)), second)
            x = y + (x if short is None else conv(x, short, stride))
        return nn.softmax(x.mean((1, 2)) @ head)

    return forward, (w.input(2, 16, 16, 3),)


def encoder() -> Model:
    """A transformer's encoder: looked-up embeddings, a padding mask, heads by einsum, erf's gelu, first token taken."""
    w, width, heads = Weights(4), 32, 4
    table, positions = w(64, width) * 5, w(12, width)
    blocks = [
        (
            *(w(width, heads, width // heads) for _ in range(3)),
            *(w(heads, width // heads, width), w(width, 64), w(64, width), w(width), w(width)),
        )
        for _ in range(2)
    ]

    def forward(ids: Any, mask: Any) -> Any:
        x = table[ids] + positions
        for q, k, v, out, up, down, scale, bias in blocks:
            queries, keys, values = (jnp.einsum("bsd,dhe->bhse", x, one) for one in (q, k, v))
            scores = jnp.einsum("bhse,bhte->bhst", queries, keys) / (width // heads) ** 0.5
            weights = nn.softmax(jnp.where(mask[:, None, None, :] > 0, scores, -1e9))
            x = layer_norm(x + jnp.einsum("bhst,bhte,hed->bsd", weights, values, out), scale, bias)
            x = layer_norm(x + nn.gelu(x @ up, approximate=False) @ down, bias, scale)
        return x, jnp.tanh(x[:, 0])

    mask = (np.arange(12) < np.array([[12], [7]])).astype(np.float32)
    return forward, (w.ids(64, 2, 12), jnp.asarray(mask))


def decoder() -> Model:
    """A causal language model: rotary positions, fewer keys than queries, RMS norms, gated products, the last token."""
    w, width, heads, groups = Weights(5), 32, 4, 2
    size = width // heads
    table = w(64, width) * 5
    blocks = [
        (
            *(w(width, columns) for columns in (width, groups * size, groups * size, width)),
            *(w(width, 64), w(width, 64), w(64, width)),
        )
        for _ in range(2)
    ]

    def norm(x: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    def rotated(x: Any) -> Any:
        steps = jnp.arange(x.shape[1])[:, None] * (10000.0 ** (-jnp.arange(0, size, 2) / size))[None]
        cos, sin = jnp.cos(steps)[None, :, None], jnp.sin(steps)[None, :, None]
        left, right = jnp.split(x, 2, -1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def forward(ids: Any) -> Any:
        batch, length = ids.shape
        x = jnp.take(table, ids, axis=0)
        causal = jnp.tril(jnp.ones((length, length), bool))
        for q, k, v, out, gate, up, down in blocks:
            y = norm(x)
            queries = rotated((y @ q).reshape(batch, length, heads, size))
            keys = jnp.repeat(rotated((y @ k).reshape(batch, length, groups, size)), heads // groups, 2)
            values = jnp.repeat((y @ v).reshape(batch, length, groups, size), heads // groups, 2)
            scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) * size**-0.5
            weights = nn.softmax(jnp.where(causal, scores, jnp.finfo(jnp.float32).min))
            x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(batch, length, width) @ out
            y = norm(x)
            x = x + (nn.silu(y @ gate) * (y @ up)) @ down
        return norm(x)[:, -1] @ table.T

    return forward, (w.ids(64, 2, 10),)


def gru() -> Model:
    """A recurrent classifier by lax.scan: the length is known, the loop is a StableHLO while."""
    w, width, inputs = Weights(6), 24, 16
    wz, wr, wh = (w(inputs + width, width) for _ in range(3))
    head = w(width, 5)

    def forward(sequence: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, Any]:
            both = jnp.concatenate([x, state], -1)
            z, r = nn.sigmoid(both @ wz), nn.sigmoid(both @ wr)
            new = jnp.tanh(jnp.concatenate([x, r * state], -1) @ wh)
            state = (1 - z) * state + z * new
            return state, state

        last, states = lax.scan(step, jnp.zeros((sequence.shape[0], width)), jnp.swapaxes(sequence, 0, 1))
        return last @ head, states[-1], jnp.swapaxes(states, 0, 1)

    return forward, (w.input(2, 8, inputs),)


def u_net() -> Model:
    """Down, up by a transposed convolution and by resizing, skips."""
    w = Weights(7)
    down, bottom, up = w(3, 3, 3, 16), w(3, 3, 16, 32), w(3, 3, 32, 16)
    merged, last = w(3, 3, 32, 16), w(1, 1, 16, 2)

    def forward(image: Any) -> Any:
        first = nn.leaky_relu(conv(image, down))
        low = nn.leaky_relu(conv(first, bottom, 2))
        high = lax.conv_transpose(low, up, (2, 2), "SAME")
        x = nn.leaky_relu(conv(jnp.concatenate([first, high], -1), merged))
        small = conv(x, last)
        return jax.image.resize(small, (2, 32, 32, 2), "nearest"), nn.sigmoid(small)

    return forward, (w.input(2, 16, 16, 3),)


def cross_attention() -> Model:
    """Attention by einsum alone, with a bias of relative positions that is gathered."""
    w, heads, size = Weights(8), 4, 8
    q, k, v, out = w(32, heads, size), w(24, heads, size), w(24, heads, size), w(heads, size, 32)
    biases = w(heads, 2 * 10 - 1) * 3

    def forward(x: Any, memory: Any) -> Any:
        distance = jnp.arange(6)[:, None] - jnp.arange(10)[None] + 9
        queries, keys, values = (
            jnp.einsum("...sd,dhe->...hse", side, one) for side, one in ((x, q), (memory, k), (memory, v))
        )
        scores = jnp.einsum("...qe,...ke->...qk", queries, keys) + biases[:, distance]
        return x + jnp.einsum("bhqk,bhke,hed->bqd", nn.softmax(scores / size**0.5), values, out)

    return forward, (w.input(2, 6, 32), w.input(2, 10, 24))


def vision_transformer() -> Model:
    w, width, heads = Weights(9), 32, 4
    stem, token, positions = w(4, 4, 3, width), w(1, 1, width), w(1, 17, width)
    blocks = [(w(width, 3 * width), w(width, width), w(width, 64), w(64, width), w(width), w(width)) for _ in range(2)]
    head = w(width, 10)

    def forward(image: Any) -> Any:
        x = conv(image, stem, 4, "VALID")
        x = x.reshape(x.shape[0], -1, width)
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, width)), x], 1) + positions
        for qkv, out, up, down, scale, bias in blocks:
            y = layer_norm(x, scale, bias) @ qkv
            q, k, v = jnp.moveaxis(y.reshape(*y.shape[:2], 3, heads, -1), 2, 0)
            x = x + nn.dot_product_attention(q, k, v).reshape(x.shape) @ out
            x = x + nn.gelu(layer_norm(x, bias, scale) @ up) @ down
        return x[:, 0] @ head

    return forward, (w.input(2, 16, 16, 3),)


def diffusion_step() -> Model:
    """A denoiser's block: an embedding of the time by sines, scale and shift, softplus, and the step itself."""
    w = Weights(10)
    first, second, kernel, back = w(32, 64), w(64, 32), w(3, 3, 3, 16), w(3, 3, 16, 3)

    def forward(image: Any, step: Any) -> Any:
        frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(16) / 16)
        angles = step[:, None].astype(jnp.float32) * frequencies
        embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        shift, scale = jnp.split(nn.swish(embedded @ first) @ second, 2, -1)
        x = conv(image, kernel) * (1 + scale[:, None, None]) + shift[:, None, None]
        noise = conv(nn.softplus(x), back)
        alpha = jnp.clip(jnp.cos(step.astype(jnp.float32) / 1000 * jnp.pi / 2) ** 2, 1e-3, 1.0)[:, None, None, None]
        return (image - jnp.sqrt(1 - alpha) * noise) / jnp.sqrt(alpha)

    return forward, (w.input(2, 16, 16, 3), jnp.asarray([10, 700], jnp.int32))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp mixer": mlp_mixer,
    "convolutions and batch norm": convolutional,
    "resnet with group norm": group_norm_resnet,
    "transformer encoder": encoder,
    "causal decoder": decoder,
    "gru by scan": gru,
    "u-net": u_net,
    "cross attention": cross_attention,
    "vision transformer": vision_transformer,
    "diffusion step": diffusion_step,
}
