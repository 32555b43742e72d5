"""Draw how the bundled model was trained: ``python -m eval.nano_curve results/nano/curve.csv``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

_EXAMPLES = """examples:
  python -m eval.nano_curve results/nano/curve.csv
  python -m eval.nano_curve runs/nano/curve.csv --output runs/nano/curve.png
"""


def draw(curve: Path, target: Path) -> None:
    """Loss against step, on training dialogues and on held-out ones of both groups."""
    import pandas as pd

    from eval.drawing import saved
    from eval.style import BLUE, GREY, VERMILLION

    rows = pd.read_csv(curve)
    lines = (
        ("loss", GREY, "training", {"linewidth": 1.5}),
        ("held_out_as_trained", BLUE, "held out, tools as trained", {"marker": "s"}),
        ("held_out_changed", VERMILLION, "held out, tools changed", {"marker": "o"}),
    )
    with saved(target) as figure:
        axes = figure.add_subplot()
        for column, colour, label, look in lines:
            known = rows[rows[column].notna()]
            axes.plot(known["step"], known[column], color=colour, label=label, **look)
        axes.set_yscale("log")
        axes.set_xlabel("training step")
        axes.set_ylabel("loss (nats a token)")
        axes.set_title("Training of the bundled model")
        axes.grid(axis="y")
        axes.legend()


def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit code: 0, or 2 for a file that is no training curve."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.nano_curve",
        description="Draw the losses of a training run of the bundled model.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("curve", type=Path, help="curve.csv of sampler.nano.train")
    parser.add_argument("--output", type=Path, help="PNG (default: beside the CSV)")
    args = parser.parse_args(argv)
    if not args.curve.is_file():
        print(f"nano_curve: error: {args.curve} does not exist", file=sys.stderr)
        return 2
    target = args.output or args.curve.with_suffix(".png")
    try:
        draw(args.curve, target)
    except (ValueError, KeyError) as error:
        print(f"nano_curve: error: {args.curve} is no training curve: {error}", file=sys.stderr)
        return 2
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
