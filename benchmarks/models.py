"""The ten whole models of the benchmarks: MODELS, name -> builder() -> (module, example inputs).

Weights and inputs are random, drawn from torch's generator as the caller seeded it: the module's first, then the inputs'.
All are float32, in evaluation mode and of batch one. Nine are architectures of transformers in their default or published
sizes, of which the first output is taken; classifiers score two classes. Nothing is downloaded. latency.py, preparation.py
and torch_backend.py run these unless `--models` names another file of the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

ModelWithInputs = tuple[nn.Module, tuple[Tensor, ...]]


class FirstOutput(nn.Module):
    """A model of transformers that takes one tensor and returns the first of its outputs."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = {"return_dict": False, **options}

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, **self.options)[0]


def classifies_image(model: nn.Module) -> ModelWithInputs:
    """The model in evaluation mode with one image of 224 x 224 in three channels."""
    return FirstOutput(model).eval(), (torch.randn(1, 3, 224, 224),)


def reads_tokens(model: nn.Module, length: int, **options: Any) -> ModelWithInputs:
    """The model in evaluation mode with one sequence of so many tokens."""
    return FirstOutput(model, **options).eval(), (tokens(length, 30_000),)


def tokens(length: int, vocabulary: int) -> Tensor:
    """Token numbers below `vocabulary`, of shape (1, length)."""
    return torch.randint(0, vocabulary, (1, length))


# -- models of transformers


def resnet18() -> ModelWithInputs:
    """ResNet-18: two basic blocks in each of four stages."""
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    )
    return classifies_image(transformers.ResNetForImageClassification(config))


def resnet50() -> ModelWithInputs:
    """ResNet-50: bottleneck blocks of three convolutions."""
    return classifies_image(transformers.ResNetForImageClassification(transformers.ResNetConfig()))


def mobilenet_v2() -> ModelWithInputs:
    """MobileNetV2 of full width: inverted residuals around depthwise convolutions."""
    return classifies_image(transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config()))


def bert_base_s128() -> ModelWithInputs:
    """BERT-base, 128 tokens, attention written out as products and softmax."""
    return reads_tokens(transformers.BertModel(transformers.BertConfig(attn_implementation="eager")), 128)


def vit_b16() -> ModelWithInputs:
    """ViT-B/16: 196 patches and a class token through twelve encoder layers."""
    return classifies_image(transformers.ViTModel(transformers.ViTConfig(attn_implementation="eager")))


def convnext_tiny() -> ModelWithInputs:
    """ConvNeXt-T: depthwise convolutions of 7 x 7, layer normalisation and gelu."""
    return classifies_image(transformers.ConvNextModel(transformers.ConvNextConfig()))


def swin_tiny() -> ModelWithInputs:
    """Swin-T: attention within windows that every second layer shifts."""
    return classifies_image(transformers.SwinModel(transformers.SwinConfig()))


def distilbert_s64() -> ModelWithInputs:
    """DistilBERT, six encoder layers, 64 tokens."""
    return reads_tokens(transformers.DistilBertModel(transformers.DistilBertConfig(attn_implementation="eager")), 64)


def gpt2_prefill_s64() -> ModelWithInputs:
    """GPT-2 reading a prompt of 64 tokens: causal attention, no cache kept."""
    config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
    return reads_tokens(transformers.GPT2Model(config), 64, use_cache=False)


# -- a decoder of Llama's kind


class DecoderLayer(nn.Module):
    """Attention over cached and own keys, then a gated feed-forward, each behind an RMS norm and added to its input."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.heads = heads
        self.attention_norm, self.forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (linear(width, width) for _ in "qkvo")
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(
        self, x: Tensor, past_keys: Tensor, past_values: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's output (1, 1, width) for the new token, with the key and the value that it adds to the cache."""
        normed = self.attention_norm(x)
        q, k, v = (self.by_head(project(normed)) for project in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        attended = scaled_dot_product_attention(q, torch.cat([past_keys, k], 2), torch.cat([past_values, v], 2))
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        normed = self.forward_norm(x)
        return x + self.down(silu(self.gate(normed)) * self.up(normed)), k, v

    def by_head(self, x: Tensor) -> Tensor:
        """(1, 1, width) as (1, heads, 1, width / heads)."""
        return x.view(x.shape[0], 1, self.heads, -1).transpose(1, 2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding: the halves of the last axis are the two coordinates that turn."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Decoder(nn.Module):
    """Layers between an embedding and a head that scores every word of the vocabulary."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([DecoderLayer(width, heads, inner) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(
        self, token: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the next token, and every layer's new key and value; `keys` and `values` have the layers first."""
        x, added = self.embedding(token), []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, keys[index], values[index], cos, sin)
            added.append((key, value))
        new_keys, new_values = map(torch.stack, zip(*added, strict=True))
        return self.head(self.norm(x)), new_keys, new_values


def llama_decode_c256() -> ModelWithInputs:
    """One token through eight decoder layers after 256 cached ones; reading the weights bounds its speed."""
    layers, heads, size, cached, vocabulary = 8, 16, 64, 256, 32_000
    decoder = Decoder(layers, heads * size, heads, 2816, vocabulary).eval()
    token = tokens(1, vocabulary)
    keys, values = (torch.randn(layers, 1, heads, cached, size) * 0.1 for _ in range(2))
    cos, sin = (torch.randn(1, 1, 1, size) for _ in range(2))
    return decoder, (token, keys, values, cos, sin)


MODELS: dict[str, Callable[[], ModelWithInputs]] = {
    builder.__name__: builder
    for builder in (
        *(resnet18, resnet50, mobilenet_v2, bert_base_s128, vit_b16),
        *(convnext_tiny, swin_tiny, distilbert_s64, gpt2_prefill_s64, llama_decode_c256),
    )
}
