"""Draw the README's figure from results/: ``python -m eval.readme_figure``.

Above, the schema accuracy of every kept run of `eval.k2vv`; below, what a token costs under a
grammar, where runs of `eval.decoding` are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  python -m eval.readme_figure
  python -m eval.readme_figure --output runs/figure.png
"""

ENOUGH = 20
"""Responses with a call, below which a run says too little to be drawn here."""


def _calls(run: Mapping[str, Any]) -> int:
    return max(mode["schema_accuracy"]["triggered"] for mode in run["modes"].values())


def draw(target: Path, folder: Path | None = None) -> None:
    """Write the figure.

    Args:
        folder: the results to draw; None takes those of the checkout.

    Raises:
        FileNotFoundError: there is no run to draw.
    """
    from eval import results
    from eval.drawing import saved
    from eval.run_figures import accuracy_rows, draw_accuracy, draw_token_times, way_count

    folder = folder or results.FOLDER
    runs, timed = results.k2vv(folder), results.decoding(folder)
    if not runs:
        raise FileNotFoundError(
            f"{folder / 'k2vv'} holds no comparison.json; results/README.md says what makes one"
        )
    called = {name: run for name, run in runs.items() if _calls(run) >= ENOUGH}
    runs = called or runs
    heights = [0.45 * accuracy_rows(runs) + 1.6]
    if timed:
        heights.append(0.4 * way_count(timed) + 1.9)
    with saved(target, width=8.0, height=sum(heights), dpi=130) as figure:
        panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        draw_accuracy(panels[0], runs)
        if timed:
            draw_token_times(panels[1], timed)


def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit code: 0, or 2 where there is nothing to draw."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.readme_figure",
        description=__doc__.partition("\n\n")[2].strip(),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/figure.png"),
        help="PNG (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    try:
        draw(args.output)
    except (OSError, KeyError) as error:
        print(f"readme_figure: error: {error}", file=sys.stderr)
        return 2
    print(f"written to {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
