"""Time a masked sampling step: ``python -m kernels.bench``.

On a CPU the torch path and the usual torch pipeline run alternately. On a GPU every baseline that
is installed is timed with triton's do_bench, with an empty cache, once its tokens are known to be
legal, and masked_sample's to be the reference's; that is also timed from a CUDA graph. Reported are
the median and the 20 and 80 % quantiles in microseconds, GB/s over the floor (the mask, and the
logits it allows), the share of a measured copy's bandwidth on a GPU, and the ratio of the median to
that of masked_sample. Exit status 2 without the hardware asked for. ``--op masked_logits`` times
heads instead, and has options of its own: ask it for ``--help``.
"""

import argparse
import sys
import time

from kernels.bench.options import device_of, parser, report

_EXAMPLES = """examples:
  python -m kernels.bench
  python -m kernels.bench --device cpu --batch-size 8 --shape peaked --mask free 300
  python -m kernels.bench --op masked_logits --device cpu
"""
SHAPES = ("peaked", "flat")
MASKS = ("free", "1", "300", "3000", "half")
CHECKED_ROWS = 4
COLUMNS = (
    "op device workload dtype rows vocab_size provider median_us low_us high_us gb_per_s "
    "copy_percent ratio"
).split()


def main(arguments: list[str] | None = None) -> int:
    """Time, print, write; returns the exit status: 0, or 2 without the hardware."""
    given = sys.argv[1:] if arguments is None else arguments
    if "masked_logits" in given:
        from kernels.bench import heads

        return heads.main(given)
    options = _parser().parse_args(given)
    if (device := device_of(options.device)) is None:
        return 2
    import torch

    from kernels.bench.workloads import workload

    dtype = getattr(torch, options.dtype)
    copy = _copy_bandwidth() if device == "cuda" else 0.0
    rows = []
    for shape in options.shape:
        for mask in options.mask:
            work = workload(shape, mask, options.batch_size, options.vocab_size, dtype, device)
            for row in _time_all(work, device, options.repeats, copy):
                rows.append({"op": options.op, "device": device, "dtype": options.dtype, **row})
                print(*rows[-1].values(), file=sys.stderr)
    report(rows, COLUMNS, given, output=options.output)
    return 0


def _time_all(work, device: str, repeats: int, copy: float) -> list[dict]:
    from kernels.bench.providers import PROVIDERS

    steps = {}
    for name, make in PROVIDERS.items():
        try:
            step = make(work)
            token = step and step()
        except Exception as error:
            if name.startswith("masked_sample"):
                raise
            # What is installed may still lack a compiler, or this device.
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        if step:
            _check(work, name, token)
            steps[name] = step
    timed = _alternate(steps, repeats) if device == "cpu" else _do_bench(steps)
    ours = timed["masked_sample"][1]
    floor = _floor_bytes(work)
    return [
        {
            "workload": work.name,
            "rows": work.logits.shape[0],
            "vocab_size": work.logits.shape[1],
            "provider": name,
            "median_us": round(median, 1),
            "low_us": round(low, 1),
            "high_us": round(high, 1),
            "gb_per_s": round(floor / median / 1e3, 2),
            "copy_percent": round(floor / median / 1e3 / copy * 100, 1) if copy else "",
            "ratio": round(median / ours, 2),
        }
        for name, (low, median, high) in timed.items()
    ]


def _check(work, name: str, token) -> None:
    """Stop rather than time an implementation that draws a forbidden token, or, ours, another.

    Raises:
        RuntimeError: a token is not legal, or not that of the reference, of which some rows are
            asked.
    """
    import torch

    from kernels import bitmask as masks
    from kernels.masked_sample import masked_sample_reference

    token, vocab_size = token.long().cpu(), work.logits.shape[1]
    legal = (token >= 0) & (token < vocab_size)
    if work.bitmask is not None:
        allowed = masks.unpack(work.bitmask.cpu(), vocab_size)
        legal &= allowed.gather(1, token.clamp(0, vocab_size - 1)[:, None])[:, 0]
    if not legal.all():
        drawn = token[~legal].tolist()
        raise RuntimeError(f"{name} drew what is not allowed on {work.name}: {drawn}")
    if not name.startswith("masked_sample"):
        return
    some = slice(0, CHECKED_ROWS)
    expected = masked_sample_reference(
        work.logits[some].cpu(), None if work.bitmask is None else work.bitmask[some].cpu(),
        top_p=work.top_p, seed=0, position=work.position[some].cpu(),
    ).token  # fmt: skip
    if not torch.equal(token[some], expected):
        raise RuntimeError(
            f"{name} drew {token[some].tolist()} on {work.name}, the reference {expected.tolist()}"
        )


def _alternate(steps: dict, repeats: int) -> dict[str, list[float]]:
    """Quantiles of each in microseconds; taking turns spreads the noise of the machine evenly."""
    import numpy as np

    times = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: np.quantile(taken, (0.2, 0.5, 0.8)).tolist() for name, taken in times.items()}


def _do_bench(steps: dict) -> dict[str, list[float]]:
    from triton.testing import do_bench

    quantiles = (0.2, 0.5, 0.8)
    return {
        name: [1e3 * taken for taken in do_bench(step, quantiles=quantiles)]
        for name, step in steps.items()
    }


def _copy_bandwidth() -> float:
    """GB/s of a copy of 1 GiB on the device, read and written bytes together."""
    import torch

    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    median = _do_bench({"copy": lambda: target.copy_(source)})["copy"][1]
    return 2 * source.numel() * 4 / median / 1e3


def _floor_bytes(work) -> int:
    from kernels import bitmask as masks

    rows, vocab_size = work.logits.shape
    size = work.logits.element_size()
    if work.bitmask is None:
        return rows * vocab_size * size
    row, ids = masks.allowed_pairs(work.bitmask.cpu(), vocab_size)
    sectors = (row * vocab_size * size + ids * size) // 32
    return rows * masks.words_for(vocab_size) * 4 + sectors.unique().numel() * 32


def _parser() -> argparse.ArgumentParser:
    made = parser(("masked_sample", "masked_logits"), __doc__, _EXAMPLES, repeats=7)
    add = made.add_argument
    add("--batch-size", type=int, default=64)
    add("--vocab-size", type=int, default=151_936)
    add("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    add("--mask", nargs="+", choices=MASKS, default=list(MASKS), help="allowed tokens, random")
    return made


if __name__ == "__main__":
    sys.exit(main())
