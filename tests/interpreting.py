"""What the tests of a Triton path share: marks, and a run of their file under the interpreter.

Whether triton interprets is settled when it is imported, so the tests of the interpreter run in a
process of their own.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in a process that interprets")
compiled = pytest.mark.skipif(
    INTERPRETED or sys.platform != "linux", reason="needs triton without its interpreter"
)


def gpu(test):
    here = torch.cuda.is_available() and not INTERPRETED
    return pytest.mark.gpu(pytest.mark.skipif(not here, reason="needs a GPU")(test))


def run_interpreted(file):
    """Run the tests of a file again, under the interpreter."""
    # The fixtures of conftest.py are a model's, which takes longer to import than these to run.
    options = ["-q", "-p", "no:cacheprovider", "--noconftest"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, file],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@contextmanager
def interpreter():
    """The interpreter at a bearable speed, and silent about NaN."""
    from kernels.interpreter import patched_once

    with patched_once(), np.errstate(all="ignore"):
        yield
