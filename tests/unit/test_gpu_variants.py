"""Variants of a model on a GPU that is a fake: what is launched, in which order, and what is left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.errors import StepDied
from pitchpipe.gpu import loaded, variants
from pitchpipe.gpu.launches import Launches
from pitchpipe.gpu.testing import FakeDriver
from pitchpipe.gpu.variants import Drawn, Variants, in_fresh_processes
from pitchpipe.processes.launch import Completed
from tests.unit.test_gpu_model import KERNELS, PROGRAM, Spec

WHOLE, PART = [0, 1, 2, 3], [0, 2]
INPUTS, PARAMS = [Spec("x")], [Spec("w")]


def test_variants_take_turns_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "SAMPLE_SECS", 7e-6)
    driver = FakeDriver(KERNELS)
    made = Variants(PROGRAM, INPUTS, PARAMS, using=lambda: driver)
    made.secs([PART], 1)  # inputs and outputs get their memory
    held, made_graphs = driver.held, driver.names().count("destroy")
    order: list[int] = []
    launch_graph = driver.launch_graph

    def recorded(instance: int, stream: int) -> None:
        order.append(instance)
        launch_graph(instance, stream)

    monkeypatch.setattr(driver, "launch_graph", recorded)
    assert made.secs([WHOLE, PART], 3) == [pytest.approx([4e-6] * 3), pytest.approx([2e-6] * 3)]
    whole, part = order[0], order[1]
    warming = [whole, part, *[whole] * 2, *[part] * 4]
    assert order == warming + [whole] * 2 + [part] * 4 + [part] * 4 + [whole] * 2 + [whole] * 2 + [part] * 4
    assert driver.held == held
    assert driver.names().count("destroy") == made_graphs + 2


def test_the_first_launch_of_a_variant_does_not_begin_early(monkeypatch: pytest.MonkeyPatch) -> None:
    early = replace(PROGRAM, run=tuple(replace(one, programmatic=not one.zeroed) for one in PROGRAM.run))
    seen: list[list[bool]] = []

    def recorded(driver: Any, launches: Any, *more: Any) -> Launches:
        seen.append([launch.programmatic for launch in launches])
        return Launches(driver, launches, *more)

    monkeypatch.setattr(loaded, "Launches", recorded)
    driver = FakeDriver(KERNELS)
    made = Variants(early, INPUTS, PARAMS, using=lambda: driver)
    seen.clear()
    made.secs([WHOLE, [2, 3]], 1)
    assert [one[0] for one in seen] == [False, False]
    assert any(seen[0][1:])


def test_each_sample_is_told_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample i is of process i modulo three; each process has the program and the lists."""
    orders: list[dict[str, Any]] = []

    def run(function: str, folder: str, **_: Any) -> Completed:
        assert function == "pitchpipe.gpu.variants:main"
        orders.append(json.loads((Path(folder) / "order.json").read_text()))
        assert (Path(folder) / "program").stat().st_size
        number = len(orders)
        told = [[number + 0.1, number + 0.2], [10.0 * number, 10.0 * number + 1]]
        return Completed(returncode=0, stdout=f"words\npitchpipe: timed {json.dumps(told)}\n".encode(), stderr=b"")

    monkeypatch.setattr(variants, "run", run)
    found = in_fresh_processes(PROGRAM, INPUTS, PARAMS, [WHOLE, PART], processes=3, rounds=2)
    assert found == [[1.1, 2.1, 3.1, 1.2, 2.2, 3.2], [10.0, 20.0, 30.0, 11.0, 21.0, 31.0]]
    assert [order["lists"] for order in orders] == [[WHOLE, PART]] * 3
    assert Drawn(**{**orders[0]["inputs"][0], "shape": tuple(orders[0]["inputs"][0]["shape"])}) == Drawn.of(INPUTS[0])


def test_a_process_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    died = Completed(returncode=-11, stdout=b"", stderr=b"an illegal memory access")
    monkeypatch.setattr(variants, "run", lambda *_, **__: died)
    with pytest.raises(StepDied, match=r"ended with -11: an illegal memory access"):
        in_fresh_processes(PROGRAM, INPUTS, PARAMS, [WHOLE], processes=1, rounds=1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "int8", "bool"])
def test_what_is_drawn_repeats_and_is_the_same_in_every_process(dtype: str) -> None:
    one = variants._drawn(Drawn(name="x", dtype=dtype, shape=(3, 1 << 16)))
    assert (one.shape, str(one.dtype)) == ((3, 1 << 16), dtype)
    assert (one[0] == one[2]).all()
    assert 0 <= one.min() <= one.max() <= 1
    assert (variants._drawn(Drawn(name="y", dtype=dtype, shape=(4,))) == one[0, :4]).all()
