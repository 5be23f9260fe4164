"""Small configurations of transformers' architectures, with weights that make outputs neither zero nor chaos."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

Builder = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
"""Gives a module and example inputs; the seed is set before."""

VOCABULARY, LENGTH, BATCH, IMAGE = 128, 12, 2, 32
SMALL: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "image_size": IMAGE,
    "patch_size": 8,
    "num_labels": 10,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "layerdrop": 0.0,
    "attn_implementation": "sdpa",
}
"""What an architecture's configuration has of these is set to this."""
NAMES = (
    *("logits", "pred_boxes", "pred_masks", "masks_queries_logits", "class_queries_logits", "reconstruction"),
    *("predicted_depth", "last_hidden_state", "encoder_last_hidden_state", "pooler_output", "waveform", "spectrogram"),
    *(
        "prediction_outputs",
        "image_embeds",
        "text_embeds",
        "audio_values",
        "bbox_pred",
        "heatmaps",
        "start_logits",
        "pred_logits",
    ),
)
"""Of a model's outputs, those that are compared."""


class Outputs(nn.Module):
    """A transformers model that takes tensors by position and gives a tuple of those of its outputs that are in NAMES."""

    def __init__(self, model: nn.Module, arguments: tuple[str, ...], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.arguments, self.options = model, arguments, dict(options)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(**dict(zip(self.arguments, tensors, strict=True)), **self.options)
        if isinstance(found, torch.Tensor):
            return (found,)
        items = found.items() if hasattr(found, "items") else enumerate(found)
        named = [value for name, value in items if isinstance(value, torch.Tensor) and name in (*NAMES, 0)]
        return tuple(value for value in named if value.is_floating_point())


def tokens(length: int = LENGTH, batch: int = BATCH, least: int = 3) -> torch.Tensor:
    """Token numbers; special ones, which come first, are left out."""
    return torch.randint(least, VOCABULARY, (batch, length))


def mask(length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    """1 where a sequence has a token; the last one ends earlier."""
    found = torch.ones(batch, length, dtype=torch.int64)
    found[-1, length // 2 :] = 0
    return found


def image(size: int = IMAGE, channels: int = 3, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


def normal(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


def built(make: Callable[[], nn.Module], *inputs: Callable[[], torch.Tensor]) -> Builder:
    """A builder of a module written by hand."""
    return lambda: (scaled(make()).eval(), tuple(one() for one in inputs))


def architecture(
    model: str,
    inputs: Mapping[str, Callable[[], torch.Tensor]],
    options: Mapping[str, Any] | None = None,
    **config: Any,
) -> Builder:
    """A builder of a class of transformers, its configuration SMALL but for what `config` says."""

    def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        import transformers

        kind = getattr(transformers, model)
        built = kind(configured(kind.config_class, config))
        scaled(built)
        return Outputs(built, tuple(inputs), options or {}).eval(), tuple(make() for make in inputs.values())

    return build


def configured(kind: Any, given: Mapping[str, Any]) -> Any:
    """A configuration of that class; parts of it that have a configuration of their own are given as mappings."""
    default = kind()
    parts = getattr(kind, "sub_configs", {})
    settings = {name: value for name, value in SMALL.items() if hasattr(default, name) and name not in parts}
    for name, value in given.items():
        part = getattr(default, name, None)
        is_part = name in parts and isinstance(value, Mapping) and part is not None
        if isinstance(value, tuple):  # a configuration of another architecture: its model type, and what it is given
            from transformers import CONFIG_MAPPING

            settings[name] = configured(CONFIG_MAPPING[value[0]], value[1])
        else:
            settings[name] = configured(type(part), value).to_dict() if is_part else value
    found = kind(**{name: value for name, value in settings.items() if value is not DEFAULT})
    for name, value in vars(found).items():
        if isinstance(value, float) and "drop" in name:
            setattr(found, name, 0.0)
    for name, value in (("use_cache", False), ("apply_spec_augment", False)):
        if hasattr(found, name):
            setattr(found, name, value)
    return found


DEFAULT = object()
"""In place of a value: what the architecture has by default, not SMALL's."""


def scaled(module: nn.Module) -> nn.Module:
    """The module with weights for which signals keep their size, and statistics that are not those of nothing."""
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False):
            with torch.no_grad():
                if name == "weight" and weight.dim() == 1:
                    weight.copy_(1 + 0.2 * torch.randn_like(weight))
                elif name.startswith("bias"):
                    weight.normal_(0, 0.1)
                elif isinstance(part, nn.Embedding):
                    weight.normal_(0, 0.7)
                elif name == "weight" and weight.dim() > 1:
                    fan = weight[0].numel() if "Conv1D" not in type(part).__name__ else weight.shape[0]
                    weight.normal_(0, fan**-0.5)
                elif not weight.any():
                    weight.normal_(0, 0.3)
        if isinstance(getattr(part, "running_var", None), torch.Tensor):
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 1.5)
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return module


def named(builders: Iterable[tuple[str, Builder]]) -> dict[str, Builder]:
    """By name; a name that is there twice is a mistake."""
    found: dict[str, Builder] = {}
    for name, builder in builders:
        if name in found:
            raise ValueError(f"two architectures are called {name}")
        found[name] = builder
    return found
