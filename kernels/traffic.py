"""Bytes that a sampling step moves, counted: ``python -m kernels.traffic``.

Runs the kernels under Triton's interpreter and counts the distinct 32-byte sectors that each
program reads, and those it writes: what a program asks for again is taken to be in cache. The floor
is the mask of a masked row and every sector of logits that holds an allowed token; ratios are over
the floor plus 512 bytes a row. Beside it stands xgrammar's Triton bitmask kernel followed by a
plain tiled top-p sampler. Masks are random, or recorded along a tool call by
``python -m grammar.record_masks`` for the default vocabulary sizes. No GPU is needed. Exit status 1
if a ratio is over its target.
"""

import argparse
import os
import sys
from itertools import product
from multiprocessing import get_context

_EXAMPLES = """examples:
  python -m kernels.traffic --vocab-size 32000 --dtype bfloat16 --mask free call-key
  python -m kernels.traffic --output results/kernels/traffic.csv
"""

SECTOR_BYTES = 32
ROW_BYTES = 512
VOCAB_SIZES = (32_000, 128_256, 151_936, 262_144)
DTYPES = ("float32", "float16", "bfloat16")
CUTS = ("top_p", "top_k_top_p")
SHAPES = ("peaked", "flat")
RANDOM_MASKS = ("free", "1", "30", "3000", "half")
PLACES = ("name", "key", "string", "integer", "number", "enum", "between")
CALL_MASKS = tuple(f"call-{place}" for place in PLACES)
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


def measure(vocab_size: int, dtype: str, mask: str, shapes=SHAPES, cuts=CUTS) -> list[dict]:
    """Rows of the table, dicts of COLUMNS, of one mask."""
    from kernels import traffic_workloads as workloads

    floor, moved_by_baseline = _floor_and_baseline(vocab_size, dtype, mask)
    rows = []
    for shape in shapes:
        for cut in cuts:
            logits, bitmask = workloads.workload(vocab_size, dtype, shape, mask)
            moved = _our_bytes(logits, bitmask, workloads.CUTS[cut])
            ratio, against = moved / (floor + ROW_BYTES), moved_by_baseline / moved
            wanted = workloads.target(vocab_size, shape, mask, cut)
            least = workloads.baseline_target(vocab_size, bitmask)
            rows.append(
                {
                    "vocab_size": vocab_size,
                    "dtype": dtype,
                    "shape": shape,
                    "mask": mask,
                    "cut": cut,
                    "bytes": moved,
                    "floor": floor,
                    "ratio": round(ratio, 3),
                    "target": wanted,
                    "baseline_bytes": moved_by_baseline,
                    "baseline_ratio": round(against, 2),
                    "baseline_target": least or "",
                    "passes": ratio <= wanted and against >= least,
                }
            )
    return rows


def _our_bytes(logits, bitmask, cut: dict) -> int:
    import torch

    from kernels.interpreter import host_noise, patched_once
    from kernels.masked_sample import Sample, masked_sample, triton_rows
    from kernels.masked_sample.workspace import workspace_words
    from kernels.traffic_workloads import aligned

    words = workspace_words(1, logits.shape[1])
    workspace = aligned(torch.empty(words + SECTOR_BYTES, dtype=torch.int64), words)
    out = Sample(torch.empty(1, dtype=torch.int64), torch.empty(1), torch.empty(1).to(torch.int8))
    noise, triton_rows.gumbel_noise = triton_rows.gumbel_noise, host_noise
    try:
        with patched_once(), Meter() as meter:
            masked_sample(
                logits, bitmask, seed=1, position=0, out=out, workspace=workspace,
                impl="triton", **cut,
            )  # fmt: skip
    finally:
        triton_rows.gumbel_noise = noise
    return meter.bytes


def _floor_and_baseline(vocab_size: int, dtype: str, mask: str) -> tuple[int, int]:
    """The floor, and the baseline's bytes, which depend on neither the logits nor the cut."""
    from kernels import traffic_baseline
    from kernels.interpreter import patched_once
    from kernels.traffic_workloads import floor_bytes, workload

    logits, bitmask = workload(vocab_size, dtype, "flat", mask)
    floor = floor_bytes(logits, bitmask)
    with patched_once(), Meter() as meter:
        # Every round reads the same sectors.
        traffic_baseline.sample(logits, bitmask, 0.95, rounds=1)
    return floor, meter.bytes


def main(arguments: list[str] | None = None) -> int:
    """Count, print, write; returns the exit status: 0, 1 if a ratio is over its target, or 2."""
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
    work = _work(options)
    if not work:
        print(
            "nothing to count: masks of a tool call go with --shape peaked and --vocab-size "
            + " ".join(map(str, VOCAB_SIZES)),
            file=sys.stderr,
        )
        return 2
    from concurrent.futures import ProcessPoolExecutor

    from kernels.records import print_table, stamp, write_csv

    rows = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), _start_worker) as pool:
        for part in pool.map(_measure, work):
            rows += part
            for row in part:
                print(*row.values(), file=sys.stderr)
    print_table(rows, COLUMNS)
    if options.output:
        command = " ".join(["python -m kernels.traffic", *(arguments or sys.argv[1:])])
        write_csv(options.output, rows, stamp(command))
    return int(not all(row["passes"] for row in rows))


def _work(options) -> list[tuple]:
    """Arguments of `measure`. Recorded masks are of some sizes, and go with peaked logits alone."""
    from kernels.traffic_workloads import recorded

    work = []
    for vocab_size, dtype, mask in product(options.vocab_size, options.dtype, options.mask):
        shapes = options.shape
        if mask in CALL_MASKS:
            known = f"{vocab_size}/{mask.removeprefix('call-')}" in recorded()
            shapes = [shape for shape in shapes if shape == "peaked" and known]
        if shapes:
            work.append((vocab_size, dtype, mask, shapes, options.cut))
    return work


def _measure(arguments: tuple) -> list[dict]:
    return measure(*arguments)


def _start_worker() -> None:
    import numpy as np
    import torch

    np.seterr(all="ignore")
    torch.set_num_threads(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.traffic",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", metavar="CSV", help="also write the table to this file")
    add = parser.add_argument
    add("--vocab-size", nargs="+", type=int, default=list(VOCAB_SIZES), metavar="V")
    add("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    add("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    known = RANDOM_MASKS + CALL_MASKS
    add("--mask", nargs="+", choices=known, default=list(known),
        help="number of random tokens allowed, or a place in a tool call")  # fmt: skip
    add("--cut", nargs="+", choices=CUTS, default=list(CUTS))
    add("--jobs", type=int, default=os.cpu_count(), help="processes; default: one a core")
    return parser


if __name__ == "__main__":
    sys.exit(main())
