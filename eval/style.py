"""How the figures look: one set of colours and matplotlib settings for all of them."""

# Okabe and Ito, "Color Universal Design" (2008): told apart under every colour-vision deficiency.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREY = "#6B6B6B"

MODE_COLOURS = {"free": VERMILLION, "constrained": BLUE}
MODE_MARKERS = {"free": "o", "constrained": "s"}
GROUP_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
GROUP_MARKERS = ("o", "^", "D", "s", "v", "P")

WIDTH = 6.0
"""Inches. Type is sized to be read when a figure is shown at half of it."""

SETTINGS = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.markersize": 8,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
}


def said(name: str) -> str:
    """A key as it is said: ``bad_json`` is ``bad JSON``."""
    return " ".join("JSON" if word == "json" else word for word in name.split("_"))


def percent(share: float) -> str:
    """A share in [0, 1] with one decimal; nothing reads 0 or 100 % that is not."""
    shown = 100 * share
    if 0 < shown < 0.05:
        return "<0.1 %"
    if 99.95 <= shown < 100:
        return ">99.9 %"
    return f"{shown:.1f} %"
