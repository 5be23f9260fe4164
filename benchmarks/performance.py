"""Writes docs/performance.md, and the figures of README.md, from the result files.

    python benchmarks/performance.py            # writes both
    python benchmarks/performance.py --check    # writes nothing; exits with 1 where one of them is not up to date

Every file of results/ has a section: what was compared, where, under which versions and budget, its table and its summary.
A field that a file does not have is called "not recorded". README's figures lie between lines `<!-- figures: NAME -->` and
`<!-- end of figures -->`. This script imports neither the compiler nor PyTorch.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import readme_figures
from cells import number
from performance_sections import SECTIONS, Section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
NOT_RECORDED = "not recorded"
RECORDED = ("commit", "measure_version", "device")
"""What every result file has to say of itself."""
FIGURES = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)

HEAD = """# What was measured

Written by `benchmarks/performance.py` from the files of [benchmarks/results](../benchmarks/results): change those, not
this page.

Times are medians, intervals are of 95 %. Sides took turns (`benchmarks/rounds.py`). A ratio above 1 means that ours was
faster; it is the median of the ratios within rounds, so it need not be the ratio of two medians. *Faster* and *slower*
are said where the whole interval is on one side of 1, else it is a *tie*. Figures of different machines do not compare:
here an AMD EPYC with 32 KiB of L1d is a Zen 4, one with 48 KiB a Zen 5.
"""


def results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Name of the file, without its suffix -> what it holds."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def lacking(result: dict[str, Any]) -> list[str]:
    """Which fields of RECORDED a result does not have."""
    found = result["environment"]
    return [name for name in RECORDED if found.get(name) in (None, "", "unknown")]


def page(found: dict[str, dict[str, Any]]) -> str:
    """The text of docs/performance.md. Raises KeyError for a file without a section, or a section without a file."""
    known = {section.file for section in SECTIONS}
    if strangers := known ^ set(found):
        raise KeyError(f"in SECTIONS or in results/, not in both: {', '.join(sorted(strangers))}")
    contents = [f"- [{section.title}](#{anchor(section.title)})" for section in SECTIONS]
    parts = [HEAD, "\n".join(contents), *("\n".join(part(section, found[section.file])) for section in SECTIONS)]
    return "\n\n".join(one.strip("\n") for one in parts) + "\n"


def anchor(title: str) -> str:
    """The name that a heading gets in a link."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def part(section: Section, result: dict[str, Any]) -> Iterator[str]:
    """The lines of one section."""
    script = ROOT / "benchmarks" / f"{section.script}.py"
    yield f"## {section.title}"
    yield ""
    yield f"{first_sentence(script)} {section.more}".strip()
    yield ""
    yield from told(section, result["environment"])
    yield ""
    yield from section.table(result)
    if result["summary"]:
        yield ""
        yield "Summary: " + "; ".join(flat(result["summary"])) + "."


def first_sentence(script: Path) -> str:
    """What a script says it compares: the first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def told(section: Section, environment: dict[str, Any]) -> Iterator[str]:
    """Where a result was made, and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    version = environment.get("measure_version", NOT_RECORDED)
    yield f"- Script and file: `benchmarks/{section.script}.py`, [results](../benchmarks/results/{section.file}.json)"
    load = f"load {environment['load_before']:.1f} before"
    yield f"- Machine: {machine(environment)}; {environment['threads']} threads, {load}"
    yield f"- Versions: Python {environment['python']}, {versions}"
    yield f"- Date {environment['date']}; commit {environment.get('commit', NOT_RECORDED)}; measure version {version}"
    if environment["budget"]:
        yield f"- Budget: `{json.dumps(environment['budget'])}`"


def machine(environment: dict[str, Any]) -> str:
    """The processor, its caches, the system, and the GPU if one was measured."""
    caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in environment["caches"].items())
    mcpu = f" ({environment['mcpu']})" if "mcpu" in environment else ""
    gpu = environment.get("gpu")
    also = f"; {gpu['model']}, driver {gpu['driver']}" if gpu else ""
    return f"{environment['device']}{mcpu}, {environment['cores']} cores, {caches}, {environment['kernel']}{also}"


def flat(value: Any, name: str = "") -> Iterator[str]:
    """`name value` of each leaf of a summary; names without a value are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name} {key}".strip())
    elif isinstance(value, list):
        yield f"{name}: {', '.join(number(each) for each in value) or 'none'}"
    else:
        yield f"{name} {number(value)}"


def with_figures(readme: str, found: dict[str, dict[str, Any]]) -> str:
    """README with its figures as the files have them."""
    return FIGURES.sub(lambda match: f"{match[1]}{match[2]}{readme_figures.PARTS[match[1]](found)}\n", readme)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing; fail where a page is not up to date")
    options = arguments.parse_args()
    found = results()
    wanted = {PAGE: page(found), README: with_figures(README.read_text(), found)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is not what {Path(__file__).name} writes")
        else:
            path.write_text(wanted[path])
    if options.check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
