"""Faults that users of other samplers reported, restated as cases: none of them is here."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from kernels import bitmask as masks
from kernels.masked_sample import Status, masked_sample

SHARED = os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared")
FILE = Path(SHARED) / "cases" / "numeric.jsonl"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"needs {FILE}")


@pytest.fixture(scope="module")
def cases():
    return {case["id"]: case for case in map(json.loads, FILE.read_text().splitlines())}


def mask(*rows, width):
    allowed = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, ids in enumerate(rows):
        allowed[row, list(ids)] = True
    return masks.pack(allowed)


def support(draw, logits, bitmask=None, *, draws=300, **cut):
    """Tokens of one row of logits at many positions."""
    logits = torch.as_tensor(logits).reshape(1, -1).expand(draws, -1)
    bitmask = None if bitmask is None else bitmask.expand(draws, -1)
    return set(draw(logits, bitmask, position=torch.arange(draws), **cut).token.tolist())


def nan_row(draw, given, expected):
    logits = torch.tensor([[float(value) for value in row] for row in given["logits"]])
    allowed = ([i for i, bit in enumerate(row) if bit == "1"] for row in given["bitmask_rows"])
    bitmask = mask(*allowed, width=4)
    cut = {"top_p": torch.tensor(given["top_p"]), "temperature": torch.tensor(given["temperature"])}
    healthy = set()
    for position in range(200):
        sample = draw(logits, bitmask, position=position, **cut)
        assert sample.status.tolist() == [Status.NAN, Status.OK]
        assert 0 <= sample.token[0] < 4
        healthy.add(sample.token[1].item())
    assert healthy == {1, 2, 3}


def one_hot(draw, given, expected):
    logits = torch.full((given["vocab"],), -math.inf)
    logits[1] = 0.0
    cut = {"top_p": given["top_p"], "top_k": given["top_k"]}
    assert support(draw, logits, draws=40, **cut) == {expected["token"]}


def sum_below_top_p(draw, given, expected):
    logits = torch.randn(2, 32_000, generator=torch.Generator().manual_seed(0))
    free, cut = (draw(logits, top_p=p, temperature=1.0) for p in (1.0, given["top_p"]))
    assert torch.equal(free.token, cut.token)
    low, high = expected["token_range"]
    assert ((cut.token >= low) & (cut.token <= high)).all()


def ties(draw, given, expected):
    logits = torch.tensor([given["logits"]])
    drawn = []
    for rows in given["batch_sizes"]:
        parts = (
            draw(
                logits.expand(rows, -1), position=torch.arange(at, at + rows), top_p=given["top_p"]
            )
            for at in range(0, 160, rows)
        )
        drawn.append(torch.cat([part.token for part in parts]))
    assert all(torch.equal(tokens, drawn[0]) for tokens in drawn)
    assert set(drawn[0].tolist()) == {0, 1, 2, 3}


def dominant(draw, given, expected):
    logits = torch.zeros(50_000)
    logits[7] = 10.0
    assert support(draw, logits, top_p=given["top_p"], draws=12) == set(expected["kept"])


def strided_mask(draw, given, expected):
    bitmask = torch.full((8, 2), -1, dtype=torch.int32)[::2]
    bitmask[given["fill_index"]] = mask(given["allowed_row1"], width=given["vocab"])[0]
    sample = draw(torch.zeros(4, given["vocab"]), bitmask, return_stats=True)
    assert sample.stats.allowed.tolist() == [given["vocab"], 1, given["vocab"], given["vocab"]]
    assert sample.token[1] == expected["row1_allowed"][0]


def spare_bits(draw, given, expected):
    size, width = given["matcher_vocab_size"], given["logits_width"]
    bitmask = mask([*expected["allowed"], *range(size, 96)], width=96)
    assert bitmask.shape[1] == given["bitmask_words"]
    seen = support(draw, torch.zeros(width), bitmask, vocab_size=size)
    assert seen == set(expected["allowed"])


def padded_head(draw, given, expected):
    logits = torch.zeros(2, given["logits_width"])
    logits[:, given["vocab"] :] = 50.0
    bitmask = torch.full((2, given["bitmask_words"]), -1, dtype=torch.int32)
    sample = draw(logits, bitmask, vocab_size=given["vocab"], position=torch.arange(2))
    assert (sample.token < given["vocab"]).all()
    assert sample.logprob.tolist() == pytest.approx([-math.log(given["vocab"])] * 2, abs=1e-4)


def sign_bit(draw, given, expected):
    bitmask = torch.tensor([given["bitmask_int32"]], dtype=torch.int32)
    seen = support(draw, torch.zeros(given["vocab"]), bitmask)
    assert seen == set(expected["allowed_after_apply"])


def no_finite_ban(draw, given, expected):
    logits = torch.tensor(given["logits_fp16"], dtype=torch.float16)
    bitmask = mask(set(range(3)) - set(given["banned"]), width=3)
    assert support(draw, logits, bitmask, temperature=given["temperature"]) == {expected["token"]}


def empty_mask(draw, given, expected):
    sample = draw(torch.tensor([given["logits"]]), mask([], width=3))
    assert sample.status.tolist() == [Status.EMPTY]
    assert sample.logprob.isnan().all()


def mask_before_nucleus(draw, given, expected):
    logits, allowed = torch.tensor([given["logits"]]), given["allowed"]
    cut = {"top_p": given["top_p"], "temperature": given["temperature"]}
    assert support(draw, logits, mask(allowed, width=4), **cut) == set(expected["kept"])
    sample = draw(logits, mask(allowed, width=4), **cut)
    share = expected["probs_after_mask"][allowed.index(sample.token.item())]
    assert sample.logprob.exp().item() == pytest.approx(share, abs=1e-4)


def mixed_batch(draw, given, expected):
    rows, width = given["rows"], given["vocab"]
    logits = torch.zeros(rows, width)
    logits[:, width - 1] = 60.0
    bitmask = torch.zeros(rows, masks.words_for(width), dtype=torch.int32)
    bitmask[given["constrained_rows"]] = mask([3], width=width)
    constrained = torch.zeros(rows, dtype=torch.bool)
    constrained[given["constrained_rows"]] = True
    sample = draw(logits, bitmask, constrained=constrained)
    assert sample.token.tolist() == [width - 1, 3, width - 1]
    assert (sample.status == Status.OK).all()


def all_minus_infinity(draw, given, expected):
    row = [float(value) for value in given["logits"]]
    sample = draw(torch.tensor([row, [0.0, 60.0, 0.0]]), top_p=given["top_p"])
    assert sample.status.tolist() == [Status.EMPTY, Status.OK]
    assert sample.token[1] == 1


def plus_infinity(draw, given, expected):
    row = [float(value) for value in given["logits"]]
    sample = draw(torch.tensor([row]), mask(given["allowed"], width=3), top_p=given["top_p"])
    assert sample.status.tolist() == [Status.POSINF]
    assert 0 <= sample.token.item() < 3


CHECKS = {
    "num-nan-row": nan_row,
    "num-one-hot-top-p-one": one_hot,
    "num-cumsum-below-top-p": sum_below_top_p,
    "num-ties-at-threshold": ties,
    "num-dominant-token": dominant,
    "num-noncontiguous-bitmask-rows": strided_mask,
    "num-spare-bits-in-last-word": spare_bits,
    "num-padded-lm-head": padded_head,
    "num-sign-bit": sign_bit,
    "num-ban-value-times-temperature": no_finite_ban,
    "num-empty-mask-fails-closed": empty_mask,
    "num-mask-before-nucleus": mask_before_nucleus,
    "num-mixed-batch-unconstrained-rows": mixed_batch,
    "num-all-inf-row-metaseq": all_minus_infinity,
    "num-positive-infinity-logit": plus_infinity,
}


def test_every_case_is_checked(cases):
    assert cases.keys() == CHECKS.keys()


@pytest.mark.parametrize("impl", ("torch", "reference"))
@pytest.mark.parametrize("name", CHECKS)
def test_the_fault_is_not_here(cases, name, impl):
    def draw(logits, bitmask=None, **arguments):
        return masked_sample(logits, bitmask, impl=impl, **{"seed": 0, "position": 0} | arguments)

    CHECKS[name](draw, cases[name]["input"], cases[name]["expected"])
