import os
import subprocess
import sys

import pytest

from kernels import audit

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton compiles on Linux, without its interpreter",
)


@pytest.mark.parametrize(
    ("target", "dtype"), (("sm_90", "bfloat16"), ("sm_100", "float32"), ("gfx942", "float16"))
)
def test_nothing_spills_and_logits_are_read_sixteen_bytes_at_a_time(target, dtype):
    rows = audit.audit(target, dtype)
    assert {row["kernel"] for row in rows} == {"tile", "row", "stats", "head_16", "head_64"}
    for row in rows:
        assert audit.passes(row), row
        assert row["main_loads"] > 0
        assert 0 < row["registers"] <= 255
        assert row["instructions"] > 100


def test_narrow_loads_and_spills_do_not_pass():
    good = {"spilled_bytes": 0, "load_bytes": 16}
    assert audit.passes(good)
    assert not audit.passes(good | {"load_bytes": 2})
    assert not audit.passes(good | {"spilled_bytes": 4})
    assert not audit.passes(good | {"load_bytes": ""})


def test_only_loads_of_logits_count(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("x = tl.load(other)\ny = tl.load(logits_ptr + ids)\n")
    lines = (
        ".loc\t1 1 4",
        "ld.global.b16 {%r1}, [%rd1];",
        ".loc\t1 2 4",
        "@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1 + 0];",
        "ld.global.b16 %rs1, [%rd1 + 0];",
        f'.file 1 "{source}"',
    )
    assert audit.load_bytes("\n".join(lines)) == [16, 2]
    amd = (".loc\t1 2 4", "global_load_dwordx4 v[0:3], v[0:1], off", f'.file 1 "{source}"')
    assert audit.load_bytes("\n".join(amd)) == [16]


def test_it_says_so_when_triton_interprets():
    done = subprocess.run(
        [sys.executable, "-m", "kernels.audit"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "unset TRITON_INTERPRET" in done.stderr
