"""Bytes that a sampling step moves, counted: ``python -m kernels.traffic``.

Runs the kernels under Triton's interpreter and counts the distinct 32-byte sectors that each
program reads, and those it writes: what a program asks for again is taken to be in cache. The floor
is the mask of a masked row and every sector of logits that holds an allowed token; ratios are over
the floor plus 512 bytes a row. Beside it stands xgrammar's Triton bitmask kernel followed by a
plain tiled top-p sampler. No GPU is needed. Exit status 1 if a ratio is over its target.
"""

import argparse
import os
import sys

SECTOR_BYTES = 32
ROW_BYTES = 512
VOCAB_SIZES = (32_000, 128_256, 151_936, 262_144)
DTYPES = ("float32", "float16", "bfloat16")
CUTS = {"top_p": {"top_p": 0.95}, "top_k_top_p": {"top_k": 50, "top_p": 0.9}}
SHAPES = ("peaked", "flat")
MASKS = ("free", "1", "30", "3000", "half")
COLUMNS = (
    "vocab_size dtype shape mask cut bytes floor ratio target baseline_bytes baseline_ratio "
    "baseline_target passes"
).split()


class Meter:
    """Counts the bytes of distinct sectors that programs touch while it is entered."""

    def __init__(self):
        self.bytes = 0
        self._touched = {"read": [], "written": []}

    def __enter__(self) -> "Meter":
        from triton.runtime.interpreter import interpreter_builder as builder

        self._builder = builder
        load, store = builder.create_masked_load, builder.create_masked_store
        place = builder.set_grid_idx

        def counted_load(pointers, mask, *rest):
            self._touch("read", pointers, mask)
            return load(pointers, mask, *rest)

        def counted_store(pointers, values, mask, *rest):
            self._touch("written", pointers, mask)
            return store(pointers, values, mask, *rest)

        def next_program(*index):
            self._end_program()
            return place(*index)

        builder.create_masked_load = counted_load
        builder.create_masked_store = counted_store
        builder.set_grid_idx = next_program
        return self

    def __exit__(self, *error) -> None:
        self._end_program()
        for name in ("create_masked_load", "create_masked_store", "set_grid_idx"):
            delattr(self._builder, name)

    def _touch(self, how: str, pointers, mask) -> None:
        import numpy as np

        addresses = np.broadcast_to(pointers.data, np.shape(mask.data))[mask.data.astype(bool)]
        self._touched[how].append(np.unique(addresses // SECTOR_BYTES))

    def _end_program(self) -> None:
        import numpy as np

        for sectors in self._touched.values():
            if sectors:
                self.bytes += SECTOR_BYTES * len(np.unique(np.concatenate(sectors)))
            sectors.clear()


def workload(vocab_size: int, dtype: str, shape: str, mask: str):
    """One row of logits [1, V] and its mask, int32 [1, words], or None."""
    import numpy as np
    import torch

    from kernels import bitmask as masks

    rng = np.random.default_rng(vocab_size)
    peaked = -2.5 * np.log(rng.permutation(vocab_size) + 1.0)
    values = peaked if shape == "peaked" else rng.standard_normal(vocab_size)
    padded = torch.empty(vocab_size + SECTOR_BYTES, dtype=getattr(torch, dtype))
    logits = _aligned(padded, vocab_size)[None]
    logits[0] = torch.from_numpy(values)
    if mask == "free":
        return logits, None
    count = vocab_size // 2 if mask == "half" else int(mask)
    allowed = np.zeros((1, vocab_size), bool)
    allowed[0, rng.choice(vocab_size, count, replace=False)] = True
    packed = masks.pack(torch.from_numpy(allowed))
    bitmask = _aligned(torch.empty(packed.shape[1] + SECTOR_BYTES, dtype=torch.int32),
                       packed.shape[1])[None]  # fmt: skip
    bitmask.copy_(packed)
    return logits, bitmask


def _aligned(buffer, size: int):
    # An allocation on a device starts a sector; one on the CPU need not.
    skip = -buffer.data_ptr() % SECTOR_BYTES // buffer.element_size()
    return buffer[skip : skip + size]


def floor_bytes(logits, bitmask) -> int:
    """Bytes of the mask, and of the sectors of logits that hold an allowed token."""
    from kernels import bitmask as masks

    vocab_size, size = logits.shape[1], logits.element_size()
    if bitmask is None:
        return -(-vocab_size * size // SECTOR_BYTES) * SECTOR_BYTES
    ids = masks.allowed_ids(bitmask[0], vocab_size)
    sectors = (ids * size // SECTOR_BYTES).unique().numel()
    return masks.words_for(vocab_size) * 4 + sectors * SECTOR_BYTES


def target(vocab_size: int, shape: str, mask: str, cut: str) -> float:
    """The greatest ratio to the floor that is good enough."""
    if shape == "flat":
        return 2.3
    if vocab_size < 128_000:
        return 1.6
    if cut == "top_k_top_p":
        return 1.5
    return 1.15 if mask == "free" else 1.4


def baseline_target(vocab_size: int, mask: str) -> float:
    """How many times the bytes the baseline should move, at least; 0 is no target."""
    if vocab_size < 128_000:
        return 0.0
    return {"1": 20.0, "30": 20.0, "3000": 5.0}.get(mask, 0.0)


def measure(vocab_size: int, dtype: str, shape: str, mask: str, cut: str) -> dict:
    """One row of the table: a dict of COLUMNS."""
    import torch

    from kernels import traffic_baseline
    from kernels.interpreter import host_noise, patched_once
    from kernels.masked_sample import Sample, masked_sample, triton_rows
    from kernels.masked_sample.workspace import workspace_words

    logits, bitmask = workload(vocab_size, dtype, shape, mask)
    words = workspace_words(1, vocab_size)
    workspace = _aligned(torch.empty(words + SECTOR_BYTES, dtype=torch.int64), words)
    out = Sample(torch.empty(1, dtype=torch.int64), torch.empty(1), torch.empty(1).to(torch.int8))
    noise, triton_rows.gumbel_noise = triton_rows.gumbel_noise, host_noise
    try:
        with patched_once(), Meter() as ours:
            masked_sample(
                logits, bitmask, seed=1, position=0, out=out, workspace=workspace,
                impl="triton", **CUTS[cut],
            )  # fmt: skip
    finally:
        triton_rows.gumbel_noise = noise
    with patched_once(), Meter() as baseline:
        traffic_baseline.sample(logits, bitmask, CUTS[cut]["top_p"])
    floor = floor_bytes(*workload(vocab_size, dtype, shape, mask))
    ratio = ours.bytes / (floor + ROW_BYTES)
    against = baseline.bytes / ours.bytes
    wanted, least = target(vocab_size, shape, mask, cut), baseline_target(vocab_size, mask)
    return {
        "vocab_size": vocab_size,
        "dtype": dtype,
        "shape": shape,
        "mask": mask,
        "cut": cut,
        "bytes": ours.bytes,
        "floor": floor,
        "ratio": round(ratio, 3),
        "target": wanted,
        "baseline_bytes": baseline.bytes,
        "baseline_ratio": round(against, 2),
        "baseline_target": least or "",
        "passes": ratio <= wanted and against >= least,
    }


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        print("kernels.traffic must be the first to import triton", file=sys.stderr)
        return 2
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton  # noqa: F401
        import xgrammar  # noqa: F401
    except ImportError as error:
        print(f"kernels.traffic needs triton and xgrammar: {error}", file=sys.stderr)
        return 2
    import numpy as np

    from kernels.records import print_table, stamp, write_csv

    np.seterr(all="ignore")
    rows = []
    for vocab_size in options.vocab_size:
        for dtype in options.dtype:
            for shape in options.shape:
                for mask in options.mask:
                    for cut in options.cut:
                        rows.append(measure(vocab_size, dtype, shape, mask, cut))
                        print(*rows[-1].values(), file=sys.stderr)
    print_table(rows, COLUMNS)
    if options.output:
        command = " ".join(["python -m kernels.traffic", *(arguments or sys.argv[1:])])
        write_csv(options.output, rows, stamp(command))
    return int(not all(row["passes"] for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels.traffic", description=__doc__)
    parser.add_argument("--output", metavar="CSV", help="also write the table to this file")
    add = parser.add_argument
    add("--vocab-size", nargs="+", type=int, default=list(VOCAB_SIZES), metavar="V")
    add("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    add("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    add("--mask", nargs="+", choices=MASKS, default=list(MASKS), help="allowed tokens, random")
    add("--cut", nargs="+", choices=CUTS, default=list(CUTS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
