"""Threads of a compiled program: on the cores of the process, and of a timed process on one each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import json, os, sys
    os.sched_setaffinity(0, json.loads(sys.argv[1]))
    from tuner.measure.build import threads
    from tuner.measure.placement import spread_threads
    {start}()
    print(json.dumps([sorted(os.sched_getaffinity(int(name))) for name in os.listdir("/proc/self/task")]))
"""


def affinities(start: str, cores: list[int], threads: int) -> list[list[int]]:
    """The cores of each thread of a process that may use `cores` and has started TVM's pool."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT.format(start=start)), json.dumps(cores)],
        cwd=Path(__file__).parents[2],
        env=environment | {"OPENBLAS_NUM_THREADS": "1", "TVM_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[int]] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("start", ["threads", "spread_threads"])
def test_threads_keep_to_the_cores_that_their_process_may_use(start: str) -> None:
    last = max(os.sched_getaffinity(0))
    assert affinities(start, [last], 2) == [[last], [last]]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_each_thread_of_a_timed_process_has_a_core_of_its_own() -> None:
    cores = sorted(os.sched_getaffinity(0))[-2:]
    assert sorted(affinities("spread_threads", cores, 2)) == [[cores[0]], [cores[1]]]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_more_threads_than_cores_share_all_of_them() -> None:
    cores = sorted(os.sched_getaffinity(0))[-2:]
    assert affinities("spread_threads", cores, 3) == [cores] * 3
