"""Graph preparation for a CPU."""

from __future__ import annotations

from tuner.graph.channel_norms import norms_of_channels
from tuner.graph.fold_head_split import fold_head_split
from tuner.graph.fold_transposes import fold_input_transpose, fold_transposes
from tuner.graph.merge_matmuls import merge_matmuls
from tuner.graph.merge_takes import merge_takes
from tuner.graph.patch_embedding import patch_embedding
from tuner.graph.prepare import ALWAYS, PARTS, Rewrites
from tuner.graph.reassociate import reassociate
from tuner.graph.resamplings import mark_resamplings
from tuner.graph.resizes import separate_resizes
from tuner.graph.scatters import decompose_scatters
from tuner.graph.separable_pools import separate_pools
from tuner.graph.simplify import simplify
from tuner.graph.sink_reshapes import sink_reshapes_of_products
from tuner.graph.slice_views import slice_views
from tuner.graph.sorts import decompose_sorts
from tuner.graph.taps_of_padding import drop_taps_of_padding
from tuner.graph.turn_regions import turn_regions
from tuner.target_kinds.cpu.even_columns import even_columns
from tuner.target_kinds.cpu.even_positions import even_positions

REWRITES = Rewrites(
    always=(decompose_scatters, decompose_sorts, *ALWAYS),
    products=(
        *PARTS,
        drop_taps_of_padding,
        reassociate,
        fold_head_split,
        merge_matmuls,
        fold_transposes,
    ),
    layout=(
        simplify,
        patch_embedding,
        turn_regions,
        even_columns,
        even_positions,
        simplify,
        sink_reshapes_of_products,
        separate_resizes,
        merge_takes,
        norms_of_channels,
        fold_input_transpose,
        separate_pools,
        slice_views,
    ),
    fusion=(mark_resamplings,),
)
