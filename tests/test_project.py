"""The project as a whole: its names, its imports, its command lines."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "kernels.audit",
    "kernels.traffic",
    "kernels.traffic_heads",
    "kernels.bench",
    "grammar.bench",
    "grammar.schema",
    "eval.k2vv",
    "eval.decoding",
    "eval.json_schema",
    "eval.bundle",
    "eval.nano_curve",
    "eval.serve_check",
    "sampler.nano.train",
    "sampler.serve",
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


@pytest.mark.parametrize("module", COMMANDS)
def test_help_answers_without_loading_a_framework(module):
    code = f"""
import runpy, sys
sys.argv = [{module!r}, "--help"]
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as done:
    assert done.code == 0
print(sorted({{"torch", "transformers", "pandas", "matplotlib", "xgrammar"}} & set(sys.modules)))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]"), done.stdout
    assert "usage:" in done.stdout


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
