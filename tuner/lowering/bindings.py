"""Vectorised loops that bind variables, as plain loops.

TVM 0.27 takes a statement of a vectorised loop apart, element by element, where it has no vector code for it, such as a
test for NaN. Of a binding it takes the binding alone apart: what follows then reads one element's variable in every lane,
or a variable that is not there. Reductions of several values at once, the place of an extremum beside the extremum, bind.
As a plain loop such a loop computes what it says; LLVM makes vectors of it where it can.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import tirx, tvm_ffi


def without_vector_bindings(mod: Any) -> Any:
    """The module with such loops of its tensor functions made plain. Before TVM lowers the module."""
    return _WITHOUT(mod)


def _without(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.For, _plain)])
    return function if body.same_as(function.body) else function.with_body(body)


_WITHOUT = tirx.transform.prim_func_pass(_without, opt_level=0, name="pitchpipe.WithoutVectorBindings")


def _plain(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    bindings: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.Bind, bindings.append))
    if not bindings:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)
