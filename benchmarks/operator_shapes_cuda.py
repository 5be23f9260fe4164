"""The shapes of `operators.py --target cuda`, by kind. Pure; operator_modules_cuda.py makes modules of them.

Kinds from C1D to TBG are those of MetaSchedule (`tvm.s_tir.meta_schedule.testing.te_workload`), with its parameters in its
order. The shapes that it lists come first, so that C2D-1 is the same here and in operators.py; those after them are from
the networks that the comments name. Its Winograd kind is an algorithm and no operator: its shape is C2D's last.

LIN and RES are linear layers and convolutions with epilogues. A spike with templates in Triton and Gluon measured them on an
H200 in November 2026, apart from this service; NOTES_SECS has its best times.
"""

from __future__ import annotations

Shape = tuple[int | str, ...]

CONVOLUTION = ("CI", "CO", "kernel", "stride", "padding", "dilation", "groups")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "LIN": ("M", "N", "K", "epilogue"),
    "RES": ("N", "H", "W", *CONVOLUTION),
    "C1D": ("N", "L", *CONVOLUTION),
    "C2D": ("N", "H", "W", *CONVOLUTION),
    "C3D": ("N", "D", "H", "W", *CONVOLUTION),
    "GMM": ("B", "N", "M", "K"),
    "GRP": ("N", "H", "W", *CONVOLUTION),
    "DIL": ("N", "H", "W", *CONVOLUTION),
    "DEP": ("N", "H", "W", "C", "kernel", "stride", "padding"),
    "T2D": ("N", "H", "W", "CI", "CO", "kernel", "stride", "padding"),
    "CAP": ("N", "H", "W", "CI", "CO", "kernel", "stride", "padding"),
    "NRM": ("B", "M", "N"),
    "SFM": ("M", "N"),
    "CBR": ("N", "H", "W", *CONVOLUTION),
    "TBG": ("batch", "sequence", "heads", "width"),
}
"""Names of a shape's parameters, by kind. A shape may leave the last ones out."""

SHAPES: dict[str, tuple[Shape, ...]] = {
    # A linear layer with a bias: an M x K input, and N results for each of its rows; then the epilogue.
    "LIN": (
        (128, 2304, 768, "none"),  # BERT
        (128, 768, 768, "none"),
        (128, 3072, 768, "gelu"),
        (128, 768, 3072, "residual"),
        (197, 2304, 768, "none"),  # ViT
        (197, 3072, 768, "gelu"),
        (197, 768, 3072, "residual"),
        (1024, 1024, 1024, "none"),
        (4096, 4096, 4096, "none"),
    ),
    # A convolution with a bias, a residual and a ReLU.
    "RES": (
        (1, 56, 56, 64, 64, 3, 1, 1),  # ResNet
        (1, 28, 28, 128, 128, 3, 1, 1),
        (1, 14, 14, 256, 256, 3, 1, 1),
        (1, 7, 7, 512, 512, 3, 1, 1),
        (1, 56, 56, 64, 128, 3, 2, 1),
        (1, 14, 14, 1024, 256, 1, 1, 0),
    ),
    "C1D": (
        (1, 256, 64, 128, 3, 2, 1),
        (1, 128, 128, 256, 1, 2, 0),
        (1, 64, 256, 256, 5, 1, 2),
        (1, 32, 512, 512, 3, 1, 1),
        (1, 256, 64, 128, 1, 2, 0),  # the ones that MetaSchedule has in comments
        (1, 256, 64, 64, 1, 1, 0),
        (1, 128, 128, 256, 3, 2, 1),
        (1, 128, 128, 128, 3, 1, 1),
        (1, 3000, 80, 384, 3, 1, 1),  # Whisper tiny
        (1, 3000, 384, 384, 3, 2, 1),
    ),
    "C2D": (
        (1, 224, 224, 3, 64, 7, 2, 3),
        (1, 56, 56, 64, 64, 1, 1, 0),
        (1, 14, 14, 256, 256, 3, 1, 1),
        (1, 7, 7, 512, 512, 3, 1, 1),
        (1, 56, 56, 64, 128, 3, 2, 1),  # ResNet-18
        (1, 56, 56, 64, 64, 3, 1, 1),
        (1, 28, 28, 128, 256, 3, 2, 1),
        (1, 28, 28, 128, 128, 3, 1, 1),
        (1, 14, 14, 256, 512, 3, 2, 1),
        (1, 14, 14, 128, 128, 3, 1, 1),  # of MetaSchedule's Winograd kind
    ),
    "C3D": (
        (1, 16, 224, 224, 3, 64, 7, 2, 3),
        (1, 16, 56, 56, 64, 64, 1, 1, 0),
        (1, 16, 14, 14, 256, 256, 3, 1, 1),
        (1, 16, 7, 7, 512, 512, 3, 1, 1),
        (1, 16, 56, 56, 64, 128, 3, 2, 1),  # the ones that MetaSchedule has in comments
        (1, 16, 56, 56, 64, 128, 1, 2, 0),
        (1, 16, 56, 56, 64, 64, 3, 1, 1),
        (1, 16, 28, 28, 128, 256, 3, 2, 1),
        (1, 16, 28, 28, 128, 128, 3, 1, 1),
        (1, 16, 14, 14, 256, 512, 3, 2, 1),
    ),
    # B products of an N x K and a K x M input.
    "GMM": (
        (1, 128, 128, 128),
        (1, 512, 32, 512),
        (1, 512, 512, 512),
        (1, 1024, 1024, 1024),
        (12, 128, 128, 64),  # BERT: scores, values
        (12, 128, 64, 128),
        (12, 197, 197, 64),  # ViT: scores, values
        (12, 197, 64, 197),
        (32, 1024, 1024, 128),  # LLaMA: scores of 1024 tokens
        (8, 1024, 1024, 1024),
    ),
    "GRP": (
        (1, 56, 56, 64, 128, 3, 2, 1, 1, 4),
        (1, 56, 56, 64, 64, 1, 1, 0, 1, 4),
        (1, 14, 14, 256, 256, 3, 1, 1, 1, 4),
        (1, 7, 7, 512, 512, 3, 1, 1, 1, 4),
        (1, 56, 56, 64, 128, 1, 2, 0, 1, 4),  # the ones that MetaSchedule has in comments
        (1, 56, 56, 64, 64, 3, 1, 1, 1, 4),
        (1, 28, 28, 128, 256, 3, 2, 1, 1, 4),
        (1, 28, 28, 128, 128, 3, 1, 1, 1, 4),
        (1, 56, 56, 128, 128, 3, 1, 1, 1, 32),  # ResNeXt-50 32x4d
        (1, 14, 14, 512, 512, 3, 1, 1, 1, 32),
    ),
    "DIL": (
        (1, 224, 224, 3, 64, 7, 2, 3, 2),
        (1, 56, 56, 64, 64, 1, 1, 0, 2),
        (1, 14, 14, 256, 256, 3, 1, 1, 2),
        (1, 7, 7, 512, 512, 3, 1, 1, 2),
        (1, 56, 56, 64, 128, 3, 2, 1, 2),  # the ones that MetaSchedule has in comments
        (1, 56, 56, 64, 64, 3, 1, 1, 2),
        (1, 28, 28, 128, 256, 3, 2, 1, 2),
        (1, 28, 28, 128, 128, 3, 1, 1, 2),
        (1, 28, 28, 512, 512, 3, 1, 2, 2),  # DeepLabV3 on ResNet-50
        (1, 28, 28, 2048, 256, 3, 1, 12, 12),
    ),
    "DEP": (
        (1, 112, 112, 32, 3, 1, 1),
        (1, 112, 112, 64, 3, 2, 1),
        (1, 14, 14, 512, 3, 2, 1),
        (1, 7, 7, 1024, 3, 1, 1),
        (1, 56, 56, 128, 3, 1, 1),  # MobileNet
        (1, 56, 56, 128, 3, 2, 1),
        (1, 28, 28, 256, 3, 1, 1),
        (1, 14, 14, 512, 3, 1, 1),
        (1, 56, 56, 96, 7, 1, 3),  # ConvNeXt-T
        (1, 14, 14, 384, 7, 1, 3),
    ),
    "T2D": (
        (1, 4, 4, 512, 256, 4, 2, 1),
        (1, 8, 8, 256, 128, 4, 2, 1),
        (1, 16, 16, 128, 64, 4, 2, 1),
        (1, 32, 32, 64, 3, 4, 2, 1),
        (1, 1, 1, 100, 512, 4, 1, 0),  # DCGAN's first layer
        (1, 14, 14, 1024, 512, 2, 2, 0),  # U-Net
        (1, 28, 28, 512, 256, 2, 2, 0),
        (1, 56, 56, 256, 128, 2, 2, 0),
        (1, 112, 112, 128, 64, 2, 2, 0),
        (1, 8, 6, 2048, 256, 4, 2, 1),  # SimpleBaseline for poses on ResNet-50
    ),
    # Capsules are 4 x 4.
    "CAP": (
        (1, 16, 16, 32, 32, 3, 2, 1),
        (1, 8, 8, 32, 32, 3, 1, 1),
        (1, 16, 16, 8, 16, 3, 2, 1),
        (1, 8, 8, 16, 16, 3, 1, 1),
        # convolutional capsules one and two of matrix capsules, of other widths and batches
        (1, 14, 14, 32, 32, 3, 2, 0),
        (1, 6, 6, 32, 32, 3, 1, 0),
        (1, 14, 14, 16, 16, 3, 2, 0),
        (1, 6, 6, 16, 16, 3, 1, 0),
        (8, 14, 14, 32, 32, 3, 2, 0),
        (8, 6, 6, 32, 32, 3, 1, 0),
    ),
    # Norms of B matrices.
    "NRM": (
        (1, 256, 256),
        (1, 512, 512),
        (1, 1024, 1024),
        (1, 4096, 1024),
        (1, 768, 3072),  # gradients of BERT's weights
        (12, 768, 768),
        (32, 128, 768),  # activations of BERT and ViT
        (8, 197, 768),
        (64, 56, 56),  # channels of ResNet
        (512, 7, 7),
    ),
    "SFM": (
        (256, 256),
        (512, 512),
        (1024, 1024),
        (2048, 2048),
        (1536, 128),  # scores of BERT's 12 heads
        (2364, 197),  # scores of ViT's 12 heads
        (16384, 1024),  # scores of 16 heads over 1024 tokens
        (1, 1000),  # classes of ImageNet
        (1, 32000),  # vocabularies of LLaMA and GPT-2
        (64, 50257),
    ),
    "CBR": (
        (1, 224, 224, 3, 64, 7, 2, 3),
        (1, 56, 56, 64, 128, 3, 2, 1),
        (1, 28, 28, 128, 256, 1, 2, 0),
        (1, 7, 7, 512, 512, 3, 1, 1),
        (1, 56, 56, 64, 64, 3, 1, 1),  # ResNet-18
        (1, 28, 28, 128, 128, 3, 1, 1),
        (1, 14, 14, 256, 256, 3, 1, 1),
        (1, 14, 14, 256, 512, 3, 2, 1),
        (1, 56, 56, 256, 64, 1, 1, 0),  # ResNet-50
        (1, 14, 14, 1024, 256, 1, 1, 0),
    ),
    # Scores of attention, from queries and keys as a linear layer gives them.
    "TBG": (
        (1, 128, 12, 64),
        (1, 128, 16, 64),
        (1, 64, 12, 128),
        (1, 128, 12, 128),
        (8, 128, 12, 64),  # BERT
        (1, 197, 12, 64),  # ViT
        (8, 197, 12, 64),
        (1, 512, 16, 64),  # BERT-large
        (1, 1024, 12, 64),  # GPT-2
        (1, 1024, 32, 128),  # LLaMA
    ),
}

NOTES_SECS: dict[str, tuple[float, ...]] = {
    "LIN": (3.19e-6, 2.11e-6, 4.40e-6, 5.95e-6, 4.93e-6, 6.83e-6, 8.05e-6, 5.51e-6, 215e-6),
    "RES": (2.85e-6, 4.41e-6, 5.16e-6, 5.17e-6, 2.43e-6, 3.15e-6),
}
"""Best seconds of a call in the spike, whole results alone; its weights came from memory in every call."""

MOVES = ("NRM", "SFM")
"""Kinds that memory bounds: bytes per second say how good they are."""


def names() -> list[str]:
    """All shapes, as KIND-0 and on."""
    return [f"{kind}-{index}" for kind, found in SHAPES.items() for index in range(len(found))]


def kind_and_index(name: str) -> tuple[str, int]:
    kind, _, index = name.rpartition("-")
    return kind, int(index)


def shape_of(name: str) -> Shape:
    kind, index = kind_and_index(name)
    return SHAPES[kind][index]


def text_of(name: str) -> str:
    """The parameters with their names."""
    kind, _ = kind_and_index(name)
    return ", ".join(f"{word} {value}" for word, value in zip(PARAMETERS[kind], shape_of(name), strict=False))


def notes_secs(name: str) -> float | None:
    """Seconds that the spike measured, if it had the shape."""
    kind, index = kind_and_index(name)
    return NOTES_SECS[kind][index] if kind in NOTES_SECS else None
