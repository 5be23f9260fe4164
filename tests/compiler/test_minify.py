"""The smallest part that is wrong or crashes, the step at fault, and the program that shows it in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pitchpipe.wire.finding import Finding, FindingKind
from tuner.minify.attempts import in_fork, outcome_of

TIMEOUT_SECS = 900
ENVIRONMENT = {**os.environ, "TVM_NUM_THREADS": "2"}  # schedules that are wrong on a second thread need one


Findings = dict[str, Finding]
SCENES = (
    *("onnx, wrong converter", "onnx, wrong rewrite", "onnx, right", "torch, wrong converter", "torch, right"),
    *("abort", "task, wrong", "task, crash", "task, right"),
)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """What is found in scenes. One process plays them, each in a fork: what it imports takes longer than a scene."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.compiler.minify_scenes"]
    command += [str(tmp_path_factory.mktemp("scenes")), *SCENES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECS, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return {name: Finding.model_validate(found) for name, found in json.loads(done.stdout).items()}


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a fresh process, from another folder."""
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT, timeout=TIMEOUT_SECS
    )


def shown(finding: Finding) -> str:
    """What the script prints, which must exit 1."""
    assert finding.script is not None
    ended = run(Path(finding.script))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


@pytest.mark.long
def test_an_operator_that_the_import_translates_wrongly_is_found_in_an_onnx_file(findings: Findings) -> None:
    found = findings["onnx, wrong converter"]
    assert (found.kind, found.operator, found.node) == (FindingKind.WRONG, "Ceil", "round up")
    assert (found.nodes, found.cause) == (("Ceil",), "the import")
    assert [each.shape for each in found.arguments] == [(2, 3, 8)]
    assert "differs" in shown(found)
    assert "differs: its largest relative error is" in found.sentence()
    assert found.script is not None
    again = run(Path(found.script), "now")  # no fault was put into that process
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.long
def test_a_rewrite_that_changes_a_result_is_named(findings: Findings) -> None:
    found = findings["onnx, wrong rewrite"]
    assert (found.kind, found.operator, found.node) == (FindingKind.WRONG, "Neg", "turn")
    assert (found.nodes, found.cause) == (("Neg",), "rewrite lose_negations")
    assert "differs" in shown(found)


@pytest.mark.long
def test_an_operator_that_the_import_translates_wrongly_is_found_in_a_program_of_pytorch(findings: Findings) -> None:
    found = findings["torch, wrong converter"]
    assert (found.kind, found.operator, found.cause) == (FindingKind.WRONG, "aten.ceil.default", "the import")
    assert found.reference == "PyTorch eager"
    assert "differs" in shown(found)


def test_of_a_model_that_is_right_nothing_is_told(findings: Findings) -> None:
    for found in (findings["onnx, right"], findings["torch, right"]):
        assert (found.kind, found.operator, found.script) == (FindingKind.NOTHING, None, None)


def test_the_operator_that_ends_the_process_is_found(findings: Findings) -> None:
    found = findings["abort"]
    assert (found.kind, found.operator, found.node) == (FindingKind.RUN_CRASH, "relax.call_tir of evil", "c")
    assert found.nodes == ("relax.call_tir of evil",)
    assert "SIGABRT" in found.detail
    assert f"it ended with -{signal.SIGABRT.value}" in shown(found)


@pytest.mark.long
def test_of_a_task_the_instruction_of_the_trace_that_breaks_it_is_found(findings: Findings) -> None:
    wrong, crash, right = (findings[f"task, {kind}"] for kind in ("wrong", "crash", "right"))
    assert (wrong.kind, crash.kind) == (FindingKind.WRONG, FindingKind.RUN_CRASH)
    for found in (wrong, crash):
        assert found.cause == "instruction 3 of the trace, Parallel"
        assert found.nodes[-1] == "Parallel"
        shown(found)
    assert right.kind is FindingKind.NOTHING


def test_a_child_that_does_not_end_is_killed_and_said_to_hang() -> None:
    ended = in_fork(lambda say: (say("run 1"), time.sleep(600)), wall_secs=0.2)
    assert ended.timed_out
    outcome = outcome_of(ended, 0.2)
    assert (outcome.kind, outcome.detail, outcome.at) == (FindingKind.RUN_CRASH, "it was still going after 0.2 s", 1)


def test_a_child_that_dies_says_where_it_was() -> None:
    ended = in_fork(lambda say: (say("rewrite simplify"), os.abort()))
    outcome = outcome_of(ended)
    assert (outcome.kind, outcome.stage) == (FindingKind.BUILD_CRASH, "rewrite simplify")
    assert "SIGABRT" in outcome.detail


def test_what_a_child_raises_is_a_crash_unless_it_is_a_refusal() -> None:
    from pitchpipe.errors import UnsupportedOperator

    def raising(error: Exception) -> object:
        def work(say: object) -> None:
            raise error

        return work

    assert outcome_of(in_fork(raising(ValueError("no")))).kind is FindingKind.BUILD_CRASH  # type: ignore[arg-type]
    refused = outcome_of(in_fork(raising(UnsupportedOperator("FFT"))))  # type: ignore[arg-type]
    assert (refused.kind, refused.detail) == (FindingKind.REFUSED, "FFT")


def test_an_error_beside_a_large_value_is_not_hidden_by_it() -> None:
    from tuner.minify import Part

    mask, small = np.full(4, -3e38, np.float32), np.ones(4, np.float32)
    part = Part(nodes=(), convert=lambda: (b"", {}), inputs=(), expected=(mask, small), operands=((), ()), weights={})
    assert part.difference([mask, small]) is None
    told = part.difference([mask, 2 * small])
    assert told is not None
    assert told.startswith("output 1 ")


def test_the_rounding_of_what_cancelled_is_no_difference() -> None:
    from tuner.minify import Part

    terms = np.full(4, 100.0, np.float32)
    rest = np.full(4, 1e-5, np.float32)  # of terms - terms, in another order
    part = Part(nodes=(), convert=lambda: (b"", {}), inputs=(), expected=(rest,), operands=((terms,),), weights={})
    assert part.difference([2 * rest]) is None
