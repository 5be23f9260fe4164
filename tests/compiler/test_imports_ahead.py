"""What is forked to measure or to check imports nothing: each fork would pay for it anew."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

SCRIPT = """
    import json, sys
    from pitchpipe.target_kind import kind_of
    from tests.compiler.programs import TARGET, conv, dense, relax, workload
    from tuner.deploy.default_check import Named, check_defaults
    from tuner.measure.candidate import Bench
    from tuner.measure.check import SETS
    from tuner.measure.ahead import import_ahead
    from tuner.tvm_compat import import_object_loader
    from workers.sandbox.cpu.process import prepare

    norm = workload(lambda builder, x: builder.emit(relax.op.nn.softmax(x)), (8, 512))
    workloads = [conv(height=28, channels=64, outputs=64), dense(), norm]
    {prepare}
    before = set(sys.modules)
    check_defaults([Named(name=f"function_{{at}}", workload=one) for at, one in enumerate(workloads)], TARGET)
    for one in workloads:
        bench = Bench(one.ir, TARGET, 0)
        for name in SETS:
            bench.fill(name)
        program = bench.reference_program()
        bench.run_reference(program, SETS[0])
    print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported(prepare: str) -> list[str]:
    """The modules that checking and measuring import after `prepare`."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT.format(prepare=prepare))]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(ended.stdout)
    return found


def test_forks_of_a_zygote_and_of_a_build_import_nothing() -> None:
    assert not imported("prepare(TARGET)")
    assert not imported("import_object_loader(); kind_of(TARGET).load_intrinsics(); import_ahead()")  # as a build does
    assert "tuner.schedule.winograd" in imported("")
