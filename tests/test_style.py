"""The look of figures: legends leave the data its room."""

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from eval import style


@pytest.mark.parametrize(
    ("groups", "name"), [(2, "short"), (5, "bfcl simple python"), (11, "g" * 24)]
)
def test_a_legend_above_is_no_wider_than_its_figure_and_leaves_the_axes_whole(groups, name):
    with rc_context(style.SETTINGS):
        figure = Figure(figsize=(style.WIDTH, 4.2))
        axes = figure.add_subplot()
        for group in range(groups):
            axes.scatter([0, 1], [0, 1], label=f"{name} {group}")
        style.legend_above(axes, "A title", groups)
        figure.draw_without_rendering()
        assert axes.get_position().width > 0.7
        assert axes.get_window_extent().height / figure.dpi > 2
        legend = axes.get_legend().get_window_extent()
        assert legend.x1 <= figure.bbox.x1
        assert legend.y1 <= axes.title.get_window_extent().y0 + 1
