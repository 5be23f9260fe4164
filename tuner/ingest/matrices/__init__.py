"""Factorisations of matrices as tensor functions: one function each, a nest of loops over a batch of matrices.

Operators of graphs compute an element from others; a factorisation computes an element from what it wrote before. Written
out in operators it is hundreds of them, and a different graph for every size. Here it is LAPACK's own algorithm, unblocked,
in loops whose code does not grow with the matrix:

    elimination.py      LU and Cholesky, substitution in triangles
    indefinite.py       L D L^T of symmetric matrices, Bunch and Kaufman's pivots
    reflections.py      QR by Householder's reflections
    eigenvalues.py      of symmetric matrices: tridiagonal form, implicit QL
    singular_values.py  bidiagonal form, and in
    bidiagonal.py       implicit QR
    exponential.py      scaling and squaring

Choices that LAPACK makes are made as it makes them (signs of reflections, the first of equal pivots, shifts and directions
of the iterations), so that factors that are unique only up to a sign are LAPACK's for small matrices. Every loop is
bounded: numbers that are not finite come to an end as well.

Every function takes tensors [batch, ...] and has no schedule but its own order.
"""
