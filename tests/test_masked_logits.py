"""masked_logits on the CPU: the contract, clause by clause, against float64 and Hugging Face."""

import math

import numpy as np
import pytest
import torch

from kernels import bitmask as masks
from kernels.masked_logits import (
    Costs,
    costs,
    crossover,
    dense_logits,
    linear_head,
    masked_logits,
    masked_logits_reference,
    torch_dense,
    torch_gather,
)
from kernels.masked_logits.call import prepare
from kernels.masked_sample import masked_sample

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FULL_TOLERANCE = 5e-7
"""Relative to the sum of |h w|: float32 sums of up to 2,048 products."""
TOLERANCES = {
    torch.float32: FULL_TOLERANCE,
    torch.float16: FULL_TOLERANCE + 2.0**-11,
    torch.bfloat16: FULL_TOLERANCE + 2.0**-8,
}
"""The same, and half a unit in the last place of the output."""
NAN, INF = math.nan, math.inf
EAGER = Costs((1e9,), ("matmul",), gather=0.0, token=0.0)
"""Gather every masked row."""
DENSE = {name: Costs((0.0,), (name,), gather=1.0, token=1.0) for name in ("matmul", "blocks")}
"""Gather none, and multiply the named way."""


def problem(rows, size, width, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator).to(dtype)
    weight = (torch.randn(size, width, generator=generator) * width**-0.5).to(dtype)
    return hidden, weight


def random_mask(rows, size, seed=0, density=(0, 0.001, 0.02, 0.3, 1)):
    rng = np.random.default_rng(seed)
    allowed = torch.from_numpy(rng.random((rows, size)) < rng.choice(density, (rows, 1)))
    bitmask = masks.pack(allowed)
    if size % 32:
        bitmask[:, -1] |= -1 << (size % 32)
    return bitmask, allowed


def exact(hidden, weight, bias=None, scale=1.0, softcap=None):
    """float64 logits, and what rounding is relative to."""
    x, w = hidden.double().numpy(), weight.double().numpy()
    b = 0.0 if bias is None else bias.double().numpy()
    z, size = (x @ w.T + b) * scale, (abs(x) @ abs(w).T + abs(b)) * abs(scale)
    if softcap is not None:
        z = softcap * np.tanh(z / softcap)
    return torch.from_numpy(z), torch.from_numpy(size)


def assert_near(logits, wanted, where, tolerance):
    z, size = wanted
    off = (logits.double() - z).abs() / size
    assert not off[where].isnan().any()
    worst = off[where].max().item() if off[where].numel() else 0.0
    assert worst <= tolerance, worst


def poisoned(rows, size, dtype=torch.float32):
    return torch.full((rows, size), NAN, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", (1, 3, 17))
@pytest.mark.parametrize(("size", "width"), ((33, 7), (1000, 50), (32003, 33)))
def test_allowed_logits_agree_with_float64(size, width, rows, dtype):
    hidden, weight = problem(rows, size, width, dtype)
    bitmask, allowed = random_mask(rows, size, seed=rows)
    constrained = torch.arange(rows) % 4 != 3
    where = allowed | ~constrained[:, None]
    wanted = exact(hidden, weight)
    for fixed in (None, EAGER):
        logits = masked_logits(
            hidden, weight, bitmask, constrained=constrained, costs=fixed,
            out=poisoned(rows, size, dtype),
        )  # fmt: skip
        assert logits.dtype == dtype
        assert_near(logits, wanted, where, TOLERANCES[dtype])
        full = masked_logits(
            hidden, weight, bitmask, constrained=constrained, costs=fixed, out=poisoned(rows, size)
        )
        assert_near(full, wanted, where, FULL_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("size", "width"), ((33, 20), (128, 2048), (1000, 20), (32003, 20)), ids=str
)
def test_every_way_to_multiply_agrees_with_float64(size, width, dtype):
    for rows in (1, 2, 8, 17):
        hidden, weight = problem(rows, size, width, dtype, seed=rows)
        wanted = exact(hidden, weight)
        call = prepare(hidden, weight, None, out=poisoned(rows, size, dtype))
        ways = torch_dense.methods(call)
        assert len(ways) == 2
        for way in ways.values():
            call.out.fill_(NAN)
            way(call, call.hidden, call.out)
            assert_near(call.out, wanted, torch.ones(rows, size).bool(), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "extra",
    (
        {"bias": True},
        {"scale": 0.0625},
        {"softcap": 3.0},
        {"bias": True, "scale": -2.5, "softcap": 0.7},
    ),
    ids=str,
)
def test_bias_then_scale_then_softcap(extra, dtype):
    rows, size = 6, 700
    hidden, weight = problem(rows, size, 40, dtype)
    if "bias" in extra:
        generator = torch.Generator().manual_seed(9)
        extra = extra | {"bias": torch.randn(size, generator=generator).to(dtype)}
    bitmask, allowed = random_mask(rows, size, density=(0.01, 0.5))
    wanted = exact(hidden, weight, **extra)
    for fixed in (EAGER, None):
        logits = masked_logits(
            hidden, weight, bitmask, costs=fixed, out=poisoned(rows, size), **extra
        )
        assert_near(logits, wanted, allowed, FULL_TOLERANCE)
        rounded = masked_logits(hidden, weight, bitmask, costs=fixed, **extra)
        # Rounded once: a 16-bit product would be rounded before what follows it.
        assert (rounded[allowed] - logits[allowed].to(dtype)).abs().max() <= 1e-6
    assert_near(
        dense_logits(hidden, weight, out=poisoned(rows, size), **extra),
        wanted, allowed | True, FULL_TOLERANCE,
    )  # fmt: skip


def test_the_reference_says_what_is_defined():
    hidden, weight = problem(3, 70, 5)
    bitmask = masks.pack(torch.zeros(3, 70, dtype=torch.bool))
    bitmask[0, 0], bitmask[1, 2] = 0b101, -1
    logits = masked_logits_reference(
        hidden, weight, bitmask, constrained=torch.tensor([True, True, False]), vocab_size=66
    )
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [0, 2]
    assert logits[1].isfinite().nonzero()[:, 0].tolist() == [64, 65]
    assert logits[2].isfinite().nonzero()[:, 0].tolist() == list(range(66))
    assert_near(logits, exact(hidden, weight), logits.isfinite(), 1e-7)


def test_nothing_but_the_allowed_tokens_is_read_of_a_gathered_row():
    hidden, weight = problem(4, 1000, 16)
    bitmask = masks.pack(torch.zeros(4, 1000, dtype=torch.bool))
    bitmask[:, 31] = torch.tensor([1, 1, 1 << 7, 0])
    bitmask[:, 31] |= -1 << 8
    weight[torch.arange(1000) != 992] = NAN
    logits = masked_logits(hidden, weight, bitmask, costs=EAGER, out=poisoned(4, 1000))
    wanted = exact(hidden, weight)
    assert_near(logits[:2, 992], tuple(x[:2, 992] for x in wanted), slice(None), FULL_TOLERANCE)
    assert logits[3].isnan().all()


def test_spare_bits_and_bits_beyond_the_vocabulary_allow_nothing():
    hidden, weight = problem(2, 100, 16)
    weight[70:] = NAN
    bitmask = torch.full((2, 6), -1, dtype=torch.int32)
    bitmask[0, :2] = 0
    for fixed in (EAGER, DENSE["matmul"], DENSE["blocks"]):
        out = torch.full((2, 100), 7.0)
        logits = masked_logits(hidden, weight, bitmask, vocab_size=70, costs=fixed, out=out)
        assert (logits[:, 70:] == 7.0).all()
        wanted = tuple(x[:, :70] for x in exact(hidden, weight))
        allowed = torch.arange(70).expand(2, -1) >= torch.tensor([[64], [0]])
        assert_near(logits[:, :70], wanted, allowed, FULL_TOLERANCE)


def test_free_rows_and_no_mask_define_everything():
    hidden, weight = problem(5, 300, 16)
    bitmask = torch.zeros(5, 10, dtype=torch.int32)
    constrained = torch.tensor([True, False, True, False, False])
    wanted = exact(hidden, weight)
    logits = masked_logits(
        hidden, weight, bitmask, constrained=constrained, out=poisoned(5, 300), costs=EAGER
    )
    assert_near(logits, wanted, (~constrained)[:, None].expand(5, 300), FULL_TOLERANCE)
    assert logits[constrained].isnan().all()
    everything = torch.ones(5, 300, dtype=torch.bool)
    assert_near(masked_logits(hidden, weight, None), wanted, everything, FULL_TOLERANCE)
    assert_near(dense_logits(hidden, weight), wanted, everything, FULL_TOLERANCE)


@pytest.mark.parametrize("fixed", (None, EAGER, *DENSE.values()), ids=str)
def test_a_row_stride_larger_than_the_row(fixed):
    rows, size, width = 5, 500, 24
    hidden, weight = problem(rows, size, width)
    wide_hidden, wide_weight = torch.full((rows, 3, width), NAN), torch.full((size, width + 9), NAN)
    wide_hidden[:, -1], wide_weight[:, :width] = hidden, weight
    wide_mask = torch.full((rows, 20), -1, dtype=torch.int32)
    bitmask, allowed = random_mask(rows, size)
    wide_mask[:, : bitmask.shape[1]] = bitmask
    wide_out = poisoned(rows, size + 12)
    logits = masked_logits(
        wide_hidden[:, -1], wide_weight[:, :width], wide_mask[:, : bitmask.shape[1]],
        out=wide_out[:, :size], costs=fixed,
    )  # fmt: skip
    assert logits.data_ptr() == wide_out.data_ptr()
    assert_near(logits, exact(hidden, weight), allowed, FULL_TOLERANCE)
    assert wide_out[:, size:].isnan().all()


def test_rows_that_share_a_mask_share_the_gather(monkeypatch):
    hidden, weight = problem(6, 3000, 16)
    allowed = torch.zeros(6, 3000, dtype=torch.bool)
    allowed[[0, 2, 5], 100:2900], allowed[1, :2000], allowed[3, 7] = True, True, True
    shared = []
    gather = torch_gather.gather

    def counting(call, rows, ids):
        shared.append((rows.tolist(), len(ids)))
        gather(call, rows, ids)

    monkeypatch.setattr("kernels.masked_logits.torch_impl.gather", counting)
    logits = masked_logits(hidden, weight, masks.pack(allowed), costs=EAGER, out=poisoned(6, 3000))
    assert shared == [([1, 3], 2000), ([0, 2, 5], 2800)]
    assert_near(logits, exact(hidden, weight), allowed, FULL_TOLERANCE)


def test_groups_stay_small_and_hold_each_row_once():
    rng = np.random.default_rng(1)
    allowed = np.zeros((60, 5000), bool)
    for row in allowed:
        row[rng.choice(5000, rng.choice([0, 1, 3, 40, 400, 2000]), replace=False)] = True
    words = masks.pack(torch.from_numpy(allowed)).numpy().view(np.uint32)
    rows = np.arange(60)[::2]
    seen = []
    for members, ids in torch_gather.groups(words, rows):
        union = allowed[members].any(0)
        assert np.flatnonzero(union).tolist() == ids.tolist()
        largest = allowed[members].sum(1).max()
        assert len(ids) == largest or len(ids) * len(members) <= torch_gather.PRODUCTS
        seen += members.tolist()
    assert sorted(seen) == [row for row in rows if allowed[row].any()]


def test_a_bad_row_disturbs_no_neighbour():
    hidden, weight = problem(6, 400, 32)
    bitmask, allowed = random_mask(6, 400, density=(0.01, 0.6))
    for fixed in (EAGER, *DENSE.values()):
        healthy = masked_logits(hidden, weight, bitmask, costs=fixed)
        ill = hidden.clone()
        ill[2, 0], ill[4] = NAN, INF
        logits = masked_logits(ill, weight, bitmask, costs=fixed)
        for row in (0, 1, 3, 5):
            assert torch.equal(logits[row][allowed[row]], healthy[row][allowed[row]])
        assert not logits[2][allowed[2]].isfinite().any()


def test_an_empty_batch_is_an_empty_batch():
    _, weight = problem(1, 40, 8)
    assert masked_logits(torch.empty(0, 8), weight, None).shape == (0, 40)
    empty = torch.empty(0, 2, dtype=torch.int32)
    assert masked_logits(torch.empty(0, 8), weight, empty).shape == (0, 40)


def test_the_tokens_are_those_of_the_dense_head():
    rows, size = 100, 1000
    hidden, weight = problem(rows, size, 64)
    bitmask, _ = random_mask(rows, size, density=(0.001, 0.01, 0.2, 0.9))
    bitmask[:, 0] |= 1
    constrained = torch.arange(rows) % 5 != 0
    arguments = {
        "constrained": constrained, "top_p": 0.95, "seed": torch.arange(rows), "position": 3
    }  # fmt: skip
    wanted = masked_sample((hidden.double() @ weight.double().T * 4).float(), bitmask, **arguments)
    differ = 0
    for fixed in (None, EAGER, *DENSE.values()):
        logits = masked_logits(
            hidden, weight, bitmask, constrained=constrained, scale=4.0, costs=fixed,
            out=poisoned(rows, size),
        )  # fmt: skip
        sample = masked_sample(logits, bitmask, **arguments)
        assert (sample.status == 0).all()
        same = sample.token == wanted.token
        differ += int((~same).sum())
        torch.testing.assert_close(sample.logprob[same], wanted.logprob[same], atol=5e-5, rtol=1e-5)
    # A score gap or a boundary within 1e-5 of rounding: one draw in some 10^4.
    assert differ <= 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_model_head_tied_to_its_embedding(dtype):
    embedding = torch.nn.Embedding(320, 48, dtype=dtype)
    head = torch.nn.Linear(48, 320, bias=False, dtype=dtype)
    head.weight = embedding.weight
    weight, bias = linear_head(head)
    assert weight is embedding.weight
    assert bias is None
    hidden, _ = problem(3, 1, 48, dtype)
    logits = masked_logits(hidden, weight, None, bias=bias)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, head(hidden).detach(), atol=2e-2, rtol=1e-2)


# What decides between gathering and multiplying


def test_the_split_is_the_cheapest():
    rng = np.random.default_rng(2)
    for _ in range(300):
        rows = int(rng.integers(1, 7))
        dense = np.sort(rng.random(4)) * 100
        fixed = Costs(tuple(dense), ("blocks",) * 4, gather=rng.random() * 9, token=rng.random())
        counts, masked = rng.integers(0, 200, rows), rng.random(rows) < 0.8

        def cost(gathered, counts=counts, fixed=fixed):
            left = len(counts) - len(gathered)
            rest = np.interp(left, [0, 1, 2, 4, 8], [0, *fixed.dense])
            return rest + sum(fixed.gather + fixed.token * counts[row] for row in gathered)

        choices = [
            [row for row in range(rows) if bits >> row & 1 and masked[row]]
            for bits in range(1 << rows)
        ]
        chosen = fixed.gathered(counts, masked)
        assert masked[chosen].all()
        assert cost(chosen) <= min(map(cost, choices)) + 1e-9


def test_the_switch_over_is_where_both_cost_the_same():
    weight = torch.zeros(1000, 4)
    fixed = Costs((600.0, 800.0), ("matmul", "blocks"), gather=100.0, token=1.0)
    assert crossover(weight, 1, fixed) == pytest.approx(0.5)
    assert crossover(weight, 2, fixed) == pytest.approx(0.3)
    # Beyond what was measured, in proportion.
    assert crossover(weight, 8, fixed) == pytest.approx(0.3)
    assert fixed.method(1) == "matmul"
    assert {fixed.method(rows) for rows in (2, 3, 50)} == {"blocks"}
    for count, gathered in ((499, [0]), (501, [])):
        assert fixed.gathered(np.array([count]), np.array([True])).tolist() == gathered


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_costs_are_measured_once_for_each_head(dtype, monkeypatch):
    monkeypatch.setattr(costs, "_MEASURED", {})
    monkeypatch.setattr(costs, "SAMPLE", 1 << 14)
    calls = []
    measure = costs.measure
    monkeypatch.setattr(costs, "measure", lambda *a: calls.append(a) or measure(*a))
    hidden, weight = problem(3, 2000, 16, dtype)
    for _ in range(3):
        masked_logits(hidden, weight, None)
        masked_logits(hidden[:1], weight, None)
    assert len(calls) == 1
    (found,) = costs._MEASURED.values()
    assert len(found.dense) == len(found.methods) == 4
    masked_logits(hidden[:1].expand(9, -1), weight, None)
    assert len(calls) == 2
    assert list(found.dense) == sorted(found.dense)
    assert min(found.dense) > 0
    assert found.gather > 0
    assert found.token > 0
    assert 0 <= crossover(weight, 4) <= 1


def test_the_switch_over_is_the_cpu_paths():
    with pytest.raises(ValueError, match=r"weight must be on the CPU.*got meta"):
        crossover(torch.empty(100, 8, device="meta"))


def test_fixed_costs_measure_nothing(monkeypatch):
    monkeypatch.setattr(costs, "measure", None)
    monkeypatch.setattr(costs, "_MEASURED", {})
    hidden, weight = problem(3, 64, 16)
    masked_logits(hidden, weight, torch.full((3, 2), 5, dtype=torch.int32), costs=EAGER)
