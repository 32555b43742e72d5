import csv
import os
import subprocess
import sys

import pytest
import torch

from kernels.bench import __main__ as bench


def test_the_torch_path_is_timed_beside_the_usual_pipeline(tmp_path, capsys):
    path = tmp_path / "bench.csv"
    options = "--device cpu --batch-size 3 --vocab-size 2000 --repeats 2 --mask free 300"
    assert bench.main([*options.split(), "--output", str(path)]) == 0
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["workload"] for row in rows} == {
        f"{shape} {mask}" for shape in ("peaked", "flat") for mask in ("free", "300")
    }
    assert {row["provider"] for row in rows} == {"masked_sample", "pipeline"}
    for row in rows:
        assert 0 < float(row["low_us"]) <= float(row["median_us"]) <= float(row["high_us"])
        assert float(row["ratio"]) > 0
        assert row["command"].startswith("python -m kernels.bench --device cpu")
    assert "median_us" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_a_sentence_and_exit_two(capsys):
    assert bench.main(["--device", "cuda"]) == 2
    assert "needs a CUDA or ROCm device" in capsys.readouterr().err


TRAFFIC = """
import sys
from kernels import traffic
sys.exit(traffic.main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="triton is published for Linux")
def test_traffic_is_near_the_floor_and_far_below_the_pipeline(tmp_path):
    path = tmp_path / "traffic.csv"
    options = "--vocab-size 128256 --dtype bfloat16 --shape peaked --mask 30 --cut top_p"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", TRAFFIC, *options.split(), "--output", str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with path.open() as file:
        (row,) = csv.DictReader(file)
    # 128,256 mask bits are 16,032 bytes; 30 tokens lie in at most 30 sectors.
    assert 16_032 + 29 * 32 <= int(row["floor"]) <= 16_032 + 30 * 32
    assert int(row["floor"]) <= int(row["bytes"]) <= 1.4 * (int(row["floor"]) + 512)
    assert float(row["baseline_ratio"]) >= 20
