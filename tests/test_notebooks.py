"""The notebooks run, say today what they said when they were committed, and carry no more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 400_000
MOST_LINES = 30
"""Of a code cell; what is longer belongs in a module."""

pytest.importorskip("nbmake")
pytest.importorskip("matplotlib")
ALL = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return json.loads(path.read_text("utf-8"))


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text(notebook):
    """What each code cell printed and showed, but for pictures; those are named."""
    shown = []
    for cell in code(notebook):
        for output in cell["outputs"]:
            data = output.get("data", {})
            shown.append("".join(output.get("text", data.get("text/plain", ""))))
            shown += ["a picture"] * ("image/png" in data)
    return shown


def test_there_are_four():
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]


@ALL
def test_it_runs_anywhere_and_says_what_it_said(path, tmp_path):
    """In an empty folder: nothing may depend on where it is run from."""
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    settings = ["-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *settings, "--nbmake", "--overwrite", str(copy)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert text(read(copy)) == text(read(path)), "it has changed: run make notebooks, and read it"


@ALL
def test_what_is_committed_is_whole(path):
    """Run once, from the top, with no complaint, and small."""
    notebook = read(path)
    cells = [cell for cell in code(notebook) if "".join(cell["source"]).strip()]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [o for o in outputs if o.get("name") == "stderr" or o["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < MOST_BYTES
    assert max(len(cell["source"]) for cell in cells) <= MOST_LINES


@ALL
def test_it_names_no_machine_and_its_prose_no_times(path):
    from eval.notebooks import METADATA

    notebook = read(path)
    assert notebook["metadata"] == METADATA
    assert not any(cell["metadata"] for cell in notebook["cells"])
    said = "\n".join(text(notebook))
    assert not re.search(r"/(home|root|tmp|work|Users)/|site-packages", said)
    prose = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    assert not re.search(r"\d\s?(ms|µs|us|s|seconds?|minutes?|hours?)\b", prose)


def test_cleaning_drops_the_machine_and_keeps_the_rest():
    nbformat = pytest.importorskip("nbformat")
    from eval.notebooks import clean

    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=1)
    cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    cell.outputs = [
        nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    ]
    cell.outputs[0].metadata["needs_background"] = "light"
    prose = nbformat.v4.new_markdown_cell("Two.")
    metadata = {"kernelspec": {"name": "mine", "display_name": "/home/me"}, "widgets": {}}
    cleaned = clean(nbformat.v4.new_notebook(cells=[prose, cell], metadata=metadata))
    written = nbformat.writes(cleaned)
    assert "home" not in written
    assert "iopub" not in written
    assert "background" not in written
    assert nbformat.reads(written, as_version=4).cells[1].outputs[0].data == {"text/plain": "2"}
    assert nbformat.writes(clean(cleaned)) == written


def test_results_are_read_from_the_checkout_and_their_absence_is_said(tmp_path):
    from eval import results

    assert set(results.k2vv()) >= {"nano", "smollm2-135m"}
    assert results.k2vv(tmp_path) == results.decoding(tmp_path) == {}
    with pytest.raises(FileNotFoundError, match=r"kernels/audit\.csv does not exist"):
        results.table("kernels/audit.csv", tmp_path)


def test_the_readme_figure_is_drawn_from_results_alone(tmp_path):
    from eval import readme_figure

    readme_figure.draw(tmp_path / "a.png")
    readme_figure.draw(tmp_path / "b.png")
    drawn = (tmp_path / "a.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert drawn == (tmp_path / "b.png").read_bytes()
    assert len(drawn) < 100_000
    with pytest.raises(FileNotFoundError, match=r"comparison\.json"):
        readme_figure.draw(tmp_path / "c.png", tmp_path)
    assert not (tmp_path / "c.png").exists()
