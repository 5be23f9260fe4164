"""docs/performance.md and README's figures are what benchmarks/performance.py makes of the result files, and each file says
where it was made."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

from pitchpipe.wire.measure import MEASURE_VERSION

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import cells
    import performance
finally:
    sys.path.remove(str(ROOT / "benchmarks"))

RESULTS = performance.results()


def test_the_page_is_what_the_script_makes_of_the_files() -> None:
    assert performance.PAGE.read_text() == performance.page(RESULTS), "run benchmarks/performance.py"


def test_the_figures_of_the_readme_are_those_of_the_files() -> None:
    text = performance.README.read_text()
    assert text == performance.with_figures(text, RESULTS), "run benchmarks/performance.py"
    assert {match[1] for match in performance.FIGURES.finditer(text)} == set(performance.readme_figures.PARTS)


def test_a_figure_that_differs_from_its_file_is_found() -> None:
    changed = copy.deepcopy(RESULTS)
    changed["latency_minute"]["rows"][0]["ours_secs"] *= 2
    assert performance.page(changed) != performance.page(RESULTS)
    text = performance.README.read_text()
    assert performance.with_figures(text, changed) != text


def test_every_result_file_says_its_commit_its_measure_version_and_its_machine() -> None:
    lacking = {name: performance.lacking(result) for name, result in RESULTS.items()}
    assert {name: fields for name, fields in lacking.items() if fields} == {}


def test_no_result_file_is_older_than_the_measure_version() -> None:
    told = {name: result["environment"].get("measure_version") for name, result in RESULTS.items()}
    assert {name for name, version in told.items() if version not in (None, MEASURE_VERSION)} == set()


def test_a_file_without_a_section_and_a_section_without_a_file_are_named() -> None:
    with pytest.raises(KeyError, match="stranger"):
        performance.page({**RESULTS, "stranger": RESULTS["latency"]})
    with pytest.raises(KeyError, match="lookup"):
        performance.page({name: result for name, result in RESULTS.items() if name != "lookup"})


def test_what_is_not_recorded_is_called_so() -> None:
    result = copy.deepcopy(RESULTS["memory_bound"])
    section = next(one for one in performance.SECTIONS if one.file == "memory_bound")
    for name in ("commit", "measure_version"):
        result["environment"].pop(name, None)
    assert performance.lacking(result) == ["commit", "measure_version"]
    assert "commit not recorded; measure version not recorded" in "\n".join(performance.part(section, result))
    result["environment"].update(commit="unknown", measure_version=MEASURE_VERSION)
    assert performance.lacking(result) == ["commit"]


def test_a_verdict_follows_from_the_whole_interval() -> None:
    assert [cells.verdict(interval) for interval in ((1.01, 1.2), (0.9, 1.1), (0.8, 0.99))] == [
        *("faster", "tie", "**slower**")
    ]
    assert [cells.time(secs) for secs in (1.5, 0.0111, 82e-6)] == ["1.5 s", "11.1 ms", "82 µs"]
