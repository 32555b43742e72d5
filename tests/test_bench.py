import csv

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
