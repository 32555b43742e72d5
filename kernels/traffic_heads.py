"""Bytes that a head in part moves, counted: ``python -m kernels.traffic_heads``.

Runs the kernel of masked_logits under Triton's interpreter and counts distinct 32-byte sectors
read and written: over the whole launch, which is what device memory sees where the L2 cache holds
what programs share (hidden and the mask: some hundred kilobytes), and as the sum over programs, as
kernels.traffic does, where each reads those again. The floor is the mask, the weight of every token
that a row allows, once for all rows, hidden, and the allowed logits; logits of other rows and whole
sectors around a logit are what lies above it. Beside it stand the bytes of a whole head: weight,
hidden and logits, once each. No GPU is needed.
"""

import argparse
import os
import sys

from kernels.traffic import SECTOR_BYTES

_EXAMPLES = """examples:
  python -m kernels.traffic_heads --mask 1 300 free
  python -m kernels.traffic_heads --head 49152x576 --batch-size 1 8 --output heads.csv
"""
HEADS = ("32000x576",)
DTYPES = ("float32", "float16", "bfloat16")
MASKS = ("1", "30", "300", "3000", "half", "free")
COLUMNS = "vocab_size width dtype rows mask bytes program_bytes floor ratio whole saved".split()


def measure(vocab_size: int, width: int, dtype: str, rows: int, mask: str) -> dict:
    """One row of the table: a dict of COLUMNS."""
    import numpy as np
    import torch

    from kernels import bitmask as masks
    from kernels.interpreter import patched_once
    from kernels.masked_logits import masked_logits

    rng = np.random.default_rng(vocab_size)
    hidden = _aligned((rows, width), dtype)
    hidden.copy_(torch.from_numpy(rng.standard_normal((rows, width))))
    weight, out = _aligned((vocab_size, width), dtype).zero_(), _aligned((rows, vocab_size), dtype)
    bitmask, allowed = None, np.ones((rows, vocab_size), bool)
    if mask != "free":
        count = vocab_size // 2 if mask == "half" else int(mask)
        allowed = np.zeros((rows, vocab_size), bool)
        for row in allowed:
            row[rng.choice(vocab_size, count, replace=False)] = True
        packed = masks.pack(torch.from_numpy(allowed))
        bitmask = _aligned(packed.shape, "int32").copy_(packed)
    meter, seen = _meter()
    with patched_once(), meter:
        masked_logits(hidden, weight, bitmask, out=out, impl="triton")
    moved = sum(map(len, seen.values())) * SECTOR_BYTES
    size, words = hidden.element_size(), 0 if bitmask is None else bitmask.numel() * 4
    once = int(allowed.any(0).sum()) * width + hidden.numel() + int(allowed.sum())
    floor = words + once * size
    whole = (vocab_size * width + hidden.numel() + rows * vocab_size) * size
    return {
        "vocab_size": vocab_size,
        "width": width,
        "dtype": dtype,
        "rows": rows,
        "mask": mask,
        "bytes": moved,
        "program_bytes": meter.bytes,
        "floor": floor,
        "ratio": round(moved / floor, 3),
        "whole": whole,
        "saved": round(1 - moved / whole, 4),
    }


def _meter():
    """A `Meter`, and the sectors read and those written in all programs, each a set."""
    from kernels.traffic import Meter

    seen = {"read": set(), "written": set()}

    class Shared(Meter):
        def _touch(self, how, pointers, mask):
            super()._touch(how, pointers, mask)
            seen[how].update(self._touched[how][-1].tolist())

    return Shared(), seen


def _aligned(shape, dtype: str):
    # An allocation on a device starts a sector; one on the CPU need not.
    import math

    import torch

    buffer = torch.empty(math.prod(shape) + SECTOR_BYTES, dtype=getattr(torch, dtype))
    skip = -buffer.data_ptr() % SECTOR_BYTES // buffer.element_size()
    return buffer[skip : skip + math.prod(shape)].view(tuple(shape))


def main(arguments: list[str] | None = None) -> int:
    """Count, print, write; returns the exit status."""
    options = _parser().parse_args(arguments)
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        print("kernels.traffic_heads must be the first to import triton", file=sys.stderr)
        return 2
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        print(f"kernels.traffic_heads needs triton: {error}", file=sys.stderr)
        return 2
    from kernels.records import print_table, stamp, write_csv

    rows = []
    for vocab_size, width in options.head:
        for dtype in options.dtype:
            for batch in options.batch_size:
                for mask in options.mask:
                    rows.append(measure(vocab_size, width, dtype, batch, mask))
                    print(*rows[-1].values(), file=sys.stderr)
    print_table(rows, COLUMNS)
    if options.output:
        command = " ".join(["python -m kernels.traffic_heads", *(arguments or sys.argv[1:])])
        write_csv(options.output, rows, stamp(command))
    return 0


def _parser() -> argparse.ArgumentParser:
    from kernels.bench.heads import head_shape

    parser = argparse.ArgumentParser(
        prog="python -m kernels.traffic_heads",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", metavar="CSV", help="also write the table to this file")
    add("--head", nargs="+", type=head_shape, default=list(map(head_shape, HEADS)), metavar="VxD",
        help="vocabulary by width; default " + " ".join(HEADS))  # fmt: skip
    add("--batch-size", nargs="+", type=int, default=[8])
    add("--dtype", nargs="+", choices=DTYPES, default=["bfloat16"])
    add("--mask", nargs="+", choices=MASKS, default=list(MASKS), help="allowed tokens, random")
    return parser


if __name__ == "__main__":
    sys.exit(main())
