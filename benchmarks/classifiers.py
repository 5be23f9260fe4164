"""Models that give less than a layer computes: classifiers that read one token, and a language model's next one.

    python benchmarks/before_after.py --models benchmarks/classifiers.py --other ../before --json

MODELS is as in models.py: random weights and inputs, architectures of transformers, one tensor of logits as the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

ModelWithInputs = tuple[nn.Module, tuple[Tensor, ...]]
EAGER: dict[str, Any] = {"attn_implementation": "eager"}


class Logits(nn.Module):
    """The logits of a model of transformers; of those of every token, the last one's."""

    def __init__(self, model: nn.Module, *, last: bool = False, **options: Any) -> None:
        super().__init__()
        self.model, self.last = model, last
        self.options = {"return_dict": False, **options}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x, **self.options)[0]
        return logits[:, -1] if self.last else logits


def vit_b16_classifier() -> ModelWithInputs:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**EAGER))
    return Logits(model).eval(), (torch.randn(1, 3, 224, 224),)


def bert_base_classifier_s128() -> ModelWithInputs:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**EAGER))
    return Logits(model).eval(), (torch.randint(0, 30000, (1, 128)),)


def distilbert_classifier_s64() -> ModelWithInputs:
    model = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**EAGER))
    return Logits(model).eval(), (torch.randint(0, 30000, (1, 64)),)


def gpt2_next_token_s64() -> ModelWithInputs:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **EAGER))
    return Logits(model, last=True, use_cache=False).eval(), (torch.randint(0, 30000, (1, 64)),)


MODELS: dict[str, Callable[[], ModelWithInputs]] = {
    made.__name__: made
    for made in (vit_b16_classifier, bert_base_classifier_s128, distilbert_classifier_s64, gpt2_next_token_s64)
}
