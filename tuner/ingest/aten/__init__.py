"""ATen's operators in Relax: an importer for graphs of torch.fx, and a converter for every operator that it takes.

A program is taken apart into operators that have converters first (pitchpipe/torch_operators/decompositions.py).
"""

from __future__ import annotations

from tuner.ingest.aten import (  # noqa: F401  # modules register their converters when they are imported
    activations,
    bessel,
    binary,
    complex,
    factorisations,
    fourier,
    gamma,
    grouped,
    histograms,
    indexing,
    norms,
    order,
    polynomials,
    pooling,
    products,
    recurrent,
    reductions,
    representation,
    resampling,
    scattering,
    segments,
    shapes,
    sorting,
    special,
    spectra,
    strides,
    unary,
)
from tuner.ingest.aten.importer import has_converter, import_graph, operator_name, randomness

__all__ = ["has_converter", "import_graph", "operator_name", "randomness"]
