"""Training steps for benchmarks/torch_backend.py: each module gives its loss. Needs torch and transformers."""

from __future__ import annotations

from typing import Any

import torch


class Loss(torch.nn.Module):
    """The cross entropy of a model's first output with labels, in training mode."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.model(x, return_dict=False)[0]
        return torch.nn.functional.cross_entropy(logits, labels)


def resnet18_step() -> tuple[Any, tuple[Any, Any]]:
    """Four images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", embedding_size=64)
    inputs = (torch.randn(4, 3, 224, 224), torch.randint(0, config.num_labels, (4,)))
    return Loss(ResNetForImageClassification(config)).train(), inputs


def bert4_step() -> tuple[Any, tuple[Any, Any]]:
    """Four layers, four sequences of 128; without dropout, so that gradients can be compared."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=4,
        attn_implementation="eager",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    inputs = (torch.randint(0, 30000, (4, 128)), torch.randint(0, config.num_labels, (4,)))
    return Loss(BertForSequenceClassification(config)).train(), inputs


MODELS = {found.__name__: found for found in (resnet18_step, bert4_step)}
