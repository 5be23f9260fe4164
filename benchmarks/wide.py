"""Architectures of transformers at the width of their base models, with one or two layers and random weights.

What a layer takes shows in two of them, and a build takes seconds, so that many architectures can be measured in one run.
One sequence or image each. `benchmarks/latency.py --models benchmarks/wide.py --target cuda --seconds 0` runs them untuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from architectures.small import Builder, Outputs, image, scaled
from architectures.small import tokens as small_tokens

_NO_CACHE = {"use_cache": False}
_WORDS: Mapping[str, Any] = {"vocab_size": 2000, "num_hidden_layers": 2}
_BASE: Mapping[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LARGE: Mapping[str, Any] = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816}


def wide(
    model: str,
    inputs: Mapping[str, Callable[[], torch.Tensor]],
    options: Mapping[str, Any] | None = None,
    **config: Any,
) -> Builder:
    """A builder of a class of transformers. config: what differs from its defaults; a pair (model type, configuration) where
    a part is of another architecture."""

    def build() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        import transformers

        kind = getattr(transformers, model)
        given = {
            name: transformers.CONFIG_MAPPING[value[0]](**value[1]) if isinstance(value, tuple) else value
            for name, value in config.items()
        }
        built = kind(kind.config_class(**given))
        scaled(built)
        return Outputs(built, tuple(inputs), options or {}).eval(), tuple(make() for make in inputs.values())

    return build


def tokens(length: int) -> Callable[[], torch.Tensor]:
    return partial(small_tokens, length, 1)


def _reads(model: str, length: int = 128, **config: Any) -> Builder:
    return wide(model, {"input_ids": tokens(length)}, **{**_WORDS, **config})


def _writes(model: str, length: int = 128, **config: Any) -> Builder:
    return wide(model, {"input_ids": tokens(length)}, _NO_CACHE, **{**_WORDS, **config})


def _sees(model: str, size: int = 224, **config: Any) -> Builder:
    return wide(model, {"pixel_values": partial(image, size, 3, 1)}, **config)


def _hears(model: str, **config: Any) -> Builder:
    return wide(model, {"input_values": lambda: torch.randn(1, 16000)}, num_hidden_layers=2, **config)


def _both(model: str, text: int, size: int, **config: Any) -> Builder:
    return wide(model, {"input_ids": tokens(text), "pixel_values": partial(image, size, 3, 1)}, **config)


_STAGES = {"layer_type": "basic", "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [1, 1, 1, 1]}

READERS: Mapping[str, Builder] = {
    "albert": _reads("AlbertModel", **_BASE),
    "roberta": _reads("RobertaForMaskedLM"),
    "deberta_v2": _reads(
        "DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=256, **_BASE
    ),
    "mobilebert": _reads("MobileBertModel"),
    "squeezebert": _reads("SqueezeBertModel"),
    "convbert": _reads("ConvBertModel"),
    "modernbert": _reads("ModernBertModel", pad_token_id=0),
    "mpnet": _reads("MPNetModel"),
    "esm": _reads("EsmModel", pad_token_id=1, position_embedding_type="rotary", **_BASE),
    "sentence": _reads("BertModel", 32, hidden_size=384, num_attention_heads=12, intermediate_size=1536),
    "xlnet": wide("XLNetModel", {"input_ids": tokens(128)}, vocab_size=2000, d_model=768, n_layer=2, n_head=12),
}

WRITERS: Mapping[str, Builder] = {
    "gpt_neox": _writes("GPTNeoXModel", **_BASE),
    "bloom": _writes("BloomModel", hidden_size=1024, n_layer=2, n_head=16),
    "opt": _writes("OPTModel"),
    "falcon": _writes("FalconModel", hidden_size=1024, num_attention_heads=16, multi_query=True),
    "phi3": _writes("Phi3Model", pad_token_id=0, num_key_value_heads=16, **_LARGE),
    "gemma2": _writes("Gemma2Model", hidden_size=1152, intermediate_size=4608, num_attention_heads=8, head_dim=128),
    "gemma3": _writes("Gemma3TextModel", hidden_size=640, intermediate_size=2048, sliding_window=64),
    "llama": _writes("LlamaForCausalLM", num_key_value_heads=4, **_LARGE),
    "olmo2": _writes("Olmo2Model", **_LARGE),
    "mamba2": _writes("Mamba2Model", hidden_size=512, num_heads=16, state_size=64, n_groups=1, chunk_size=64),
    "mt5": wide("MT5Model", {"input_ids": tokens(64), "decoder_input_ids": tokens(64)}, _NO_CACHE, num_layers=2),
}

VIEWERS: Mapping[str, Builder] = {
    "beit": _sees("BeitModel", use_relative_position_bias=True, num_hidden_layers=2),
    "bit": _sees("BitModel", depths=[1, 1, 1, 1]),
    "deit": _sees("DeiTModel", hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_hidden_layers=2),
    "depth_transformer": _sees(
        "DPTForDepthEstimation",
        image_size=224,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[96, 192, 384, 768],
        is_hybrid=False,
    ),
    "dinov3": _sees("DINOv3ViTModel", num_hidden_layers=2),
    "efficientnet": _sees("EfficientNetModel", width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    "focalnet": _sees("FocalNetModel", depths=[1, 1, 1, 1]),
    "glpn": _sees("GLPNForDepthEstimation", depths=[1, 1, 1, 1]),
    "hgnet": _sees("HGNetV2ForImageClassification"),
    "hiera": _sees("HieraModel", depths=[1, 1, 2, 1]),
    "levit": _sees("LevitModel", depths=[1, 1, 1]),
    "mobilenet_v1": _sees("MobileNetV1Model"),
    "mobilevit": _sees("MobileViTModel", 256),
    "pvt_v2": _sees("PvtV2Model", depths=[1, 1, 1, 1]),
    "siglip": _sees("SiglipVisionModel", num_hidden_layers=2),
    "swin2sr": _sees(
        "Swin2SRForImageSuperResolution", 64, image_size=64, depths=[1, 1], num_heads=[6, 6], embed_dim=60, upscale=2
    ),
    "textnet": _sees("TextNetModel", 320),
    "timesformer": wide(
        "TimesformerModel",
        {"pixel_values": lambda: torch.randn(1, 4, 3, 224, 224)},
        num_frames=4,
        num_hidden_layers=2,
    ),
    "upernet": _sees(
        "UperNetForSemanticSegmentation",
        256,
        hidden_size=128,
        auxiliary_in_channels=256,
        backbone_config=("resnet", {**_STAGES, "out_features": ["stage1", "stage2", "stage3", "stage4"]}),
    ),
    "vitdet": _sees(
        "VitDetModel",
        256,
        image_size=256,
        pretrain_image_size=256,
        num_hidden_layers=2,
        window_block_indices=[0],
        window_size=7,
        use_relative_position_embeddings=True,
    ),
    "yolos": _sees("YolosForObjectDetection", 256, image_size=[256, 256], num_hidden_layers=2),
    "clip": _both(
        "CLIPModel",
        77,
        224,
        text_config={"vocab_size": 2000, "num_hidden_layers": 2},
        vision_config={"num_hidden_layers": 2},
    ),
}

LISTENERS: Mapping[str, Builder] = {
    "hubert": _hears("HubertModel"),
    "sew": _hears("SEWModel"),
    "wavlm": _hears("WavLMModel"),
    "spectrogram": wide(
        "ASTModel", {"input_values": lambda: torch.randn(1, 512, 128)}, max_length=512, num_hidden_layers=2
    ),
}

MODELS: Mapping[str, Builder] = {**READERS, **WRITERS, **VIEWERS, **LISTENERS}
