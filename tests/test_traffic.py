import csv
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kernels import bitmask as masks
from kernels import traffic
from kernels import traffic_workloads as workloads

linux = pytest.mark.skipif(sys.platform != "linux", reason="triton is published for Linux")
NOT_INTERPRETED = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], env=NOT_INTERPRETED, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@linux
def test_traffic_is_near_the_floor_and_far_below_the_pipeline(tmp_path):
    path = tmp_path / "traffic.csv"
    options = "--vocab-size 128256 --dtype bfloat16 --shape peaked --mask 30 --cut top_p --jobs 1"
    run("-m", "kernels.traffic", *options.split(), "--output", str(path))
    with path.open() as file:
        (row,) = csv.DictReader(file)
    # 128,256 mask bits are 16,032 bytes; 30 tokens lie in at most 30 sectors.
    assert 16_032 + 29 * 32 <= int(row["floor"]) <= 16_032 + 30 * 32
    assert int(row["floor"]) <= int(row["bytes"]) <= 1.4 * (int(row["floor"]) + 512)
    assert float(row["baseline_ratio"]) >= 20


@linux
def test_few_tiles_are_enough_where_k_exceeds_their_number(tmp_path):
    path = tmp_path / "traffic.csv"
    options = "--vocab-size 32000 --dtype bfloat16 --shape peaked --mask free 30 --jobs 1"
    # Exit status 0 is the verdict; these are the bytes behind it.
    run("-m", "kernels.traffic", *options.split(), "--output", str(path))
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["cut"] for row in rows} == {"top_p", "top_k_top_p"}
    for row in rows:
        floor = 64_000 if row["mask"] == "free" else int(row["floor"])
        assert floor <= int(row["bytes"]) <= 1.6 * (floor + 512)


METERED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl
from kernels.traffic import Meter
from kernels.traffic_workloads import aligned

@triton.jit
def kernel(source, target):
    at = tl.program_id(0) * 16 + tl.arange(0, 16)
    x = tl.load(source + at) + tl.load(source + at) + tl.load(source + 64 + at % 2)
    tl.store(target + at, x, mask=tl.arange(0, 16) < 9)

source = aligned(torch.zeros(100), 66)
target = aligned(torch.zeros(100), 48)
with Meter() as meter:
    kernel[(3,)](source, target)
print(meter.bytes)
"""


@linux
def test_the_meter_counts_distinct_sectors_of_each_program():
    # Each program reads 64 bytes of its own and 8 that all share, and writes 36: 2 + 1 + 2 sectors.
    assert int(run("-c", METERED)) == 3 * (2 + 1 + 2) * 32


def test_the_floor_is_the_mask_and_the_sectors_that_it_allows():
    allowed = torch.zeros(1, 200, dtype=torch.bool)
    allowed[0, [0, 7, 15, 16, 199]] = True
    bitmask = masks.pack(allowed)
    # 7 words of mask. Sectors of 16 two-byte logits: 0, 1, 12; of 8 four-byte ones: 0, 1, 2, 24.
    assert workloads.floor_bytes(torch.zeros(1, 200).half(), bitmask) == 28 + 3 * 32
    assert workloads.floor_bytes(torch.zeros(1, 200), bitmask) == 28 + 4 * 32
    assert workloads.floor_bytes(torch.zeros(1, 200), None) == 25 * 32


@pytest.mark.parametrize("vocab_size", traffic.VOCAB_SIZES)
def test_recorded_masks_are_those_of_a_tool_call(vocab_size):
    recorded = workloads.recorded()
    counts = {}
    for place in traffic.PLACES:
        mask = torch.from_numpy(recorded[f"{vocab_size}/{place}"])[None]
        assert mask.shape == (1, masks.words_for(vocab_size))
        counts[place] = int(masks.unpack(mask, vocab_size).sum())
    # Two tool names, one key, four values of an enum, the digits 1 to 9: a few spellings each.
    assert all(2 <= counts[place] <= 40 for place in ("name", "key", "enum", "integer", "number"))
    assert 0.9 * vocab_size < counts["string"] < counts["between"] <= vocab_size


def test_both_shapes_are_under_the_same_mask():
    rows = [workloads.workload(32_000, "bfloat16", shape, "30") for shape in traffic.SHAPES]
    assert torch.equal(rows[0][1], rows[1][1])
    assert int(masks.count_allowed(rows[0][1], 32_000)) == 30
    peaked = np.sort(rows[0][0].float().numpy()[0])[::-1]
    np.testing.assert_allclose(peaked, -2.5 * np.log(np.arange(1, 32_001)), rtol=4e-3)
