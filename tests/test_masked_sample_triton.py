"""The Triton path of masked_sample: under the interpreter, and on a GPU where there is one."""

import dataclasses
import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

from kernels import bitmask as masks
from kernels.masked_sample import Sample, Status, masked_sample, masked_sample_reference
from kernels.masked_sample.call import prepare
from kernels.masked_sample.workspace import CAPACITY, workspace_words
from tests.interpreting import compiled, gpu, interpreted, interpreter, run_interpreted

ROWS = int(os.environ.get("TRITON_TEST_ROWS", "120"))
"""Rows of the random agreement test, 24 launches: an interpreted row takes tens of milliseconds."""
TOLERANCES = {"logprob": 2e-5, "log_removed": 2e-5, "entropy": 2e-4}
"""Absolute, nats, with as much again relative to the value: float32 sums against float64."""
BOUNDARY = 4e-6
"""A share of the mass this close to top_p may fall on either side: rounding of the quanta."""
INF, NAN = math.inf, math.nan
SEVERAL_TILES = (
    {},
    {"top_p": 0.95},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 1500},
    {"top_k": 1500, "top_p": 0.7},
    {"min_p": 1e-4, "top_p": 0.99},
    {"temperature": 0.0},
)
"""Cuts of rows of several tiles. A list holds 512 tokens: 1,500 are worked by tiles."""
KINDS = ("flat", "peaked", "tied")


@compiled
def test_the_contract_holds_under_the_interpreter():
    run_interpreted(__file__)


@pytest.fixture(scope="module")
def fast():
    with interpreter():
        yield


@pytest.fixture
def draw(fast, monkeypatch):
    """masked_sample by the Triton path, seed 0 and position 0 unless given, outputs NaN before."""
    from kernels.interpreter import host_noise
    from kernels.masked_sample import triton_rows

    monkeypatch.setattr(triton_rows, "gumbel_noise", host_noise)

    def call(logits, bitmask=None, **arguments):
        if not isinstance(logits, torch.Tensor):
            logits = torch.tensor(logits)
        vocab_size = arguments.get("vocab_size") or logits.shape[1]
        words = workspace_words(len(logits), vocab_size)
        arguments = {
            "seed": 0,
            "position": 0,
            "impl": "triton",
            "out": poisoned(len(logits)),
            "workspace": torch.full((words,), -1),
        } | arguments
        return masked_sample(logits, bitmask, **arguments)

    return call


def poisoned(rows):
    """Outputs as a kernel may find them. Words of -1 in a workspace are NaN as float32."""
    status = torch.full((rows,), 99, dtype=torch.int8)
    return Sample(torch.full((rows,), -7), torch.full((rows,), NAN), status)


def mask(*rows, width):
    allowed = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, ids in enumerate(rows):
        allowed[row, list(ids)] = True
    return masks.pack(allowed)


def assert_same_numbers(sample, expected):
    assert torch.equal(sample.status, expected.status)
    if expected.stats is not None:
        assert torch.equal(sample.stats.allowed, expected.stats.allowed)
    for name, tolerance in TOLERANCES.items():
        if name != "logprob" and expected.stats is None:
            continue
        got, wanted = (
            getattr(s if name == "logprob" else s.stats, name) for s in (sample, expected)
        )
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance, equal_nan=True)


def near_tie(logits, bitmask, arguments, row):
    """Whether the top-p boundary of a row lies within rounding of the mass."""
    alone = {
        name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    bitmask = None if bitmask is None else bitmask[row : row + 1]
    tokens = set()
    for step in (-BOUNDARY, BOUNDARY):
        p = (torch.as_tensor(alone["top_p"]).double() * (1 + step)).clamp(max=1.0)
        call = alone | {"top_p": p, "return_stats": False}
        tokens.add(int(masked_sample_reference(logits[row : row + 1], bitmask, **call).token))
    return len(tokens) > 1


def assert_agree(sample, logits, bitmask, arguments):
    """Token for token with the torch path; returns how many top-p near ties differ."""
    expected = masked_sample(logits, bitmask, impl="torch", **arguments)
    different = (sample.token != expected.token).nonzero()[:, 0]
    for row in different.tolist():
        assert near_tie(logits, bitmask, arguments, row), row
    same = sample.token == expected.token
    sample = sample._replace(logprob=torch.where(same, sample.logprob, expected.logprob))
    assert_same_numbers(sample, expected)
    return len(different)


def random_call(rng, rows, size, dtype):
    logits = rng.standard_normal((rows, size), np.float32)
    logits *= rng.choice([0.1, 1, 4, 10, 60], (rows, 1)).astype(np.float32)
    logits = np.where(rng.random((rows, 1)) < 0.3, logits.round(), logits)
    odd = np.flatnonzero(rng.random(rows) < 0.2)
    logits[odd, rng.integers(0, size, len(odd))] = rng.choice([NAN, INF, -INF], len(odd))
    logits[rng.random(rows) < 0.02] = -INF
    wide = torch.full((rows, size + int(rng.integers(0, 3)) * 8), 99.0, dtype=dtype)
    wide[:, :size] = torch.from_numpy(logits)
    density = rng.choice([0, 0.001, 0.02, 0.3, 0.9, 1], (rows, 1))
    bitmask = masks.pack(torch.from_numpy(rng.random((rows, size)) < density))
    if size % 32:
        bitmask[:, -1] |= -1 << 31
    choices = {
        "temperature": (0.0, 0.3, 1.0, 1.0, 2.5),
        "top_k": (0, 0, 1, 5, 50, 1000),
        "top_p": (1.0, 1.0, 0.5, 0.9, 0.95, 0.999, 0.9999999),
        "min_p": (0.0, 0.0, 0.0, 0.05, 1.0),
        "seed": (0, 1, -3, 2**62),
        "position": (0, 1, 2, 4095),
        "stream": (0, 0, 1),
    }
    arguments = {name: torch.from_numpy(rng.choice(of, rows)) for name, of in choices.items()}
    arguments["constrained"] = torch.from_numpy(rng.random(rows) < 0.7)
    arguments["return_stats"] = bool(rng.integers(2))
    if rng.integers(2):
        arguments["vocab_size"] = int(rng.integers(1, size + 1))
    return wide[:, :size], bitmask, arguments


@interpreted
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_triton_agrees_with_torch_token_for_token(draw, dtype):
    rng = np.random.default_rng(5)
    near_ties = 0
    for size in (33, 1, 64, 500, 1024, 1025, 33, 2500):
        logits, bitmask, arguments = random_call(rng, ROWS // 24, size, dtype)
        sample = draw(logits, bitmask, **arguments)
        near_ties += assert_agree(sample, logits, bitmask, arguments)
    # A boundary within 4e-6 of the mass on either side: one row in 10^5.
    assert near_ties <= max(1, ROWS // 6000)


@interpreted
@pytest.mark.parametrize("arguments", SEVERAL_TILES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_tiles_agree(draw, kind, arguments):
    # Every kind of row with every cut, and each of either with a mask and without one.
    masked = (SEVERAL_TILES.index(arguments) + KINDS.index(kind)) % 2 == 0
    size, rng = 4 * CAPACITY + 100, np.random.default_rng(3)
    logits = {
        "flat": rng.standard_normal((1, size)) * 0.2,
        "peaked": rng.permuted(-2.5 * np.log(np.arange(1, size + 1)))[None],
        "tied": rng.integers(0, 2, (1, size)).astype(float),
    }[kind]
    logits = torch.from_numpy(logits).to(torch.bfloat16 if kind == "flat" else torch.float32)
    bitmask = masks.pack(torch.from_numpy(rng.random((1, size)) < 0.8))
    arguments = {"position": 0, "seed": 0, **arguments, "constrained": torch.tensor([masked])}
    assert assert_agree(draw(logits, bitmask, **arguments), logits, bitmask, arguments) == 0


@interpreted
def test_the_noise_of_the_kernel_itself_gives_the_same_draws(fast):
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(2))
    for cut in ({}, {"top_p": 0.9}):
        arguments = {"seed": torch.arange(8) - 4, "position": 7, "stream": 1, **cut}
        sample = masked_sample(logits, impl="triton", **arguments)
        assert torch.equal(sample.token, masked_sample(logits, impl="torch", **arguments).token)


@interpreted
@pytest.mark.parametrize("cut", ({}, {"top_p": 0.9}, {"top_k": 2}, {"temperature": 0.0}), ids=str)
def test_a_bad_row_is_flagged_and_its_neighbours_are_not_disturbed(draw, cut):
    rows = (
        ([NAN, 0.0, 1.0], [0, 1, 2], Status.NAN, 0),
        ([NAN, NAN, NAN], [1, 2], Status.NAN, 1),
        ([0.0, INF, 1.0], [0, 1, 2], Status.POSINF, 0),
        ([0.0, INF, NAN], [1, 2], Status.NAN, 1),
        ([-INF, -INF, -INF], [1, 2], Status.EMPTY, 1),
        ([NAN, INF, 2.0], [], Status.EMPTY, 0),
        ([NAN, INF, -INF], [2], Status.EMPTY, 2),
        ([NAN, 0.0, INF], [1], Status.OK, 1),
    )
    width = 1500
    # A healthy row before every two bad ones.
    size = 3 * len(rows) // 2
    bad = torch.arange(size) % 3 != 0
    logits = torch.full((size, width), -9.0)
    bitmask = torch.zeros(size, masks.words_for(width), dtype=torch.int32)
    healthy = torch.randn(width, generator=torch.Generator().manual_seed(12))
    logits[~bad], bitmask[~bad] = healthy, -1
    for row, (values, allowed, _, _) in zip(bad.nonzero()[:, 0].tolist(), rows, strict=True):
        logits[row, :3] = torch.tensor(values)
        bitmask[row] = mask(allowed, width=width)
    sample = draw(logits, bitmask, **cut)
    alone = draw(healthy[None], bitmask[:1], **cut)
    assert (sample.token[~bad] == alone.token).all()
    assert (sample.logprob[~bad] == alone.logprob).all()
    assert sample.status[bad].tolist() == [status for _, _, status, _ in rows]
    assert sample.token[bad].tolist() == [token for _, _, _, token in rows]
    assert torch.equal(sample.logprob.isnan(), sample.status != Status.OK)


@interpreted
@pytest.mark.parametrize(
    ("name", "values"),
    (
        ("temperature", (-1.0, NAN, INF)),
        ("top_k", (-1, -(2**40))),
        ("top_p", (0.0, 1.5, NAN)),
        ("min_p", (-0.1, 1.1, NAN)),
        ("position", (2**31, -(2**31) - 1)),
        ("stream", (2**31,)),
    ),
)
def test_a_bad_parameter_on_the_device_is_a_status(draw, name, values):
    from kernels.masked_sample import triton_impl

    # On the CPU such a value raises before any launch: put it where only the kernel can see it.
    good = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "position": 0, "stream": 0}
    column = torch.tensor([good[name], *values])
    rows = len(column)
    logits = torch.zeros(rows, 40)
    logits[1] = NAN
    bitmask = mask(*[[5, 6]] * rows, width=40)
    call = prepare(
        logits, bitmask, constrained=None, vocab_size=None, return_stats=False, seed=0, **good
    )
    call = dataclasses.replace(call, **{name: column})
    sample = triton_impl.sample_rows(call, poisoned(rows), None)
    assert sample.status.tolist() == [Status.OK] + [Status.BAD_PARAM] * len(values)
    assert sample.token[1:].tolist() == [5] * len(values)
    assert sample.logprob[1:].isnan().all()


@interpreted
def test_batch_invariance_is_bitwise(draw):
    generator = torch.Generator().manual_seed(10)
    rows, width = 5, 1500
    logits = torch.randn(rows, width, generator=generator) * 3
    density = torch.tensor([0.001, 0.01, 0.2, 0.9, 1.0])[:, None]
    bitmask = masks.pack(torch.rand(rows, width, generator=generator) < density)
    columns = {
        "temperature": torch.rand(rows, generator=generator) * 2,
        "top_p": 1.05 - torch.rand(rows, generator=generator).clamp_min(0.05),
        "top_k": torch.randint(0, 60, (rows,), generator=generator),
        "seed": torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        "position": torch.randint(0, 4096, (rows,), generator=generator),
    }
    whole = draw(logits, bitmask, **columns)

    def same(chosen, sample):
        for name in ("token", "logprob", "status"):
            got, expected = getattr(sample, name), getattr(whole, name)[chosen]
            assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7)), name

    shuffled = torch.randperm(rows, generator=generator)
    for chosen in (shuffled, slice(0, 3), slice(3, rows)):
        part = {name: value[chosen] for name, value in columns.items()}
        same(chosen, draw(logits[chosen], bitmask[chosen], **part))
    padded = torch.full((rows, width + 333), 77.0)
    padded[:, :width] = logits
    same(slice(None), draw(padded, bitmask, vocab_size=width, **columns))


@interpreted
def test_ties_stay_and_equal_scores_go_to_the_lowest_id(draw):
    logits = torch.zeros(3, 2100)
    logits[0, [2041, 17, 96]] = 2.0**30
    logits[1, [2041, 1717, 96]] = 1.5
    logits[2] = logits[1]
    sample = draw(logits, mask(*[range(2100)] * 2, [2041, 1717], width=2100),
                  temperature=torch.tensor([1.0, 0.0, 0.0]))  # fmt: skip
    assert sample.token.tolist() == [17, 96, 1717]
    five = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).expand(24, -1)
    tokens = draw(five, position=torch.arange(24), top_p=0.7).token
    assert set(tokens.tolist()) == {0, 1, 2, 3}


@interpreted
def test_p_exactly_at_a_boundary_drops_what_lies_beyond(draw):
    logits = torch.log2(torch.tensor([[4.0, 2.0, 1.0, 1.0]])) * math.log(2)
    # As many draws as show every token that is kept.
    for p, kept, draws in (
        (0.5, {0}, 4),
        (0.50001, {0, 1}, 8),
        (0.75, {0, 1}, 8),
        (0.7501, {0, 1, 2, 3}, 16),
    ):
        tokens = draw(logits.expand(draws, -1), position=torch.arange(draws), top_p=p).token
        assert set(tokens.tolist()) == kept


@interpreted
def test_spare_bits_strides_and_columns_beyond_the_vocabulary(draw):
    wide = torch.full((8, 5), -1, dtype=torch.int32)
    bitmask = wide[::2, :3]
    bitmask[1], bitmask[1, 0] = 0, 1
    logits = torch.full((4, 90), 99.0)[:, :80]
    logits[:, :70] = 0.0
    logits[:, 69] = 60.0
    sample = draw(logits, bitmask, vocab_size=70)
    assert sample.token.tolist() == [69, 0, 69, 69]
    flags = torch.tensor([[False, True], [True, True]]).repeat(2, 1)[:, 0]
    one_word = torch.tensor([[1, 9]] * 4, dtype=torch.int32)[:, ::2][:, :1]
    zeros = torch.zeros(4, 20)
    zeros[:, 19] = 60.0
    assert draw(zeros, one_word, constrained=flags).token.tolist() == [19, 0, 19, 0]
    assert draw(torch.zeros(1, 1)).token.tolist() == [0]
    assert draw(torch.zeros(0, 9)).token.shape == (0,)


@interpreted
def test_one_allowed_token_has_log_probability_zero(draw):
    logits = torch.full((2, 3000), -80.1)
    sample = draw(logits, mask([2700], [2999], width=3000), top_p=0.1, top_k=3)
    assert sample.token.tolist() == [2700, 2999]
    assert sample.logprob.tolist() == [0.0, 0.0]


@interpreted
def test_a_wrong_workspace_or_output_is_refused(draw):
    logits = torch.zeros(2, 50)
    with pytest.raises(ValueError, match=r"workspace must be contiguous with at least 216"):
        draw(logits, workspace=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="workspace must be an int64 tensor"):
        draw(logits, workspace=torch.zeros(300))
    out = poisoned(4)
    every_other = Sample(*(column[::2] for column in out[:3]))
    with pytest.raises(ValueError, match=r"out.token must be contiguous"):
        draw(logits, out=every_other)


@compiled
def test_an_explicit_triton_never_falls_back():
    with pytest.raises(ValueError, match=r"impl='triton' wants logits on a CUDA or ROCm device"):
        masked_sample(torch.zeros(1, 4), seed=0, position=0, impl="triton")


# On a GPU


@gpu
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_a_gpu_agrees_with_the_cpu(dtype):
    rng, near_ties = np.random.default_rng(5), 0
    for size in (33, 1000, 1025, 32_003, 151_936):
        logits, bitmask, arguments = random_call(rng, 400, size, dtype)
        device = {
            name: value.cuda() if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        sample = masked_sample(logits.cuda(), bitmask.cuda(), **device)
        stats_ = None if sample.stats is None else type(sample.stats)(*(s.cpu() for s in sample[3]))
        sample = Sample(*(column.cpu() for column in sample[:3]), stats_)
        near_ties += assert_agree(sample, logits, bitmask, arguments)
    assert near_ties <= 5


@gpu
@pytest.mark.parametrize(
    "cut", ({}, {"top_p": 0.8}, {"top_k": 4, "top_p": 0.8}, {"min_p": 0.1}), ids=str
)
def test_draws_of_a_gpu_follow_the_distribution(cut):
    draws = 200_000
    logits = torch.randn(13, generator=torch.Generator().manual_seed(1)).mul(1.5).cuda()
    sample = masked_sample(
        logits.expand(draws, -1), seed=20, position=torch.arange(draws, device="cuda"), **cut
    )
    assert (sample.status == Status.OK).all()
    observed = torch.bincount(sample.token, minlength=13).cpu().numpy()
    z = logits.double().cpu().numpy()
    order = np.argsort(-z)
    weight = np.exp(z[order] - z.max())
    weight[weight < cut.get("min_p", 0.0)] = 0.0
    weight[cut.get("top_k", 13) :] = 0.0
    weight[np.cumsum(weight) - weight >= cut.get("top_p", 2.0) * weight.sum()] = 0.0
    expected = draws * weight / weight.sum()
    assert not observed[order][expected == 0].any()
    kept = expected > 0
    assert stats.chisquare(observed[order][kept], expected[kept]).pvalue > 1e-4 / 4


@gpu
def test_a_call_is_captured_in_a_cuda_graph():
    rows, size = 5, 5000
    logits = torch.randn(rows, size, device="cuda")
    bitmask = torch.full((rows, masks.words_for(size)), -1, dtype=torch.int32, device="cuda")
    position = torch.zeros(rows, dtype=torch.int32, device="cuda")
    out = Sample(*(column.cuda() for column in poisoned(rows)[:3]))
    workspace = torch.empty(workspace_words(rows, size), dtype=torch.int64, device="cuda")

    def step():
        masked_sample(logits, bitmask, top_p=0.9, seed=1, position=position, out=out,
                      workspace=workspace)  # fmt: skip

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for at in range(3):
        position.fill_(at)
        logits.normal_()
        graph.replay()
        expected = masked_sample(logits.cpu(), top_p=0.9, seed=1, position=at)
        assert torch.equal(out.token.cpu(), expected.token)
