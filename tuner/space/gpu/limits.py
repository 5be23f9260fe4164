"""What a GPU offers a kernel, and how many threads and thread blocks keep it busy."""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.target import Target

MULTIPROCESSORS = 132
"""Of an H100 or an H200; an A100 has 108, an RTX 4090 128. A target does not say how many there are, and the ranking of
schedules needs no more than the order of magnitude."""
VECTOR_BYTES = 16
"""The widest access of a thread."""
BLOCK_THREADS = 256
"""Threads of a block where nothing else decides: eight blocks fill a multiprocessor."""


class NoSchedule(Exception):
    """A rule does not take the workload."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a thread block on a target."""

    threads: int
    shared_bytes: int
    warp: int
    """Threads that run in step, and among which a reduction needs no shared memory."""

    @classmethod
    def of(cls, target: Target) -> Limits:
        return cls(
            threads=target.max_threads_per_block or 1024,
            shared_bytes=target.max_shared_memory_per_block or 48 << 10,
            warp=target.thread_warp_size or 32,
        )


def power_of_two(at_least: int) -> int:
    """The smallest power of two that is not below the number."""
    return 1 << max(at_least - 1, 0).bit_length()
