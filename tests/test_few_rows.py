"""Products turned round for a few rows: the same numbers, and nothing of the model changed."""

import copy

import pytest
import torch

from sampler import few_rows
from sampler.few_rows import MOST, FewRows, turned

F32 = torch.finfo(torch.float32).eps


def layer(size, width, bias, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(width, size, bias=bias).requires_grad_(False)


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(few_rows, "_pays", lambda shape, layers, rows: True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 7), (2, 16), (MOST, 8), (MOST + 1, 8)])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_turned_is_the_product(bias, shape, size, threads):
    before = torch.get_num_threads()
    linear = layer(size, 24, bias)
    x = torch.randn(*shape, 24, generator=torch.Generator().manual_seed(1))
    try:
        torch.set_num_threads(threads)
        ours = turned(linear, x)
    finally:
        torch.set_num_threads(before)
    weight, wide = linear.weight.double(), x.double()
    wanted = wide @ weight.T + (linear.bias.double() if bias else 0)
    # Of a sum of 24 products: at most that many roundings of the sum of their sizes.
    most = wide.abs() @ weight.abs().T + 1
    assert ours.shape == (*shape, size) and ours.is_contiguous()
    assert ((ours - wanted).abs() <= 25 * F32 * most).all()


def test_layers_are_as_they_were_afterwards_also_after_an_error(always):
    body = torch.nn.Sequential(layer(8, 8, True), torch.nn.SiLU(), layer(8, 8, False, 1))
    few, before = FewRows(body), copy.deepcopy(body)
    x = torch.randn(3, 8)
    with pytest.raises(KeyError), few.multiplied(3):
        assert "forward" in body[0].__dict__ and "forward" in body[2].__dict__
        torch.testing.assert_close(body(x), before(x))
        raise KeyError
    assert "forward" not in body[0].__dict__ and "forward" not in body[2].__dict__
    with few.multiplied(MOST + 1):
        assert "forward" not in body[0].__dict__


def test_hooks_and_layers_of_other_kinds_are_left_alone(always):
    class Own(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    hooked, lent = layer(8, 8, False), layer(8, 8, False, 2)
    seen = []
    hooked.register_forward_hook(lambda module, inputs, output: seen.append(output))
    lent.forward = lambda x: x
    half = layer(8, 8, False, 3).to(torch.bfloat16)
    body = torch.nn.ModuleList([hooked, lent, half, Own(8, 8)])
    with torch.inference_mode(), FewRows(body).multiplied(2):
        hooked(torch.ones(2, 8))
        assert lent(torch.ones(2, 8)).sum() == 16
        assert "forward" not in half.__dict__ and "forward" not in body[3].__dict__
    assert len(seen) == 1 and "forward" in lent.__dict__


def test_what_is_chosen_is_timed_once_for_rows_alike(monkeypatch):
    asked = []
    monkeypatch.setattr(few_rows, "_pays", lambda shape, layers, rows: asked.append(rows) or True)
    few = FewRows(torch.nn.Sequential(layer(8, 8, False), layer(8, 8, False, 1)))
    for rows in (1, 2, 3, 4, 5, 8, 7):
        with few.multiplied(rows):
            pass
    assert asked == [1, 2, 4, 8]


def test_the_default_dtype_does_not_matter(monkeypatch):
    monkeypatch.setattr(few_rows, "_CHOSEN", {})
    body = layer(8, 8, True)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), FewRows(body).multiplied(2):
            assert body(torch.ones(2, 8, dtype=torch.float32)).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


def test_timing_decides(monkeypatch):
    """A clock that says that the plain product takes thrice as long, and the other way round."""
    for turned_costs, wanted in ((1.0, True), (3.0, False)):
        state = {"now": 0.0}

        def way(cost, state=state):
            return lambda layer, x: state.__setitem__("now", state["now"] + cost)

        monkeypatch.setattr(few_rows, "_CHOSEN", {})
        monkeypatch.setattr(few_rows, "_plain", way(2.0))
        monkeypatch.setattr(few_rows, "turned", way(turned_costs))
        monkeypatch.setattr(few_rows.time, "perf_counter", lambda state=state: state["now"])
        assert few_rows._pays(torch.Size([8, 8]), [layer(8, 8, False)], 2) is wanted
