"""The notebook of the examples, executed as a user executes it: with a kernel, and a service of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("torch")
NOTEBOOK = Path(__file__).parents[2] / "examples/tune.ipynb"


@pytest.mark.long
def test_the_notebook_tunes_a_module_and_shows_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PITCHPIPE_DATABASE_URL", f"sqlite:///{tmp_path / 'tuned.db'}")
    monkeypatch.delenv("PITCHPIPE_URL", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [told(output) for output in outputs]
    assert any("eager PyTorch" in html and "<svg" in html for html, _ in shown)
    assert [text for _, text in shown if "hidden" in text and text.startswith("[")] == ["['hidden', 'tags']"]
    assert (tmp_path / "tagger.pitchpipe").exists()
    assert not [output for output in outputs if output.output_type == "stream"], "progress is one line that goes"


def told(output: Any) -> tuple[str, str]:
    """HTML and plain text of what a cell shows."""
    data = output.get("data", {})
    return data.get("text/html", ""), data.get("text/plain", "")
