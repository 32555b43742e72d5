"""What the ops of `kernels.bench` share: options, where they run, what is done with rows."""

import argparse
import sys
from collections.abc import Sequence

DTYPES = ("float32", "float16", "bfloat16")


def parser(
    ops: Sequence[str], description: str, examples: str, *, repeats: int
) -> argparse.ArgumentParser:
    """The options that every op has.

    ops: those that can be asked for; the first is the default.
    repeats: the default of ``--repeats``.
    """
    made = argparse.ArgumentParser(
        prog="python -m kernels.bench"
        if len(ops) > 1
        else f"python -m kernels.bench --op {ops[0]}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--op", choices=ops, default=ops[0])
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--output", metavar="CSV", help="also write the table to this file")
    add("--dtype", choices=DTYPES, default="float32")
    add("--repeats", type=int, default=repeats,
        help="turns of each on a CPU; default %(default)s")  # fmt: skip
    return made


def device_of(asked: str) -> str | None:
    """``cpu`` or ``cuda``; None, and a sentence on stderr, where it is not there."""
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        print(
            "kernels.bench --device cuda needs a CUDA or ROCm device, and torch sees none; "
            "use --device cpu to time the torch path",
            file=sys.stderr,
        )
        return None
    return asked


def report(
    rows: Sequence[dict], columns: Sequence[str], arguments: Sequence[str], *, output: str | None
) -> None:
    """Print the rows, and write them to ``output`` if it is given.

    arguments: of the command; they go into the file.
    """
    import torch

    from kernels.records import print_table, stamp, write_csv

    rows = [{name: row[name] for name in columns} for row in rows]
    print_table(rows, columns)
    if output:
        name = torch.cuda.get_device_name() if rows[0]["device"] == "cuda" else ""
        write_csv(output, rows, stamp(" ".join(["python -m kernels.bench", *arguments]), name))
