"""Whether a schedule confirmed for one GPU can run on another.

Only the very same architecture counts. `sm_90a` has all that `sm_90` has, and features of its own: what was confirmed for
`sm_90` can be compiled for `sm_90a`, and not the other way round. Tensor cores, asynchronous copies and shared memory change
with each architecture; a schedule for an older one, though it could be compiled again, was tuned around units and capacities
that the newer one does not have.
"""

from __future__ import annotations

from pitchpipe.target_kind import Fit
from pitchpipe.wire.target import Target

_LIMITS = ("max_threads_per_block", "max_shared_memory_per_block", "registers_per_block")
"""A schedule may use as much as its target has."""
_KNOWN = {"kind", "arch", "l2_cache_size_bytes", "thread_warp_size", *_LIMITS}


def fit(asking: Target, stored: Target) -> Fit:
    """The reason completes "confirmed for X: ..."."""
    if asking.arch not in (stored.arch, f"{stored.arch}a"):
        return Fit(fits=False, reason=f"{asking.arch} is another architecture, and CUDA schedules keep to theirs")
    for name in sorted({*asking.attributes(), *stored.attributes()} - _KNOWN):
        return Fit(fits=False, reason=f"nothing is known of {name} on a GPU")
    if asking.thread_warp_size != stored.thread_warp_size:
        return Fit(
            fits=False, reason=f"its warps have {stored.thread_warp_size} threads, not {asking.thread_warp_size}"
        )
    for name in _LIMITS:
        has, needs = getattr(asking, name), getattr(stored, name)
        if has != needs and (has is None or needs is None):
            return Fit(fits=False, reason=f"{name} is not known of both")
        if has is not None and needs is not None and has < needs:
            return Fit(fits=False, reason=f"it may use {name} {needs}, and there are {has}")
    apart = sum(getattr(asking, name) != getattr(stored, name) for name in ("arch", *_LIMITS))
    return Fit(fits=True, reason="same architecture, whose limits include its", distance=(0.0, 0.0, float(apart)))
