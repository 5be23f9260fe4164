"""Whole models of other kinds than the ten of models.py: MODELS, name -> builder() -> (module, example inputs).

Detection, segmentation, diffusion, super-resolution, restoration, video, point clouds, speech, recommendation, mixtures of
experts, state spaces, encoders with decoders. Random weights and inputs, float32, batch one but for `dlrm`; nothing is
downloaded. latency.py runs them with `--models benchmarks/others.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import transformers
from other_images import nafnet, restormer, vgg11, xcit
from other_modules import (
    Bottleneck,
    Diffusion,
    LanguageModel,
    Mixer,
    OfVideo,
    PointNet,
    Ranking,
    Residual,
    Segmenter,
    Vocoder,
    Yolo,
    convolved,
    inverted,
    pooled,
    stem,
)
from torch import Tensor, nn

ModelWithInputs = tuple[nn.Module, tuple[Tensor, ...]]


class Named(nn.Module):
    """A model of transformers that takes tensors by name, and returns the first of its outputs."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=False)[0]


def of_image(model: nn.Module, size: int = 224) -> ModelWithInputs:
    return model.eval(), (torch.randn(1, 3, size, size),)


def yolo_s() -> ModelWithInputs:
    return of_image(Yolo(), 320)


def diffusion_unet() -> ModelWithInputs:
    return Diffusion().eval(), (torch.randn(1, 4, 64, 64), torch.tensor([17]))


def mixer_s16() -> ModelWithInputs:
    return of_image(Mixer())


def convmixer() -> ModelWithInputs:
    """Depthwise convolutions of 9 x 9 with residuals, and products over channels."""
    w = 256
    layers: list[nn.Module] = [nn.Conv2d(3, w, 7, 7), nn.GELU(), nn.BatchNorm2d(w)]
    for _ in range(8):
        across = nn.Conv2d(w, w, 9, groups=w, padding=4)
        layers += [Residual(across, nn.GELU(), nn.BatchNorm2d(w)), nn.Conv2d(w, w, 1), nn.GELU(), nn.BatchNorm2d(w)]
    return of_image(nn.Sequential(*layers, *pooled(w)))


def resnext50() -> ModelWithInputs:
    layers, channels = stem(), 64
    for stage, (depth, inner) in enumerate(((3, 128), (4, 256), (6, 512), (3, 1024))):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, inner, 2 * inner, stride, 32))
            channels = 2 * inner
    return of_image(nn.Sequential(*layers, *pooled(channels)))


def mobilenet_v3() -> ModelWithInputs:
    """MobileNetV3-Large."""
    blocks: Sequence[tuple[int, int, int, int, int, int, int]] = (
        *((16, 3, 16, 16, 0, 0, 1), (16, 3, 64, 24, 0, 0, 2), (24, 3, 72, 24, 0, 0, 1), (24, 5, 72, 40, 1, 0, 2)),
        *((40, 5, 120, 40, 1, 0, 1), (40, 5, 120, 40, 1, 0, 1), (40, 3, 240, 80, 0, 1, 2), (80, 3, 200, 80, 0, 1, 1)),
        *(
            (80, 3, 184, 80, 0, 1, 1),
            (80, 3, 184, 80, 0, 1, 1),
            (80, 3, 480, 112, 1, 1, 1),
            (112, 3, 672, 112, 1, 1, 1),
        ),
        *((112, 5, 672, 160, 1, 1, 2), (160, 5, 960, 160, 1, 1, 1), (160, 5, 960, 160, 1, 1, 1)),
    )
    layers = [convolved(3, 16, 3, 2, act=nn.Hardswish)]
    layers += [inverted(a, b, c, d, bool(e), bool(f), g) for a, b, c, d, e, f, g in blocks]
    layers.append(convolved(160, 960, act=nn.Hardswish))
    return of_image(nn.Sequential(*layers, *pooled(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)))


def r3d() -> ModelWithInputs:
    """Eight frames of 112 x 112."""
    first = nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    layers = [first, nn.BatchNorm3d(64), nn.ReLU(), OfVideo(64, 64, 1)]
    layers += [OfVideo(width, 2 * width, 2) for width in (64, 128, 256)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))
    return model.eval(), (torch.randn(1, 3, 8, 112, 112),)


def deeplab() -> ModelWithInputs:
    return of_image(Segmenter(), 256)


def edsr() -> ModelWithInputs:
    """Super-resolution by two."""
    w = 64

    def convolution(width: int) -> nn.Module:
        return nn.Conv2d(w, width, 3, padding=1)

    body = Residual(*(Residual(convolution(w), nn.ReLU(), convolution(w)) for _ in range(8)))
    model = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), body, convolution(4 * w), nn.PixelShuffle(2), convolution(3))
    return of_image(model, 96)


def pointnet() -> ModelWithInputs:
    return PointNet().eval(), (torch.randn(1, 3, 2048),)


def hifigan() -> ModelWithInputs:
    return Vocoder().eval(), (torch.randn(1, 80, 64),)


def dlrm() -> ModelWithInputs:
    """A batch of 64."""
    return Ranking().eval(), (torch.randn(64, 13), torch.randint(0, 10_000, (64, 26)))


def lstm_lm() -> ModelWithInputs:
    return LanguageModel().eval(), (torch.randint(0, 5000, (1, 32)),)


# -- models of transformers


def tokens(length: int) -> Callable[[], Tensor]:
    return partial(torch.randint, 0, 1000, (1, length))


def image(size: int) -> Callable[[], Tensor]:
    return partial(torch.randn, 1, 3, size, size)


def architecture(name: str, takes: dict[str, Callable[[], Tensor]], **config: Any) -> Callable[[], ModelWithInputs]:
    """A builder of `<name>Model` with the configuration, which takes such tensors."""

    def build() -> ModelWithInputs:
        configuration = getattr(transformers, f"{name}Config")
        model = getattr(transformers, f"{name}Model")(configuration(**config))
        return Named(model, list(takes)).eval(), tuple(make() for make in takes.values())

    return build


_READS = {"input_ids": tokens(64)}
_SMALL: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6}
_WHISPER: dict[str, Any] = {
    **{f"{side}_layers": 4 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 6 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 1536 for side in ("encoder", "decoder")},
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_key_value_heads": 2, "vocab_size": 5000}
_DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 64,
    "norm_rel_ebd": "layer_norm",
    "vocab_size": 5000,
}
_QWEN: dict[str, Any] = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "vocab_size": 10_000}
ARCHITECTURES = {
    "clip_text": architecture("CLIPText", {"input_ids": tokens(77)}, num_hidden_layers=6),
    "t5_small": architecture(
        "T5",
        {**_READS, "decoder_input_ids": tokens(16)},
        d_model=512,
        d_ff=2048,
        num_layers=6,
        num_heads=8,
        use_cache=False,
    ),
    "whisper": architecture(
        "Whisper",
        {"input_features": partial(torch.randn, 1, 80, 1000), "decoder_input_ids": tokens(8)},
        d_model=384,
        max_source_positions=500,
        use_cache=False,
        **_WHISPER,
    ),
    "qwen2": architecture("Qwen2", _READS, num_hidden_layers=6, num_key_value_heads=2, use_cache=False, **_QWEN),
    "mamba": architecture(
        "Mamba", {"input_ids": tokens(16)}, hidden_size=512, num_hidden_layers=4, vocab_size=5000, use_cache=False
    ),
    "deberta": architecture(
        "DebertaV2", {"input_ids": tokens(96)}, num_hidden_layers=6, intermediate_size=1536, **_SMALL, **_DEBERTA
    ),
    "sam_vit": architecture(
        "SamVision",
        {"pixel_values": image(512)},
        num_hidden_layers=6,
        image_size=512,
        window_size=14,
        global_attn_indexes=[2, 5],
        **_SMALL,
    ),
    "dinov2": architecture("Dinov2", {"pixel_values": image(224)}, num_hidden_layers=12, image_size=224, **_SMALL),
    "convnextv2": architecture(
        "ConvNextV2", {"pixel_values": image(224)}, hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2]
    ),
    "segformer": architecture("Segformer", {"pixel_values": image(256)}),
    "poolformer": architecture("PoolFormer", {"pixel_values": image(224)}, depths=[2, 2, 6, 2]),
    "regnet": architecture(
        "RegNet",
        {"pixel_values": image(224)},
        depths=[1, 2, 7, 12],
        hidden_sizes=[32, 96, 192, 432],
        groups_width=48,
    ),
    "wav2vec2": architecture(
        "Wav2Vec2",
        {"input_values": partial(torch.randn, 1, 16_000)},
        num_hidden_layers=6,
        intermediate_size=1536,
        **_SMALL,
    ),
    "mixtral": architecture(
        "Mixtral",
        {"input_ids": tokens(32)},
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        use_cache=False,
        **_EXPERTS,
    ),
}
MODELS: dict[str, Callable[[], ModelWithInputs]] = {
    builder.__name__: builder
    for builder in (
        *(yolo_s, diffusion_unet, mixer_s16, convmixer, resnext50, mobilenet_v3, r3d, deeplab, edsr),
        *(pointnet, hifigan, dlrm, lstm_lm, nafnet, restormer, xcit, vgg11),
    )
} | ARCHITECTURES
