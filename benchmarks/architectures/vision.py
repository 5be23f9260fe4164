"""Vision models of transformers: classifiers, encoders, detection, segmentation, depth, with text beside images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .small import DEFAULT, Builder, architecture, image, tokens


def _sees(model: str, *, size: int = 32, channels: int = 3, **config: Any) -> Builder:
    return architecture(model, {"pixel_values": partial(image, size, channels)}, **config)


def _reads_and_sees(model: str, **config: Any) -> Builder:
    return architecture(model, {"input_ids": tokens, "pixel_values": image}, **config)


def _video(frames: int, size: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(1, frames, 3, size, size)


_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32], "depths": [1, 1]}
_RESNET: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage1", "stage2"],
}
_SWIN: dict[str, Any] = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "patch_size": 2,
    "image_size": 32,
    "num_attention_heads": DEFAULT,
    "num_hidden_layers": DEFAULT,
    "hidden_size": DEFAULT,
}
_TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_SEEING: dict[str, Any] = {**_TINY, "image_size": 32, "patch_size": 8}
_READING: dict[str, Any] = {**_TINY, "vocab_size": 128, "max_position_embeddings": 64, "eos_token_id": 127}
_BOXES: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_queries": 6,
}

MODELS: dict[str, Builder] = {
    "aimv2": _sees("Aimv2VisionModel"),
    "beit": _sees("BeitModel"),
    "beit_segmentation": _sees("BeitForImageClassification", use_relative_position_bias=True),
    "bit": _sees(
        "BitModel", **_STAGES, embedding_size=16, layer_type="preactivation", num_groups=4, num_hidden_layers=DEFAULT
    ),
    "bit_bottleneck": _sees("BitModel", **_STAGES, embedding_size=16, layer_type="bottleneck", num_groups=4),
    "clip_vision": _sees("CLIPVisionModel"),
    "clip": _reads_and_sees("CLIPModel", text_config=_READING, vision_config=_SEEING, projection_dim=16),
    "clipseg": _reads_and_sees(
        "CLIPSegForImageSegmentation",
        text_config=_READING,
        vision_config=_SEEING,
        projection_dim=32,
        extract_layers=[0, 1],
        reduce_dim=16,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=32,
    ),
    "chinese_clip": _reads_and_sees("ChineseCLIPModel", text_config=_READING, vision_config=_SEEING, projection_dim=16),
    "conditional_detr": _sees(
        "ConditionalDetrForObjectDetection",
        size=64,
        **_BOXES,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        backbone_config=("resnet", _RESNET),
        use_timm_backbone=False,
    ),
    "convnext": _sees("ConvNextModel", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, patch_size=4),
    "convnextv2": _sees("ConvNextV2Model", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, patch_size=4),
    "data2vec_vision": _sees("Data2VecVisionModel"),
    "dab_detr": _sees(
        "DabDetrForObjectDetection",
        size=64,
        hidden_size=32,
        encoder_layers=1,
        decoder_layers=1,
        num_queries=6,
        backbone_config=("resnet", _RESNET),
        use_timm_backbone=False,
    ),
    "deit": _sees("DeiTModel"),
    "depth_anything": _sees(
        "DepthAnythingForDepthEstimation",
        backbone_config=("dinov2", {**_SEEING, "out_features": ["stage1", "stage2"], "reshape_hidden_states": False}),
        neck_hidden_sizes=[16, 32],
        fusion_hidden_size=16,
        reassemble_factors=[2, 1],
        reassemble_hidden_size=32,
        head_hidden_size=8,
        patch_size=8,
    ),
    "detr": _sees(
        "DetrForObjectDetection", size=64, **_BOXES, backbone_config=("resnet", _RESNET), use_timm_backbone=False
    ),
    "dinov2": _sees("Dinov2Model"),
    "dinov2_registers": _sees("Dinov2WithRegistersModel"),
    "dinov3_vit": _sees("DINOv3ViTModel"),
    "dinov3_convnext": _sees("DINOv3ConvNextModel", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
    "donut_swin": _sees("DonutSwinModel", **_SWIN),
    "efficientnet": _sees("EfficientNetModel", width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320),
    "focalnet": _sees(
        "FocalNetModel",
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
        patch_size=4,
    ),
    "glpn": _sees(
        "GLPNForDepthEstimation",
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        size=64,
        num_hidden_layers=DEFAULT,
    ),
    "groupvit_vision": _sees(
        "GroupViTVisionModel",
        depths=[1, 1, 1],
        num_group_tokens=[8, 4, 0],
        num_output_groups=[8, 4, 0],
        num_hidden_layers=DEFAULT,
    ),
    "hgnet_v2": _sees(
        "HGNetV2ForImageClassification",
        stem_channels=[3, 8, 16],
        stage_in_channels=[16, 16],
        stage_mid_channels=[8, 8],
        stage_out_channels=[16, 32],
        stage_num_blocks=[1, 1],
        stage_downsample=[False, True],
        stage_light_block=[False, True],
        stage_kernel_size=[3, 5],
        stage_numb_of_layers=[2, 2],
        depths=[1, 1],
        hidden_sizes=[16, 32],
    ),
    "hiera": _sees(
        "HieraModel",
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 4, 4],
        image_size=[64, 64],
        size=64,
        patch_size=DEFAULT,
        hidden_size=DEFAULT,
        num_hidden_layers=DEFAULT,
    ),
    "ijepa": _sees("IJepaModel"),
    "imagegpt": architecture(
        "ImageGPTModel", {"input_ids": tokens}, {"use_cache": False}, n_embd=32, n_layer=2, n_head=4, n_positions=64
    ),
    "levit": _sees(
        "LevitModel",
        size=64,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[1, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        image_size=64,
        patch_size=16,
        down_ops=[["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]],
    ),
    "layoutlmv3": _reads_and_sees(
        "LayoutLMv3Model",
        input_size=32,
        patch_size=8,
        coordinate_size=6,
        shape_size=4,
        max_2d_position_embeddings=64,
        hidden_size=32,
    ),
    "mgp_str": _sees("MgpstrModel", image_size=[32, 32], max_token_length=6),
    "mlcd": _sees("MLCDVisionModel"),
    "mobilenet_v1": _sees("MobileNetV1Model", depth_multiplier=0.25, min_depth=8),
    "mobilenet_v2": _sees("MobileNetV2Model", depth_multiplier=0.25, min_depth=8),
    "mobilevit": _sees(
        "MobileViTModel",
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
        patch_size=2,
        size=64,
        image_size=64,
        num_hidden_layers=DEFAULT,
        num_attention_heads=4,
    ),
    "mobilevitv2": _sees(
        "MobileViTV2Model",
        width_multiplier=0.25,
        patch_size=2,
        size=64,
        image_size=64,
        n_attn_blocks=[1, 1, 1],
        base_attn_unit_dims=[32, 32, 32],
    ),
    "owlvit": architecture(
        "OwlViTModel",
        {"input_ids": tokens, "pixel_values": image},
        text_config=_READING,
        vision_config=_SEEING,
        projection_dim=16,
    ),
    "poolformer": _sees(
        "PoolFormerModel", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_encoder_blocks=4, patch_size=DEFAULT
    ),
    "pvt": _sees(
        "PvtModel",
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        sequence_reduction_ratios=[4, 2, 1, 1],
        size=64,
        image_size=64,
        patch_size=DEFAULT,
        num_hidden_layers=DEFAULT,
    ),
    "pvt_v2": _sees(
        "PvtV2Model",
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        sr_ratios=[4, 2, 1, 1],
        size=64,
        image_size=64,
    ),
    "regnet": _sees("RegNetModel", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], groups_width=8),
    "resnet": _sees("ResNetModel", **{name: value for name, value in _RESNET.items() if name != "out_features"}),
    "resnet_bottleneck": _sees(
        "ResNetForImageClassification", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="bottleneck"
    ),
    "rt_detr": _sees(
        "RTDetrForObjectDetection",
        size=64,
        d_model=32,
        encoder_hidden_dim=32,
        encoder_in_channels=[16, 32, 32],
        feat_strides=[8, 16, 32],
        encoder_layers=1,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_ffn_dim=64,
        num_queries=6,
        decoder_in_channels=[32, 32, 32],
        decoder_attention_heads=4,
        encoder_attention_heads=4,
        num_denoising=0,
        backbone_config=(
            "rt_detr_resnet",
            {
                "embedding_size": 16,
                "hidden_sizes": [16, 16, 32, 32],
                "depths": [1, 1, 1, 1],
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
        ),
    ),
    "segformer": _sees(
        "SegformerForSemanticSegmentation",
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        size=64,
        num_hidden_layers=DEFAULT,
    ),
    "sew_free_swiftformer": _sees("SwiftFormerModel", embed_dims=[16, 16, 32, 32], depths=[1, 1, 1, 1], size=64),
    "siglip_vision": _sees("SiglipVisionModel"),
    "siglip": _reads_and_sees("SiglipModel", text_config={**_READING, "projection_size": 32}, vision_config=_SEEING),
    "superpoint_backbone_vitdet": _sees(
        "VitDetModel",
        window_block_indices=[0],
        window_size=2,
        residual_block_indices=[1],
        use_relative_position_embeddings=True,
        pretrain_image_size=32,
    ),
    "swin": _sees("SwinModel", **_SWIN),
    "swin2sr": _sees(
        "Swin2SRModel",
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        patch_size=DEFAULT,
        num_hidden_layers=DEFAULT,
        num_attention_heads=DEFAULT,
        hidden_size=DEFAULT,
    ),
    "swinv2": _sees("Swinv2Model", **_SWIN),
    "table_transformer": _sees(
        "TableTransformerForObjectDetection",
        size=64,
        **_BOXES,
        backbone_config=("resnet", _RESNET),
        use_timm_backbone=False,
    ),
    "textnet": _sees("TextNetModel", stem_out_channels=16, hidden_sizes=[16, 16, 16, 32, 32], size=64),
    "timesformer": architecture("TimesformerModel", {"pixel_values": _video(2, 32)}, num_frames=2),
    "upernet": _sees(
        "UperNetForSemanticSegmentation",
        size=64,
        hidden_size=16,
        pool_scales=[1, 2],
        auxiliary_in_channels=32,
        auxiliary_channels=16,
        backbone_config=(
            "resnet",
            {
                **_RESNET,
                "hidden_sizes": [16, 16, 32, 32],
                "depths": [1, 1, 1, 1],
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
        ),
    ),
    "videomae": architecture("VideoMAEModel", {"pixel_values": _video(4, 32)}, num_frames=4, tubelet_size=2),
    "visual_bert": architecture(
        "VisualBertModel",
        {"input_ids": tokens, "visual_embeds": lambda: torch.randn(2, 4, 16)},
        visual_embedding_dim=16,
    ),
    "vit": _sees("ViTModel"),
    "vit_mae": architecture("ViTMAEModel", {"pixel_values": image, "noise": lambda: torch.rand(2, 16)}, mask_ratio=0.5),
    "vit_msn": _sees("ViTMSNModel"),
    "vivit": architecture("VivitModel", {"pixel_values": _video(2, 32)}, num_frames=2, tubelet_size=[2, 8, 8]),
    "yolos": _sees("YolosForObjectDetection", image_size=[32, 32], num_detection_tokens=4),
    "zoedepth_bits": _sees("ViTForImageClassification", qkv_bias=False),
}
