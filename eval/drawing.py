"""Drawing under the one style of `eval.style`: to a file, or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure
from PIL import Image

from eval import style

_COLOURS = 64
"""Of a file: a chart has few, and a palette makes it a third of the size."""


@contextmanager
def saved(
    path: Path, width: float = style.WIDTH, height: float = 4.0, dpi: float = 200
) -> Iterator[Figure]:
    """A figure to draw on, which is written to ``path`` as PNG at the end.

    Without pyplot: no display, no global state, and the same bytes each time.

    Args:
        width, height: inches.
        dpi: dots an inch.
    """
    with rc_context(style.SETTINGS):
        figure = Figure(figsize=(width, height))
        yield figure
        page = BytesIO()
        figure.savefig(page, dpi=dpi, format="png")
    picture = Image.open(page).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def use_style() -> None:
    """Draw everything in this process in the style; for notebooks."""
    rcParams.update(style.SETTINGS)
