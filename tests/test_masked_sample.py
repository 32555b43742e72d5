"""The contract of masked_sample, clause by clause, for each implementation that runs on a CPU."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from kernels import bitmask as masks
from kernels import gumbel
from kernels.masked_sample import Sample, Status, masked_sample, masked_sample_reference

INF, NAN = math.inf, math.nan
TOLERANCES = {"logprob": 1e-5, "log_removed": 1e-5, "entropy": 1e-4}
"""Absolute, nats, against float64."""


@pytest.fixture(params=["reference", "torch"])
def draw(request):
    """masked_sample with the implementation under test; seed 0 and position 0 unless given."""

    def call(logits, bitmask=None, **arguments):
        if not isinstance(logits, torch.Tensor):
            logits = torch.tensor(logits)
        arguments = {"seed": 0, "position": 0, "impl": request.param} | arguments
        return masked_sample(logits, bitmask, **arguments)

    return call


def mask(*rows, width=None):
    """Packed mask from one list of allowed ids a row."""
    width = width or max(max(row, default=0) for row in rows) + 1
    allowed = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, ids in enumerate(rows):
        allowed[row, list(ids)] = True
    return masks.pack(allowed)


def support(draw, logits, bitmask=None, draws=3000, **arguments):
    """Every token seen in many draws from one row."""
    logits = torch.tensor(logits) if not isinstance(logits, torch.Tensor) else logits
    rows = logits.expand(draws, -1)
    if bitmask is not None:
        bitmask = bitmask.expand(draws, -1)
    sample = draw(rows, bitmask, seed=7, position=torch.arange(draws), **arguments)
    assert (sample.status == Status.OK).all()
    return set(sample.token.tolist())


# Shape of the result


def test_result_types(draw):
    sample = draw(torch.zeros(3, 33))
    assert isinstance(sample, Sample)
    assert (sample.token.dtype, sample.logprob.dtype) == (torch.int64, torch.float32)
    assert sample.status.dtype == torch.int8
    assert sample.token.shape == sample.logprob.shape == sample.status.shape == (3,)
    assert sample.stats is None


def test_an_empty_batch_is_an_empty_sample(draw):
    sample = draw(torch.zeros(0, 33), torch.zeros(0, 2, dtype=torch.int32), return_stats=True)
    assert sample.token.shape == sample.stats.entropy.shape == (0,)


def test_out_is_written_and_returned(draw):
    out = Sample(torch.full((2,), -1), torch.full((2,), NAN), torch.full((2,), 9).to(torch.int8))
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    sample = draw(logits, out=out)
    expected = draw(logits)
    assert sample.token.data_ptr() == out.token.data_ptr()
    for name in ("token", "logprob", "status"):
        assert torch.equal(getattr(out, name), getattr(expected, name))


def test_inputs_are_left_alone(draw):
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bitmask = mask([1, 2], [3], [], [69], width=70)
    before = logits.detach().clone(), bitmask.clone()
    sample = draw(logits, bitmask, top_p=0.9, temperature=0.5, return_stats=True)
    assert torch.equal(logits, before[0])
    assert torch.equal(bitmask, before[1])
    assert not sample.logprob.requires_grad


# The draw


@pytest.mark.parametrize("vocab_size", (33, 1000, 32003))
def test_draw_is_argmax_of_z_plus_noise(draw, vocab_size):
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
    seed, position, stream, temperature = [1, -2, 3, 2**62], [0, 5, 6, 2**31 - 1], [0, 0, 1, 2], 0.7
    sample = draw(
        logits,
        seed=torch.tensor(seed),
        position=torch.tensor(position, dtype=torch.int32),
        stream=torch.tensor(stream),
        temperature=temperature,
    )
    z = logits.numpy() * (np.float32(1) / np.float32(temperature))
    for row, key in enumerate(zip(seed, position, stream, strict=True)):
        noise = gumbel.gumbel_from_bits(gumbel.random_bits(*key, np.arange(vocab_size)))
        assert sample.token[row].item() == int((z[row] + noise).argmax())


def test_equal_scores_go_to_the_lowest_id(draw):
    # Noise cannot reach float32 logits this great: 2^30 + g is 2^30.
    logits = torch.zeros(1, 100)
    logits[0, [41, 17, 96]] = 2.0**30
    assert draw(logits).token.tolist() == [17]


@pytest.mark.parametrize("temperature", (0, 0.0, 9e-6))
def test_temperature_under_1e_5_is_argmax_with_the_lowest_id_on_ties(draw, temperature):
    logits = torch.zeros(2, 100)
    logits[0, [41, 17, 96]] = 1.5
    logits[1, [3, 17]] = 0.5
    bitmask = mask(range(100), [17, 40, 41])
    sample = draw(logits, bitmask, temperature=temperature, top_p=0.5, top_k=2, min_p=0.5)
    assert sample.token.tolist() == [17, 17]


def test_top_k_one_is_the_greedy_class_and_keeps_its_ties(draw):
    logits = [[0.0, 2.0, 1.0, 2.0, -1.0]]
    assert support(draw, logits, top_k=1, draws=200) == {1, 3}
    assert draw(logits, temperature=0.0).token.item() == 1
    assert draw([[0.0, 2.0, 3.0]], top_k=1).token.item() == 2


def test_one_allowed_token_is_drawn_whatever_its_logit(draw):
    logits = torch.zeros(1, 1000)
    logits[0, 700] = -80.0
    sample = draw(logits, mask([700], width=1000), top_p=0.1, top_k=3)
    assert sample.token.item() == 700
    assert sample.logprob.item() == 0.0


def test_a_token_far_below_the_rest_wins_when_its_noise_says_so(draw):
    # Odds of e^-12 for each of a million positions: compute the noise, and draw where it wins.
    position = np.arange(1 << 20)
    seed, stream = np.full_like(position, 21), np.zeros_like(position)
    noise = gumbel.gumbel_noise(seed, position, stream, 2)
    wins = torch.from_numpy(position[noise[:, 1] > noise[:, 0] + 12.001])
    assert len(wins) >= 2
    logits = torch.tensor([[0.0, -12.0]]).expand(len(wins), -1)
    sample = draw(logits, seed=21, position=wins)
    assert sample.token.tolist() == [1] * len(wins)
    assert sample.logprob.tolist() == pytest.approx([-12.0] * len(wins), abs=1e-4)


def test_temperature_is_a_float32_reciprocal(draw):
    # 1 / 3 and division differ in the last bit: z must be logit * float32(1 / 3).
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(3)) * 100
    expected = (logits * torch.tensor(1 / 3)).double()
    sample = draw(logits, temperature=3.0, position=torch.arange(50))
    chosen = expected.gather(1, sample.token[:, None])[:, 0] - expected.logsumexp(1)
    assert (sample.logprob - chosen).abs().max() < TOLERANCES["logprob"]


# The mask


def test_forbidden_logits_are_never_read(draw):
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(4))
    allowed = torch.rand(3, 3000, generator=torch.Generator().manual_seed(5)) < torch.tensor(
        [[0.002], [0.5], [0.98]]
    )
    poisoned = logits.clone()
    poisoned[~allowed] = torch.tensor([NAN, INF, -INF, 1e30]).repeat(9000)[: int((~allowed).sum())]
    for cut in ({}, {"top_p": 0.8}, {"top_k": 4}, {"temperature": 0.0}):
        clean = draw(logits, masks.pack(allowed), **cut)
        dirty = draw(poisoned, masks.pack(allowed), **cut)
        assert (dirty.status == Status.OK).all()
        assert torch.equal(clean.token, dirty.token)
        assert torch.equal(clean.logprob, dirty.logprob)


def test_ids_31_and_63_are_sign_bits(draw):
    bitmask = torch.tensor([[-(2**31), -(2**31), 0]], dtype=torch.int32)
    assert support(draw, [[0.0] * 65], bitmask, draws=100) == {31, 63}


def test_spare_bits_are_never_allowed(draw):
    bitmask = torch.full((1, 3), -1, dtype=torch.int32)
    logits = torch.full((1, 80), 5.0)
    logits[0, :70] = 0.0
    assert max(support(draw, logits, bitmask, vocab_size=70)) <= 69
    assert draw(logits, bitmask, vocab_size=70, return_stats=True).stats.allowed.item() == 70


def test_columns_from_vocab_size_on_are_never_allowed(draw):
    logits = torch.zeros(1, 2621)
    logits[0, 2010:] = 50.0
    assert max(support(draw, logits, vocab_size=2010, draws=500)) < 2010
    sample = draw(logits, mask(range(2010)), vocab_size=2010)
    assert sample.token.item() < 2010


def test_a_mask_wider_than_needed_is_accepted(draw):
    bitmask = torch.full((2, 100), -1, dtype=torch.int32)
    bitmask[:, 0] = 8
    bitmask[:, 1] &= ~1
    assert draw(torch.zeros(2, 33), bitmask).token.tolist() == [3, 3]


def test_constrained_says_which_rows_use_their_mask(draw):
    logits = torch.zeros(3, 40)
    logits[:, 39] = 60.0
    bitmask = torch.zeros(3, 2, dtype=torch.int32)
    bitmask[1, 0] = 4
    sample = draw(logits, bitmask, constrained=torch.tensor([False, True, False]))
    assert sample.token.tolist() == [39, 2, 39]
    assert sample.status.tolist() == [Status.OK] * 3


def test_strided_rows_of_mask_and_logits_read_their_own_row(draw):
    wide = torch.full((8, 5), -1, dtype=torch.int32)
    bitmask = wide[::2, :2]
    bitmask[1] = 0
    bitmask[1, 0] = 1
    logits = torch.full((4, 90), 99.0)[:, :41]
    logits[:] = 0.0
    logits[:, 40] = 60.0
    assert draw(logits, bitmask).token.tolist() == [40, 0, 40, 40]


def test_rows_with_masks_of_unlike_size_keep_their_own_token(draw):
    # One allowed token is likely in each row; the live words grow in every order of four rows.
    logits = torch.zeros(4, 4096)
    logits[range(4), [7, 8, 9, 10]] = 60.0
    for order in itertools.permutations(range(4)):
        ids = [[7 + row, *range(100, 100 + 64 * size, 32)] for row, size in enumerate(order)]
        assert draw(logits, mask(*ids, width=4096)).token.tolist() == [7, 8, 9, 10]


def test_logits_before_the_mask_do_not_matter_to_the_cuts(draw):
    # Nucleus first would leave {0}, which the mask forbids.
    logits = torch.tensor([[10.0, 1.0, 0.5, 0.0]])
    assert support(draw, logits, mask([2, 3], width=4), top_p=0.9) == {2, 3}


# The cuts


@pytest.mark.parametrize("rows", (1, 8))
def test_ties_at_the_cut_stay_in_every_batch_size(draw, rows):
    # 0.4466 + 0.1643 + 0.1643 = 0.7752: the prefix would end inside the class of 1.0.
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).expand(rows, -1)
    seen = set()
    for start in range(0, 160, rows):
        position = torch.arange(start, start + rows)
        seen |= set(draw(logits, position=position, top_p=0.7).token.tolist())
    assert seen == {0, 1, 2, 3}


def test_the_token_that_crosses_p_stays(draw):
    # 0.6439 + 0.2369 = 0.8808 is below 0.9: the third token crosses, the fourth is out.
    assert support(draw, [[0.0, 1.0, 2.0, 3.0]], top_p=0.9) == {1, 2, 3}


def test_p_exactly_at_a_boundary_drops_what_lies_beyond(draw):
    # Powers of two: the mass above the second token is exactly half of the whole.
    logits = torch.log2(torch.tensor([[4.0, 2.0, 1.0, 1.0]])) * math.log(2)
    assert support(draw, logits, top_p=0.5) == {0}
    assert support(draw, logits, top_p=0.50001) == {0, 1}
    assert support(draw, logits, top_p=0.75) == {0, 1}
    assert support(draw, logits, top_p=0.7501) == {0, 1, 2, 3}


def test_top_p_is_a_share_of_all_that_the_cuts_before_it_keep(draw):
    # top_k keeps 23.1, half of which is more than 10: the second token stays.
    weight = torch.tensor([[10.0, 7.0, 0.9, 0.89, 0.88, 0.87, 0.86, 0.85, 0.84, 0.01]])
    assert support(draw, weight.log(), top_k=9, top_p=0.5, draws=200) == {0, 1}
    assert support(draw, weight.log(), min_p=0.01, top_p=0.5, draws=200) == {0, 1}
    assert support(draw, weight.log(), top_k=2, top_p=0.5, draws=200) == {0}


def test_a_dominant_token_alone_reaches_p(draw):
    logits = torch.zeros(1, 50_000)
    logits[0, 7] = 10.0  # exp(10) / (exp(10) + 49,999) = 0.3058
    assert support(draw, logits, top_p=0.3, draws=12) == {7}
    assert len(support(draw, logits, top_p=0.31, draws=12)) > 1


def test_a_one_hot_row_gives_its_token(draw):
    logits = torch.full((1, 32_000), -INF)
    logits[0, 1] = 0.0
    assert support(draw, logits, top_k=2**30, draws=20) == {1}
    assert support(draw, logits, top_p=0.9, draws=20) == {1}


def test_p_near_one_falls_back_to_the_whole_support(draw):
    logits = torch.randn(2, 32_000, generator=torch.Generator().manual_seed(0))
    free = draw(logits, position=torch.arange(2))
    cut = draw(logits, position=torch.arange(2), top_p=0.9999999)
    assert torch.equal(free.token, cut.token)


def test_the_smallest_p_keeps_the_greatest_class(draw):
    assert support(draw, [[1.0, 3.0, 3.0, 2.9]], top_p=1e-45, draws=200) == {1, 2}
    assert support(draw, [[1.0, 3.0, 3.0, 2.9]], top_p=1e-300, draws=200) == {1, 2}


def test_k_beyond_the_vocabulary_is_no_cut(draw):
    logits = torch.randn(20, 100, generator=torch.Generator().manual_seed(8))
    position = torch.arange(20)
    free = draw(logits, position=position).token
    for k in (100, 101, 2**40):
        assert torch.equal(draw(logits, position=position, top_k=k).token, free)


def test_min_p_one_keeps_the_greatest_class(draw):
    assert support(draw, [[0.0, 1.0, 1.0, 0.99]], min_p=1.0, draws=200) == {1, 2}


def test_parameters_may_differ_from_row_to_row(draw):
    logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(9)) * 3
    rows = {
        "temperature": [0.0, 0.5, 1.0, 1.0, 2.0],
        "top_k": [0, 3, 0, 20, 400],
        "top_p": [1.0, 0.9, 0.5, 0.99, 1.0],
        "min_p": [0.0, 0.0, 0.1, 0.0, 0.3],
        "seed": [1, 2, 3, 4, -5],
        "position": [0, 9, 8, 7, 6],
        "stream": [0, 1, 0, 2, 0],
    }
    together = draw(logits, **{name: torch.tensor(value) for name, value in rows.items()})
    for row in range(5):
        alone = draw(logits[row : row + 1], **{name: value[row] for name, value in rows.items()})
        assert alone.token.item() == together.token[row].item()
        assert alone.logprob.item() == together.logprob[row].item()


# Batch invariance


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_batch_invariance_is_bitwise(draw, dtype):
    generator = torch.Generator().manual_seed(10)
    rows, width = 17, 1500
    logits = (torch.randn(rows, width, generator=generator) * 3).to(dtype)
    density = torch.tensor([0.001, 0.01, 0.2, 0.9, 1.0]).repeat(4)[:rows, None]
    bitmask = masks.pack(torch.rand(rows, width, generator=generator) < density)
    columns = {
        "temperature": torch.rand(rows, generator=generator) * 2,
        "top_p": 1.05 - torch.rand(rows, generator=generator).clamp_min(0.05),
        "top_k": torch.randint(0, 60, (rows,), generator=generator),
        "seed": torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        "position": torch.randint(0, 4096, (rows,), generator=generator),
    }
    whole = draw(logits, bitmask, **columns)

    def same(rows, sample, take=slice(None)):
        for name in ("token", "logprob", "status"):
            got, expected = getattr(sample, name)[take], getattr(whole, name)[rows]
            assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))

    def part(rows, logits=logits, bitmask=bitmask):
        return draw(logits[rows], bitmask[rows], **{k: v[rows] for k, v in columns.items()})

    shuffled = torch.randperm(rows, generator=generator)
    same(shuffled, part(shuffled))
    for start in range(0, rows, 5):
        same(torch.arange(start, min(start + 5, rows)), part(slice(start, start + 5)))
    for row in range(rows):
        same([row], part([row]))
    padded = torch.full((rows, width + 333), 77.0, dtype=dtype)
    padded[:, :width] = logits
    same(slice(None), draw(padded, bitmask, vocab_size=width, **columns))
    twice = torch.arange(rows).repeat_interleave(2)
    same(slice(None), part(twice), slice(0, None, 2))


# Coupling


def test_coupling_holds_without_a_cut(draw):
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(300, 500, generator=generator) * 2
    allowed = torch.rand(300, 500, generator=generator) < 0.5
    position = torch.arange(300)
    for temperature in (1.0, 0.4, 0.0):
        free = draw(logits, position=position, temperature=temperature).token
        bound = draw(logits, masks.pack(allowed), position=position, temperature=temperature).token
        legal = allowed.gather(1, free[:, None])[:, 0]
        assert 0 < legal.sum() < 300
        assert torch.equal(free[legal], bound[legal])
        assert (free[~legal] != bound[~legal]).all()


def test_stream_seed_and_position_each_change_the_draw(draw):
    logits = torch.zeros(64, 4096)
    first = draw(logits, position=torch.arange(64)).token
    for change in ({"stream": 1}, {"seed": 1}, {"position": torch.arange(64) + 64}):
        other = draw(logits, **({"position": torch.arange(64)} | change)).token
        assert (first == other).sum() < 3


def test_one_scalar_seed_gives_every_row_the_same_noise(draw):
    tokens = draw(torch.zeros(6, 1000), seed=5, position=3).token
    assert len(set(tokens.tolist())) == 1


# Bad rows


BAD_ROWS = (
    ([NAN, 0.0, 1.0], [0, 1, 2], Status.NAN, 0),
    ([NAN, NAN, NAN], [1, 2], Status.NAN, 1),
    ([0.0, INF, 1.0], [0, 1, 2], Status.POSINF, 0),
    ([0.0, INF, NAN], [1, 2], Status.NAN, 1),
    ([-INF, -INF, -INF], [1, 2], Status.EMPTY, 1),
    ([0.0, 1.0, 2.0], [], Status.EMPTY, 0),
    ([NAN, INF, 2.0], [], Status.EMPTY, 0),
    ([NAN, INF, -INF], [2], Status.EMPTY, 2),
    ([NAN, 0.0, INF], [1], Status.OK, 1),
)


@pytest.mark.parametrize("cut", ({}, {"top_p": 0.9}, {"top_k": 2}, {"temperature": 0.0}), ids=str)
@pytest.mark.parametrize("width", (3, 1000))
def test_a_bad_row_is_flagged_and_its_neighbours_are_not_disturbed(draw, cut, width):
    logits = torch.full((2 * len(BAD_ROWS), width), -9.0)
    bitmask = torch.zeros(2 * len(BAD_ROWS), masks.words_for(width), dtype=torch.int32)
    healthy = torch.randn(width, generator=torch.Generator().manual_seed(12))
    logits[0::2] = healthy
    bitmask[0::2] = -1
    for row, (values, allowed, _, _) in enumerate(BAD_ROWS):
        logits[2 * row + 1, :3] = torch.tensor(values)
        bitmask[2 * row + 1] = mask(allowed, width=width)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = draw(logits, bitmask, **cut)
    alone = draw(healthy[None], bitmask[:1], **cut)
    assert (sample.token[0::2] == alone.token).all()
    assert (sample.logprob[0::2] == alone.logprob).all()
    assert sample.status[0::2].tolist() == [Status.OK] * len(BAD_ROWS)
    assert sample.status[1::2].tolist() == [status for _, _, status, _ in BAD_ROWS]
    assert sample.token[1::2].tolist() == [token for _, _, _, token in BAD_ROWS]
    bad = sample.status != Status.OK
    assert sample.logprob[bad].isnan().all()
    assert sample.logprob[~bad].isfinite().all()


def test_a_batch_of_nothing_but_bad_rows(draw):
    sample = draw(torch.full((3, 40), NAN), torch.zeros(3, 2, dtype=torch.int32))
    assert sample.status.tolist() == [Status.EMPTY] * 3
    assert sample.token.tolist() == [0, 0, 0]


def test_a_logit_that_overflows_when_scaled_counts_as_infinite(draw):
    assert draw([[3e38, 0.0]], temperature=0.1).status.item() == Status.POSINF
    assert draw([[-3e38, 0.0]], temperature=0.1).token.item() == 1


def test_minus_infinity_is_never_drawn_while_something_else_is_allowed(draw):
    logits = torch.full((1, 64), -INF)
    logits[0, 9] = -50.0
    for cut in ({}, {"top_k": 40}, {"top_p": 0.99}, {"min_p": 1e-6}):
        assert support(draw, logits, draws=50, **cut) == {9}


def test_a_ban_is_not_a_finite_penalty(draw):
    # -100 in float16 over a temperature of 0.0003 is -inf, and 4 is 13,333: no NaN may come of it.
    logits = torch.tensor([[-100.0, 4.0, 3.5]], dtype=torch.float16)
    sample = draw(logits, mask([1, 2], width=3), temperature=0.0003)
    assert (sample.token.item(), sample.status.item()) == (1, Status.OK)
    assert sample.logprob.item() == 0.0


# Numbers that come with the token


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("vocab_size", (33, 5000))
def test_logprob_and_stats_match_float64(draw, dtype, vocab_size):
    generator = torch.Generator().manual_seed(13)
    logits = (torch.randn(9, vocab_size, generator=generator) * 5).to(dtype)
    density = torch.tensor([0.05, 0.5, 0.97]).repeat(3)[:, None]
    allowed = torch.rand(9, vocab_size, generator=generator) < density
    allowed[:, 3] = True
    temperature = torch.tensor([1.0, 0.3, 0.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0])
    constrained = torch.arange(9) != 7
    sample = draw(
        logits,
        masks.pack(allowed),
        constrained=constrained,
        temperature=temperature,
        top_p=0.8,
        position=torch.arange(9),
        return_stats=True,
    )
    allowed[7] = True
    inverse = torch.where(temperature > 0, 1 / temperature, torch.tensor(1.0))
    z = (logits.float() * inverse[:, None]).double()
    free, bound = z.softmax(1), z.masked_fill(~allowed, -INF).softmax(1)
    expected = {
        "logprob": bound.gather(1, sample.token[:, None])[:, 0].log(),
        "log_removed": (free * ~allowed).sum(1).log(),
        "entropy": torch.special.entr(bound).sum(1),
    }
    got = {"logprob": sample.logprob, **sample.stats._asdict()}
    assert got["allowed"].tolist() == allowed.sum(1).tolist()
    for name, value in expected.items():
        difference = torch.where(value == got[name], 0.0, value - got[name]).abs().max()
        assert difference < TOLERANCES[name], name


def test_log_removed_is_exact_at_both_ends(draw):
    logits = torch.tensor([[0.0, -40.0], [-40.0, 0.0], [0.0, 0.0]])
    stats = draw(logits, mask([0], [0], [0, 1]), return_stats=True).stats
    expected = [-40.0, -math.exp(-40.0), -INF]
    assert stats.log_removed.tolist() == pytest.approx(expected, rel=1e-6)
    assert stats.allowed.tolist() == [1, 1, 2]


def test_stats_of_bad_rows(draw):
    logits = torch.tensor([[1.0, 2.0], [NAN, 1.0], [-INF, 1.0], [INF, 0.0]])
    stats = draw(logits, mask([], [0], [0], [0, 1]), return_stats=True).stats
    assert stats.allowed.tolist() == [0, 1, 1, 2]
    assert stats.log_removed.nan_to_num(9).tolist() == [0.0, 9.0, 0.0, 9.0]
    assert stats.entropy.isnan().all()


# Large vocabularies


@pytest.mark.parametrize("vocab_size", (151_936, 262_144))
def test_large_vocabularies_agree_with_the_reference(vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    ranks = torch.arange(1, vocab_size + 1).log()
    peaked = -2.5 * ranks[torch.randperm(vocab_size, generator=generator)]
    flat = torch.randn(vocab_size, generator=generator)
    logits = torch.stack((peaked, flat, peaked, flat, peaked, flat))
    density = torch.tensor([0.0, 0.0, 0.001, 0.001, 0.9, 0.9])[:, None]
    bitmask = masks.pack(torch.rand(6, vocab_size, generator=generator) < density)
    constrained = torch.tensor([False, False, True, True, True, True])
    for cut in ({}, {"top_p": 0.95}, {"top_k": 50, "top_p": 0.9}, {"min_p": 1e-4}):
        arguments = {"constrained": constrained, "seed": 3, "position": torch.arange(6), **cut}
        expected = masked_sample_reference(logits, bitmask, **arguments)
        sample = masked_sample(logits, bitmask, impl="torch", **arguments)
        assert torch.equal(sample.token, expected.token)
        assert (sample.logprob - expected.logprob).abs().max() < TOLERANCES["logprob"]
