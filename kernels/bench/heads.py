"""Time a head in part against whole ones: ``python -m kernels.bench --op masked_logits``.

On a CPU masked_logits, the best dense head (`dense_logits`) and a plain ``hidden @ weight.T`` run
alternately; on a GPU masked_logits and the plain matmul, timed with triton's do_bench. Each is
first checked against float64. Reported are the median and the 20 and 80 % quantiles in microseconds
(of the thread's own time where there is one, else of the wall clock), GB/s over the floor (the
weight of allowed tokens, once), the ratio to masked_logits (on a CPU the median of the ratios of
each turn), and the measured switch-over: the share of the vocabulary from which a batch of such
rows is multiplied whole. Exit status 2 without the hardware asked for.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kernels.bench import options

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Steps = dict[str, Callable[[], torch.Tensor]]

_EXAMPLES = """examples:
  python -m kernels.bench --op masked_logits --device cpu --repeats 7
  python -m kernels.bench --op masked_logits --head 49152x576 --batch-size 1 --mask 300 free
"""
MASKS = ("1", "30", "300", "3000", "half", "free")
HEADS = ("49152x576", "151936x896")
COLUMNS = (
    "op device threads dtype rows vocab_size width allowed provider median_us low_us high_us "
    "gb_per_s ratio crossover"
).split()
CHECKED = 64
"""Tokens of a row that are compared with float64."""
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
"""Absolute, of logits of about 1."""


def main(arguments: list[str] | None = None) -> int:
    """Time, print, write; returns the exit status: 0, or 2 without the hardware."""
    given = sys.argv[1:] if arguments is None else arguments
    args = parser().parse_args(given)
    if (device := options.device_of(args.device)) is None:
        return 2
    import torch

    common = {
        "op": args.op,
        "device": device,
        "threads": torch.get_num_threads() if device == "cpu" else "",
        "dtype": args.dtype,
    }
    rows = []
    for vocab_size, width in args.head:
        weight = torch.randn(vocab_size, width, generator=torch.Generator().manual_seed(0))
        weight = (weight * width**-0.5).to(device, getattr(torch, args.dtype))
        for batch in args.batch_size:
            for mask in args.mask:
                for row in time_all(weight, batch, mask, args.repeats):
                    rows.append({**common, **row})
                    print(*rows[-1].values(), file=sys.stderr)
    options.report(rows, COLUMNS, given, output=args.output)
    return 0


def time_all(weight: torch.Tensor, batch: int, mask: str, repeats: int) -> list[dict]:
    """One dict a provider, all of COLUMNS but the first four."""
    import numpy as np
    import torch

    from kernels.masked_logits import crossover, dense_logits, masked_logits

    vocab_size, width = weight.shape
    cpu = weight.device.type == "cpu"
    hidden = torch.randn(batch, width, generator=torch.Generator().manual_seed(batch))
    hidden = hidden.to(weight)
    ids, bitmask = _mask(batch, vocab_size, mask)
    bitmask = None if bitmask is None else bitmask.to(weight.device)
    out = torch.empty(batch, vocab_size, dtype=weight.dtype, device=weight.device)
    steps: Steps = {"masked_logits": lambda: masked_logits(hidden, weight, bitmask, out=out)}
    if cpu:
        steps["dense_logits"] = lambda: dense_logits(hidden, weight, out=out)
    steps["matmul"] = lambda: torch.mm(hidden, weight.t(), out=out)
    for name, step in steps.items():
        _check(name, step(), hidden, weight, ids)
    taken = _alternate(steps, repeats) if cpu else _do_bench(steps)
    floor = len(np.unique(ids)) * width * weight.element_size()
    share = round(crossover(weight, batch), 4) if cpu else ""
    ours = np.array(taken["masked_logits"])
    rows = []
    for name, times in taken.items():
        low, median, high = np.quantile(times, (0.2, 0.5, 0.8))
        rows.append(
            {
                "rows": batch,
                "vocab_size": vocab_size,
                "width": width,
                "allowed": mask,
                "provider": name,
                "median_us": round(float(median), 1),
                "low_us": round(float(low), 1),
                "high_us": round(float(high), 1),
                "gb_per_s": round(float(floor / median / 1e3), 2),
                "ratio": round(float(np.median(np.array(times) / ours)), 2),
                "crossover": share,
            }
        )
    return rows


def _mask(batch: int, vocab_size: int, mask: str):
    """Allowed tokens [B, n], random in each row, and the mask that says so; None where free."""
    import numpy as np
    import torch

    from kernels import bitmask as masks

    if mask == "free":
        return np.tile(np.arange(vocab_size), (batch, 1)), None
    count = vocab_size // 2 if mask == "half" else min(int(mask), vocab_size)
    rng = np.random.default_rng(batch + vocab_size)
    ids = np.stack([rng.choice(vocab_size, count, replace=False) for _ in range(batch)])
    allowed = torch.zeros(batch, vocab_size, dtype=torch.bool)
    allowed[torch.arange(batch)[:, None], torch.from_numpy(ids)] = True
    return ids, masks.pack(allowed)


def _check(name: str, logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, ids):
    """Stop rather than time an implementation whose logits are wrong."""
    import torch

    for row, chosen in enumerate(ids[:, :CHECKED]):
        chosen = torch.from_numpy(chosen).to(weight.device)
        wanted = weight[chosen].double() @ hidden[row].double()
        off = (logits[row, chosen].double() - wanted).abs().max().item()
        limit = TOLERANCE[str(weight.dtype).removeprefix("torch.")] * (1 + wanted.abs().max())
        assert off <= limit, (name, row, off)


def _alternate(steps: Steps, repeats: int) -> dict[str, list[float]]:
    """Microseconds of each turn; taking turns spreads the noise of the machine evenly."""
    from kernels.masked_logits.costs import clock

    taken, now = {name: [] for name in steps}, clock()
    for _ in range(repeats):
        for name, step in steps.items():
            start = now()
            step()
            taken[name].append((now() - start) * 1e6)
    return taken


def _do_bench(steps: Steps) -> dict[str, list[float]]:
    from triton.testing import do_bench

    quantiles = (0.2, 0.5, 0.8)
    return {
        name: [1e3 * taken for taken in do_bench(step, quantiles=quantiles)]
        for name, step in steps.items()
    }


def head_shape(text: str) -> tuple[int, int]:
    """The sizes V and D of "VxD"."""
    vocab_size, _, width = text.partition("x")
    if not (vocab_size.isdigit() and width.isdigit() and int(vocab_size) and int(width)):
        raise argparse.ArgumentTypeError(f"a head is VxD, as 49152x576, got {text!r}")
    return int(vocab_size), int(width)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = options.parser(("masked_logits",), __doc__, _EXAMPLES, repeats=9)
    add = made.add_argument
    add("--head", nargs="+", type=head_shape, default=list(map(head_shape, HEADS)), metavar="VxD",
        help="vocabulary by width; default " + " ".join(HEADS))  # fmt: skip
    add("--batch-size", nargs="+", type=int, default=[1, 8])
    add("--mask", nargs="+", choices=MASKS, default=list(MASKS), help="allowed tokens, random")
    return made
