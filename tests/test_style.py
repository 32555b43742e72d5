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
        style.legend_above(axes, "A title")
        figure.draw_without_rendering()
        assert axes.get_position().width > 0.7
        assert axes.get_window_extent().height / figure.dpi > 2
        legend = axes.get_legend().get_window_extent()
        assert legend.x1 <= figure.bbox.x1
        assert legend.y1 <= axes.title.get_window_extent().y0 + 1


def test_what_has_no_label_has_no_legend():
    axes = Figure().add_subplot()
    axes.scatter([0, 1], [0, 1])
    style.legend_above(axes, "A title")
    assert axes.get_legend() is None
    assert axes.get_title() == "A title"


@pytest.mark.parametrize(
    ("ends", "side"), [((0.1, 0.3), "left"), ((0.7, 0.9), "right"), ((0.2, 0.8), "center")]
)
def test_the_label_of_an_interval_lies_where_there_is_room(ends, side):
    with rc_context(style.SETTINGS):
        figure = Figure(figsize=(style.WIDTH, 2.0))
        axes = figure.add_subplot()
        style.interval(axes, 0, sum(ends) / 2, ends, style.look("free"), "128 of 300")
        axes.set_xlim(0, 1)
        axes.set_ylim(0.5, -0.5)
        figure.draw_without_rendering()
        (label,) = axes.texts
        assert label.get_ha() == side
        text, inside = label.get_window_extent(), axes.get_window_extent()
        assert inside.x0 <= text.x0 < text.x1 <= inside.x1
        low, high = axes.transData.transform([(ends[0], 0), (ends[1], 0)])[:, 0]
        assert text.x0 >= high or text.x1 <= low or text.y0 > inside.y0 + inside.height / 2
