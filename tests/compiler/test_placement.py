"""Threads of a timed process: one core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.measure.placement import bound_cores


def test_cores_that_several_threads_may_use_belong_to_none() -> None:
    assert bound_cores([{1}, {0, 1, 2}, {2}, set()]) == {1, 2}
    assert bound_cores([]) == set()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_calling_thread_keeps_off_the_cores_of_the_pool() -> None:
    script = """
        import json, os
        from tuner.measure.placement import spread_threads
        spread_threads()
        threads = {int(name): sorted(os.sched_getaffinity(int(name))) for name in os.listdir("/proc/self/task")}
        print(json.dumps([threads.pop(os.getpid()), list(threads.values())]))
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "TVM_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    own, others = json.loads(answer.stdout)
    bound = [cores[0] for cores in others if len(cores) == 1]
    if not bound:
        pytest.skip("TVM bound no thread here")
    assert own
    assert not set(own) & set(bound)
