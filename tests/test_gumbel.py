import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kernels import gumbel

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip

# Every word from both ends, a stride through the middle, and log-uniform words for the far tail.
WORDS = np.concatenate(
    (
        np.arange(1 << 16),
        np.arange((1 << 32) - (1 << 16), 1 << 32),
        np.arange(0, 1 << 32, 4099),
        np.exp2(np.random.default_rng(7).uniform(0, 32, 1 << 19)),
    )
).astype(np.uint32)

QUANTILE_TOLERANCE = 1e-7
"""Absolute where |g| < 1, relative elsewhere; half a float32 step is 6e-8 of that."""


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert gumbel.philox(words(counter), words(key)).tolist() == words(expected).tolist()


def test_philox_is_elementwise():
    counters = np.stack([words(c) for c, _, _ in KNOWN_ANSWERS], axis=1)
    keys = np.stack([words(k) for _, k, _ in KNOWN_ANSWERS], axis=1)
    expected = np.stack([words(e) for _, _, e in KNOWN_ANSWERS], axis=1)
    assert np.array_equal(gumbel.philox(counters, keys), expected)


@pytest.mark.parametrize("seed", (0, 1, -1, 2**63 - 1, -(2**63), 0x299F31D0A4093822))
def test_key_is_the_seed_and_counter_is_id_position_stream(seed):
    position, stream = -5, 2**31 - 1
    ids = np.array([0, 1, 2, 3, 4, 77, 151935, 2**31])
    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint32)
    expected = [
        gumbel.philox(np.array([i >> 2, position & 0xFFFFFFFF, stream, 0]).astype(np.uint32), key)[
            i & 3
        ]
        for i in ids.tolist()
    ]
    assert gumbel.random_bits(seed, position, stream, ids).tolist() == expected


@pytest.mark.parametrize("size", (1, 3, 4, 33, 1001))
def test_a_range_of_ids_has_the_words_of_its_ids(size):
    seed, position, stream = np.array([5, -7]), np.array([3, 2**31 - 1]), np.array([0, 9])
    block = gumbel.random_bits_range(seed, position, stream, size)
    assert block.shape == (2, size)
    for row, key in zip(block, zip(seed, position, stream, strict=True), strict=True):
        assert np.array_equal(row, gumbel.random_bits(*key, np.arange(size)))


def test_the_uniform_has_full_precision_when_small_and_stops_short_of_one():
    v = gumbel.uniform(np.array([0, 1, 2**32 - 1], np.uint32))
    assert v.tolist() == [2.0**-33, 1.5 * 2.0**-32, 1 - 2.0**-24]


def test_quantiles_are_right_to_the_last_digits_far_tail_included():
    v = gumbel.uniform(WORDS).astype(np.float64)
    exact = -np.log(-np.log1p(-v))
    error = np.abs(gumbel.gumbel_from_bits(WORDS) - exact) / np.maximum(1.0, np.abs(exact))
    assert error.max() <= QUANTILE_TOLERANCE


def test_the_bounds_hold_at_both_ends():
    lowest, greatest = gumbel.gumbel_from_bits(np.array([2**32 - 1, 0], np.uint32)).tolist()
    assert greatest == pytest.approx(-np.log(-np.log1p(-(2.0**-33))), rel=1e-7)
    assert lowest == pytest.approx(-np.log(24 * np.log(2)), rel=1e-7)
    assert lowest >= gumbel.GUMBEL_MIN
    assert greatest <= gumbel.GUMBEL_MAX


def test_noise_is_gumbel_distributed():
    key = np.arange(20), np.full(20, 3), np.zeros(20, np.int64)
    noise = gumbel.gumbel_noise(*key, 10_000).ravel().astype(np.float64)
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-4
    # The tail decides draws, and the Kolmogorov distance is blind to it: count the top 1 in 1,000.
    tail = int((noise > stats.gumbel_r.isf(1e-3)).sum())
    assert stats.binomtest(tail, len(noise), 1e-3).pvalue > 1e-4


@pytest.mark.parametrize("name", ("seed", "position", "stream"))
def test_noise_changes_with_each_part_of_its_key(name):
    key = {part: np.array([1, 1]) for part in ("seed", "position", "stream")}
    key[name] = np.array([1, 2])
    noise = gumbel.gumbel_noise(**key, size=4096)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.07
    assert (noise[0] == noise[1]).sum() < 3


KERNELS = """
import sys
import numpy as np, torch, triton, triton.language as tl
from kernels import gumbel_triton

@triton.jit
def _bits_kernel(bits_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(bits_ptr + at).to(tl.uint32, bitcast=True)
    tl.store(out_ptr + at, gumbel_triton.gumbel_from_bits(bits))

@triton.jit
def _noise_kernel(ids_ptr, key_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    seed, position, stream = tl.load(key_ptr), tl.load(key_ptr + 1), tl.load(key_ptr + 2)
    noise = gumbel_triton.gumbel_noise(seed, position, stream, tl.load(ids_ptr + at))
    tl.store(out_ptr + at, noise)
"""

INTERPRET = """
words = torch.from_numpy(np.load(sys.argv[1]).view(np.int32))
of_words = torch.full(words.shape, torch.nan)
_bits_kernel[(len(words) // 4096,)](words, of_words, 4096)
of_ids = []
for key in np.load(sys.argv[2]):
    of_ids.append(torch.full((4096,), torch.nan))
    _noise_kernel[(1,)](torch.arange(100_000, 104_096), torch.from_numpy(key), of_ids[-1], 4096)
np.savez(sys.argv[3], words=of_words, ids=torch.stack(of_ids))
"""

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

signature = {"ids_ptr": "*i64", "key_ptr": "*i64", "out_ptr": "*fp32", "BLOCK": "constexpr"}
source = ASTSource(_noise_kernel, signature, constexprs={(3,): 1024})
kernel = triton.compile(
    source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}
)
print(kernel.asm["ptx"])
"""

KEYS = np.array([[1, 2, 3], [-5, 2**31 - 1, 0], [2**63 - 1, -1, 7], [-(2**63), 0, -(2**31)]])


def run_script(folder, code, *arguments, **environment):
    """Run code from a file, as triton must find the source of its kernels; returns its output."""
    script = folder / "script.py"
    script.write_text(code)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(Path.cwd())} | environment
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_host_twin_leaves_triton_alone(tmp_path):
    code = "import sys, kernels.gumbel, kernels.masked_sample; print('triton' in sys.modules)"
    assert run_script(tmp_path, code).split() == ["False"]


@pytest.mark.skipif(sys.platform != "linux", reason="triton is published for Linux")
def test_triton_under_the_interpreter_gives_the_same_bits(tmp_path):
    sample = WORDS[::11]
    sample = sample[: len(sample) // 4096 * 4096]
    np.save(tmp_path / "words.npy", sample)
    np.save(tmp_path / "keys.npy", KEYS)
    files = [tmp_path / name for name in ("words.npy", "keys.npy", "out.npz")]
    run_script(tmp_path, KERNELS + INTERPRET, *files, TRITON_INTERPRET="1")
    with np.load(files[2]) as out:
        assert np.array_equal(out["words"], gumbel.gumbel_from_bits(sample))
        for key, noise in zip(KEYS.tolist(), out["ids"], strict=True):
            bits = gumbel.random_bits(*key, np.arange(100_000, 104_096))
            assert np.array_equal(noise, gumbel.gumbel_from_bits(bits))


@pytest.mark.skipif(sys.platform != "linux", reason="triton is published for Linux")
def test_triton_compiled_for_a_gpu_fuses_and_divides_nothing(tmp_path):
    ptx = run_script(tmp_path, KERNELS + COMPILE)
    assert "mul.f32" in ptx or "mul.rn.f32" in ptx
    for inexact in ("fma", "div.", "rcp.", "lg2", "ex2", ".ftz"):
        assert inexact not in ptx
    assert "mul.hi.u64" not in ptx  # a 64-bit counter would make it Philox-4x64
