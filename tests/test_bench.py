import csv

import pytest
import torch

from kernels import bitmask as masks
from kernels.bench import __main__ as bench
from kernels.masked_sample import masked_sample


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


def test_wrong_tokens_are_not_timed():
    from kernels.bench.workloads import workload

    work = workload("peaked", "300", 6, 2000, torch.float32, "cpu")
    good = masked_sample(work.logits, work.bitmask, top_p=0.95, seed=0, position=work.position)
    bench._check(work, "masked_sample", good.token)
    forbidden = masks.unpack(~work.bitmask, 2000).int().argmax(1)
    for token in (forbidden, good.token - 2000, good.token + 2000):
        with pytest.raises(RuntimeError, match="pipeline drew what is not allowed on peaked 300"):
            bench._check(work, "pipeline", token)
    # Legal, but not the draw of this seed and position.
    other = masks.unpack(work.bitmask, 2000).int().argmax(1)
    bench._check(work, "pipeline", other)
    with pytest.raises(RuntimeError, match=r"masked_sample drew .* the reference"):
        bench._check(work, "masked_sample", other)


def test_a_baseline_that_fails_is_left_out_and_named(monkeypatch, capsys):
    from kernels.bench import providers
    from kernels.bench.workloads import workload

    def broken(work):
        raise OSError("no compiler")

    monkeypatch.setitem(providers.PROVIDERS, "flashinfer", broken)
    work = workload("flat", "free", 2, 500, torch.float32, "cpu")
    rows = bench._time_all(work, "cpu", 1, 0.0)
    assert [row["provider"] for row in rows] == ["masked_sample", "pipeline"]
    assert "flashinfer is left out: no compiler" in capsys.readouterr().err
