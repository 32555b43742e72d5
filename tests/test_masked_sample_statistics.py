"""Draws follow the distribution of the contract: chi-square and two-sided support."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from kernels import bitmask as masks
from kernels.masked_sample import Status, masked_sample

DRAWS = 200_000
MIN_EXPECTED = 5
"""Bins that expect fewer are pooled."""
SURELY_SEEN = 64
"""A token that expects this many draws goes unseen with probability e^-64."""

CASES = {
    "free": {},
    "temperature": {"temperature": 0.6},
    "top_p": {"top_p": 0.9},
    "low top_p": {"top_p": 0.35, "temperature": 1.5},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.2},
    "top_k, then top_p": {"top_k": 4, "top_p": 0.8},
    "min_p, then top_k": {"min_p": 0.2, "top_k": 2},
    "min_p, then top_p": {"min_p": 0.05, "top_p": 0.7},
    "all cuts": {"min_p": 0.01, "top_k": 6, "top_p": 0.9, "temperature": 1.2},
}
SHAPES = ("distinct", "tied", "rare", "wide")
IMPLEMENTATIONS = ("reference", "torch")
P_VALUE = 1e-4 / (len(CASES) * len(SHAPES) * len(IMPLEMENTATIONS))


def row(shape):
    """Logits [V] and allowed bool [V]."""
    generator = torch.Generator().manual_seed(len(shape))
    size = 37 if shape == "wide" else 13
    logits = torch.randn(size, generator=generator) * 1.5
    if shape == "tied":
        logits = logits.round()
    if shape == "rare":
        logits[3:] -= 8.0
    allowed = torch.rand(size, generator=generator) < 0.8
    allowed[:2] = True
    return logits, allowed


def distribution(logits, allowed, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Probability of every token in float64, token by token, from the words of the contract."""
    z = (logits.double() / temperature).tolist()
    kept = [i for i in range(len(z)) if allowed[i]]
    greatest = max(z[i] for i in kept)
    kept = [i for i in kept if min_p == 0 or z[i] >= greatest + math.log(min_p)]
    if top_k:
        kept = [i for i in kept if sum(z[j] > z[i] for j in kept) < top_k]
    if top_p < 1:
        mass = sum(math.exp(z[i]) for i in kept)
        above = {i: sum(math.exp(z[j]) for j in kept if z[j] > z[i]) for i in kept}
        kept = [i for i in kept if above[i] < top_p * mass]
    weight = np.zeros(len(z))
    weight[kept] = np.exp(np.array(z)[kept])
    return weight / weight.sum()


def counts(logits, allowed, impl, seed=20, **arguments):
    """How often each token came up in DRAWS draws."""
    sample = masked_sample(
        logits.expand(DRAWS, -1),
        masks.pack(allowed[None]).expand(DRAWS, -1),
        seed=seed,
        position=torch.arange(DRAWS),
        impl=impl,
        **arguments,
    )
    assert (sample.status == Status.OK).all()
    return torch.bincount(sample.token, minlength=len(logits)).numpy()


def p_value(observed, probability):
    """Of Pearson's chi-square, with rare bins pooled."""
    expected = probability * observed.sum()
    rare = expected < MIN_EXPECTED
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    return stats.chisquare(observed, expected).pvalue if len(expected) > 1 else 1.0


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution_of_the_contract(case, shape, impl):
    logits, allowed = row(shape)
    observed = counts(logits, allowed, impl, **CASES[case])
    probability = distribution(logits, allowed, **CASES[case])
    assert not observed[probability == 0].any()
    assert observed[probability * DRAWS >= SURELY_SEEN].all()
    assert p_value(observed, probability) > P_VALUE


def test_the_test_rejects_a_temperature_that_is_five_percent_wrong():
    logits, allowed = row("distinct")
    observed = counts(logits, allowed, "torch", temperature=1.05)
    assert p_value(observed, distribution(logits, allowed)) < P_VALUE


def test_draws_at_neighbouring_positions_seeds_and_streams_are_independent():
    # Pairs of draws from four equal tokens: 16 equal cells.
    logits = torch.zeros(50_000, 4)
    position = torch.arange(50_000)
    first = masked_sample(logits, seed=1, position=position).token
    for change in ({"position": position + 1}, {"seed": 2}, {"stream": 1}):
        second = masked_sample(logits, **({"seed": 1, "position": position} | change)).token
        cells = torch.bincount(first * 4 + second, minlength=16).numpy()
        assert stats.chisquare(cells).pvalue > 1e-4 / 3
