"""The project as a whole: its names, its imports, its files."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Where files lie on one machine, and where it gets its packages from.
MACHINE = re.compile(
    r"/(?:home|Users)/\w+/|/root/|/work/"
    r"|--(?:extra-)?index-url|--find-links|https?://(?:10|192\.168)\.\d|https?://\S+/simple\b"
)


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_version_is_one_and_below_the_range_transformers_takes_for_its_own_kernels():
    import kernels

    version = metadata.version("masked-sampling")
    assert kernels.__version__ == version
    assert tuple(map(int, version.split(".")[:2])) < (0, 9)


def test_importing_kernels_imports_no_framework():
    done = run(
        "import sys, kernels\n"
        "print(sorted({'torch', 'triton', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_model_class_loads_although_our_package_is_called_kernels(tmp_path):
    code = f"""
import builtins, sys
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2)
LlamaForCausalLM(config).save_pretrained({str(tmp_path)!r})
model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
import torch
assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 64)
import kernels
print(kernels.__file__)
from eval import k2vv
assert eval is builtins.eval
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == ROOT / "kernels" / "__init__.py"


def test_the_other_kernels_beside_us_is_named(tmp_path):
    info = tmp_path / "kernels-0.18.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n")
    code = "import kernels\nkernels.get_kernel"
    done = run(code, PYTHONPATH=str(tmp_path))
    assert "Hugging Face's `kernels` 0.18.2 is installed" in done.stderr
    assert "uninstall one of the two" in done.stderr
    assert "no attribute 'get_kernel'" in run(code).stderr


def test_no_test_folder_replaces_a_package():
    assert not list((ROOT / "tests").glob("*/__init__.py"))


def test_every_package_is_shipped():
    text = (ROOT / "pyproject.toml").read_text()
    listed = set(re.findall(r'"([\w.]+)"', text.split("packages = [")[1].split("]")[0]))
    on_disk = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("kernels", "grammar", "sampler", "eval")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert listed == on_disk


def test_constraints_pin_the_pair_that_was_tested():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(pins)
    assert all("==" in pin for pin in pins if pin and not pin.startswith("#"))


def test_results_that_are_json_hold_no_nan():
    def refuse(name: str):
        raise ValueError(name)

    paths = list((ROOT / "results").rglob("*.json"))
    assert paths
    for path in paths:
        json.loads(path.read_text(), parse_constant=refuse)


def tracked() -> list[Path]:
    """Text files that git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def test_no_file_names_a_machine():
    here = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked()
        if path.resolve() != here
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        for match in [MACHINE.search(line)]
        if match
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "names_one"),
    [
        ("written to /home/ada/runs", True),
        ("see /root/.cache", True),
        ("pip install --index-url https://example.org/simple", True),
        ("http://10.1.2.3:8080/simple", True),
        ("results/kernels/audit.csv, version 2.13.0", False),
        ("https://docs.python.org/3/", False),
        ("torch==2.13.0", False),
    ],
)
def test_the_check_knows_a_machine_from_a_version(line, names_one):
    assert bool(MACHINE.search(line)) == names_one
