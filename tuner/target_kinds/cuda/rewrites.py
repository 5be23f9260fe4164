"""Graph preparation for a GPU."""

from __future__ import annotations

from tuner.graph.atomic_scatters import combine_scatters
from tuner.graph.batch_groups import batch_groups
from tuner.graph.even_biases import even_biases
from tuner.graph.fold_head_split import fold_head_split
from tuner.graph.fold_transposes import fold_input_transpose, fold_transposes
from tuner.graph.gathered_scatters import gather_scatters
from tuner.graph.gathers import mark_gathers
from tuner.graph.group_attention import group_attention
from tuner.graph.group_rows import group_rows
from tuner.graph.hoist_slices import hoist_slices
from tuner.graph.lift_reshapes import lift_reshapes
from tuner.graph.merge_matmuls import merge_matmuls
from tuner.graph.moved_reductions import reduce_what_is_moved
from tuner.graph.moved_views import view_reshapes
from tuner.graph.patch_embedding import patch_embedding
from tuner.graph.prepare import ALWAYS, PARTS, Rewrites
from tuner.graph.reassociate import reassociate
from tuner.graph.resizes import separate_resizes
from tuner.graph.scans import decompose_scans
from tuner.graph.simplify import simplify
from tuner.graph.sink_reshapes import sink_reshapes
from tuner.graph.slice_views import slice_views_of_inputs
from tuner.graph.split_norms import split_norms
from tuner.graph.turn_regions import turn_regions
from tuner.graph.vector_products import vector_products
from tuner.graph.wide_reductions import reduce_in_32_bits

REWRITES = Rewrites(
    always=(combine_scatters, gather_scatters, decompose_scans, reduce_in_32_bits, *ALWAYS),
    products=(
        *PARTS,
        even_biases,
        *(reassociate, fold_head_split, merge_matmuls, group_attention, hoist_slices, fold_transposes),
        vector_products,
    ),
    layout=(
        simplify,
        patch_embedding,
        separate_resizes,
        turn_regions,
        sink_reshapes,
        simplify,
        sink_reshapes,  # again: simplifying moves reshapes behind whatever follows a product, fused with it or not
        lift_reshapes,
        fold_input_transpose,
        slice_views_of_inputs,
        split_norms,
        group_rows,
    ),
    fusion=(mark_gathers, reduce_what_is_moved, view_reshapes),
    fused=(batch_groups,),
)
