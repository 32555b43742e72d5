"""The Triton path of masked_logits: under the interpreter, and on a GPU where there is one."""

import math

import numpy as np
import pytest
import torch

from kernels import bitmask as masks
from kernels.masked_logits import masked_logits, masked_logits_reference
from tests.interpreting import (
    INTERPRETED,
    compiled,
    gpu,
    interpreted,
    interpreter,
    run_interpreted,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = 1e-6
"""Of float32 logits, relative to the sum of |h w|."""
ROUNDING = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-7 if INTERPRETED else 2.0**-8,
}
"""Half a unit in the last place; a whole one in bfloat16 where triton's interpreter truncates."""
NAN = math.nan


@compiled
def test_the_contract_holds_under_the_interpreter():
    run_interpreted(__file__)


@pytest.fixture(scope="module")
def fast():
    with interpreter():
        yield


@pytest.fixture
def launch(fast):
    """masked_logits by the Triton path, out NaN before."""

    def call(hidden, weight, bitmask, **arguments):
        if "out" not in arguments:
            arguments["out"] = torch.full((len(hidden), len(weight)), NAN, dtype=hidden.dtype)
        return masked_logits(hidden, weight, bitmask, impl="triton", **arguments)

    return call


def problem(rows, size, width, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator).to(dtype)
    weight = (torch.randn(size, width, generator=generator) * width**-0.5).to(dtype)
    return hidden, weight


def random_mask(rows, size, seed=0, density=(0, 0.001, 0.02, 0.3)):
    rng = np.random.default_rng(seed)
    bitmask = masks.pack(
        torch.from_numpy(rng.random((rows, size)) < rng.choice(density, (rows, 1)))
    )
    if size % 32:
        bitmask[:, -1] |= -1 << (size % 32)
    return bitmask


def assert_as_specified(logits, hidden, weight, bitmask, **arguments):
    """Near the float64 reference wherever that is defined."""
    wanted = masked_logits_reference(
        hidden.cpu().float(), weight.cpu().float(), bitmask, **arguments,
    )  # fmt: skip
    size = hidden.cpu().double().abs() @ weight.cpu().double().abs().T
    if arguments.get("bias") is not None:
        size += arguments["bias"].double().abs()
    off = (logits.cpu().double() - wanted.double()).abs()
    bound = TOLERANCE * size * abs(arguments.get("scale", 1.0))
    bound += (1.01 * ROUNDING[logits.dtype] + 2.0**-23) * wanted.abs()
    where = ~wanted.isnan()
    assert not logits.cpu()[where].isnan().any()
    assert (off <= bound)[where].all(), (off / bound)[where].max()


@interpreted
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "size", "width"), ((1, 33, 24), (3, 500, 50), (17, 300, 130), (66, 130, 16))
)
def test_triton_agrees_with_the_reference(launch, rows, size, width, dtype):
    hidden, weight = problem(rows, size, width, dtype)
    bitmask = random_mask(rows, size, seed=rows)
    constrained = torch.arange(rows) % 5 != 4
    for flags in (None, constrained):
        logits = launch(hidden, weight, bitmask, constrained=flags)
        assert_as_specified(logits, hidden, weight, bitmask, constrained=flags)
    out = torch.full((rows, size), NAN)
    assert_as_specified(launch(hidden, weight, bitmask, out=out), hidden, weight, bitmask)
    assert_as_specified(launch(hidden, weight, None), hidden, weight, None)


@interpreted
@pytest.mark.parametrize(
    "extra", ({"bias": True}, {"scale": -0.3}, {"softcap": 0.9},
              {"bias": True, "scale": 2.5, "softcap": 30.0}), ids=str,
)  # fmt: skip
def test_bias_then_scale_then_softcap(launch, extra):
    hidden, weight = problem(3, 200, 40)
    if "bias" in extra:
        extra = extra | {"bias": torch.randn(200, generator=torch.Generator().manual_seed(9))}
    bitmask = random_mask(3, 200, density=(0.5,))
    assert_as_specified(launch(hidden, weight, bitmask, **extra), hidden, weight, bitmask, **extra)


@interpreted
def test_the_soft_cap_keeps_the_digits_of_small_and_large_logits(launch):
    weight = torch.cat([torch.logspace(-6, 2, 400), -torch.logspace(-6, 2, 400)])[:, None]
    logits = launch(torch.ones(1, 1), weight, None, softcap=1.0)
    wanted = torch.tanh(weight[:, 0].double())
    assert ((logits[0].double() - wanted).abs() <= 4 * 2.0**-24 * wanted.abs()).all()


@interpreted
def test_forbidden_tokens_are_neither_read_nor_written(launch):
    hidden, weight = problem(3, 1000, 16)
    allowed = torch.zeros(3, 1000, dtype=torch.bool)
    allowed[0, 40], allowed[2, 999] = True, True
    forbidden = ~allowed.any(0)
    weight[forbidden] = NAN
    logits = launch(hidden, weight, masks.pack(allowed))
    assert_as_specified(logits, hidden, weight, masks.pack(allowed))
    assert logits[:, forbidden].isnan().all()


@interpreted
def test_rows_that_share_tokens_share_their_weight(launch):
    from kernels.traffic import Meter

    width, rows = 64, 16
    hidden, weight = problem(rows, 640, width)
    allowed = torch.zeros(rows, 640, dtype=torch.bool)
    allowed[:, 320:352] = True
    one_row = allowed.clone()
    one_row[1:] = False
    moved = []
    for chosen in (one_row, allowed):
        with Meter() as meter:
            launch(hidden, weight, masks.pack(chosen))
        moved.append(meter.bytes)
    assert moved[0] == moved[1]
    # The word's weight, hidden, the logits of a word, and mask words by the 32-byte sector.
    assert moved[0] <= 4 * (32 * width + rows * width + rows * 32) + 50 * rows * 32


@interpreted
def test_a_logit_is_the_same_bits_whatever_the_mask_slot_and_batch(launch):
    hidden, weight = problem(14, 600, 72)
    whole = launch(hidden, weight, None)
    bitmask = random_mask(14, 600)
    allowed = masks.unpack(bitmask, 600)
    assert torch.equal(launch(hidden, weight, bitmask)[allowed], whole[allowed])
    order = torch.randperm(14, generator=torch.Generator().manual_seed(1))
    assert torch.equal(launch(hidden[order], weight, None), whole[order])
    for row in (0, 13):
        assert torch.equal(launch(hidden[row : row + 1], weight, None)[0], whole[row])
    ill = hidden.clone()
    ill[3] = NAN
    logits = launch(ill, weight, None)
    healthy = torch.arange(14) != 3
    assert torch.equal(logits[healthy], whole[healthy])


@interpreted
def test_strides_spare_bits_and_columns_beyond_the_vocabulary(launch):
    rows, size, width = 4, 90, 20
    hidden, weight = problem(rows, size, width)
    wide_hidden, wide_weight = torch.full((rows, 3, width), NAN), torch.full((size, width + 7), NAN)
    wide_hidden[:, -1], wide_weight[:70, :width] = hidden, weight[:70]
    bitmask = torch.full((rows, 7), -1, dtype=torch.int32)[:, :5]
    bitmask[1] = 0
    flags = torch.tensor([[True, False]]).repeat(rows, 1)[:, 0]
    out = torch.full((rows, size + 6), NAN)[:, :size]
    logits = launch(
        wide_hidden[:, -1], wide_weight[:, :width], bitmask, constrained=flags, vocab_size=70,
        out=out,
    )  # fmt: skip
    assert logits.data_ptr() == out.data_ptr()
    assert logits[:, 70:].isnan().all()
    assert_as_specified(logits, hidden, weight, bitmask, vocab_size=70)
    assert launch(torch.empty(0, width), weight, None).shape == (0, size)


@compiled
def test_an_explicit_triton_never_falls_back():
    with pytest.raises(ValueError, match=r"impl='triton' wants hidden on a CUDA or ROCm device"):
        masked_logits(torch.zeros(1, 4), torch.zeros(9, 4), None, impl="triton")


# On a GPU


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", (1, 3, 17, 80))
def test_a_gpu_agrees_with_the_reference(rows, dtype):
    for size, width in ((33, 24), (32_003, 576), (5000, 897)):
        hidden, weight = problem(rows, size, width, dtype)
        bitmask = random_mask(rows, size, seed=rows)
        flags = torch.arange(rows) % 5 != 4
        out = torch.full((rows, size), NAN, dtype=dtype, device="cuda")
        logits = masked_logits(
            hidden.cuda(), weight.cuda(), bitmask.cuda(), constrained=flags.cuda(), out=out
        )
        assert_as_specified(logits, hidden, weight, bitmask, constrained=flags)


@gpu
def test_a_logit_on_a_gpu_is_the_same_bits_whatever_the_mask_slot_and_batch():
    hidden, weight = (x.cuda() for x in problem(16, 9000, 576, torch.bfloat16))
    whole = masked_logits(hidden, weight, None)
    bitmask = random_mask(16, 9000)
    allowed = masks.unpack(bitmask, 9000).cuda()
    assert torch.equal(masked_logits(hidden, weight, bitmask.cuda())[allowed], whole[allowed])
    for row in range(16):
        assert torch.equal(masked_logits(hidden[row : row + 1], weight, None)[0], whole[row])


@gpu
def test_a_call_is_captured_in_a_cuda_graph():
    rows, size = 5, 5000
    hidden, weight = (x.cuda() for x in problem(rows, size, 128, torch.bfloat16))
    bitmask = torch.full((rows, masks.words_for(size)), -1, dtype=torch.int32, device="cuda")
    out = torch.full((rows, size), NAN, dtype=torch.bfloat16, device="cuda")

    def step():
        masked_logits(hidden, weight, bitmask, softcap=30.0, out=out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for at in range(3):
        hidden.normal_()
        host = random_mask(rows, size, seed=at)
        bitmask.copy_(host)
        out.fill_(NAN)
        graph.replay()
        assert_as_specified(out, hidden, weight, host, softcap=30.0)
