"""The bench, the traffic meter and the audit of masked_logits."""

import csv
import os
import subprocess
import sys

import pytest
import torch

from kernels import audit, audit_heads
from kernels.bench import __main__ as bench
from kernels.bench import heads

linux = pytest.mark.skipif(sys.platform != "linux", reason="triton is published for Linux")


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_head_in_part_is_timed_beside_whole_ones(tmp_path, capsys):
    path = tmp_path / "heads.csv"
    options = "--op masked_logits --device cpu --head 700x32 --batch-size 1 3 --repeats 2"
    assert bench.main([*options.split(), "--mask", "1", "free", "--output", str(path)]) == 0
    rows = read(path)
    assert [(row["rows"], row["allowed"], row["provider"]) for row in rows] == [
        (batch, mask, provider)
        for batch in ("1", "3")
        for mask in ("1", "free")
        for provider in ("masked_logits", "dense_logits", "matmul")
    ]
    for row in rows:
        assert 0 < float(row["low_us"]) <= float(row["median_us"]) <= float(row["high_us"])
        assert float(row["ratio"]) > 0
        assert 0 <= float(row["crossover"]) <= 1
        if row["provider"] == "masked_logits":
            assert float(row["ratio"]) == 1.0
    assert "crossover" in capsys.readouterr().out


def test_wrong_logits_are_not_timed():
    hidden, weight = torch.ones(1, 8), torch.ones(40, 8)
    ids = torch.arange(40)[None].numpy()
    heads._check("sound", hidden @ weight.T, hidden, weight, ids)
    with pytest.raises(AssertionError, match="broken"):
        heads._check("broken", hidden @ weight.T * 1.01, hidden, weight, ids)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_a_sentence_and_exit_two(capsys):
    assert bench.main(["--op", "masked_logits", "--device", "cuda"]) == 2
    assert "needs a CUDA or ROCm device" in capsys.readouterr().err


@pytest.mark.parametrize("text", ("49152", "0x5", "5x", "axb"))
def test_a_head_that_is_no_shape_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        heads.parser().parse_args(["--head", text])
    assert "a head is VxD, as 49152x576" in capsys.readouterr().err


@linux
def test_traffic_of_a_small_head_is_what_counting_by_hand_gives(tmp_path):
    path = tmp_path / "traffic.csv"
    options = "--head 1000x64 --dtype bfloat16 --batch-size 1 --mask 1 free"
    done = subprocess.run(
        [sys.executable, "-m", "kernels.traffic_heads", *options.split(), "--output", str(path)],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, free = read(path)
    # A row of weight is 128 bytes, so is hidden; 16 programs of 64 tokens.
    assert int(one["floor"]) == 32 * 4 + 128 + 128 + 2
    # Programs of 64 tokens share the mask's four sectors; a logit is in a sector.
    assert int(one["bytes"]) == 4 * 32 + 128 + 128 + 32
    assert int(one["program_bytes"]) == 16 * 32 + 128 + 128 + 32
    assert int(free["floor"]) == 1000 * 128 + 128 + 1000 * 2 == int(free["whole"])
    # 1,000 logits are 62.5 sectors.
    assert int(free["bytes"]) == 1000 * 128 + 128 + 63 * 32
    assert int(free["program_bytes"]) == 1000 * 128 + 16 * 128 + 63 * 32


@pytest.mark.skipif(
    sys.platform != "linux" or os.environ.get("TRITON_INTERPRET") == "1",
    reason="triton compiles on Linux, without its interpreter",
)
@pytest.mark.parametrize(("target", "dtype"), (("sm_80", "float32"),))
def test_no_spills_and_weight_is_read_sixteen_bytes_at_a_time(target, dtype):
    rows = audit_heads.audit(target, dtype)
    assert [row["kernel"] for row in rows] == ["head_16", "head_64"]
    for row in rows:
        assert audit.passes(row), row
        assert row["main_loads"] > 0
        assert 0 < row["registers"] <= 255


def test_the_width_of_an_asynchronous_copy_counts(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("x = tl.load(weight_at + start)\n")
    lines = (
        ".loc\t1 1 4",
        "cp.async.cg.shared.global [ %r85 + 0 ], [ %rd3 + 0 ], 0x10, %r86;",
        "cp.async.ca.shared.global [ %r85 + 0 ], [ %rd3 + 0 ], 0x4;",
        f'.file 1 "{source}"',
    )
    assert audit.load_bytes("\n".join(lines), "tl.load(weight_at") == [16, 4]
