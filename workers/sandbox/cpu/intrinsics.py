"""Imported before the first fork: TVM's tensor intrinsics for this host's processor, which every child that applies a
schedule or builds would else register for itself, in a fifth of a second.
"""

from __future__ import annotations

from pitchpipe.target_kind import HOST, kind_named

kind_named(HOST).load_intrinsics()
