"""Requests and sampling parameters: checked when made, frozen afterwards."""

import dataclasses
import math

import pytest

from sampler.params import Request, SamplingParams


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", math.inf, "at least 0"),
        ("temperature", math.nan, "at least 0"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.5, "in (0, 1]"),
        ("min_p", -0.5, "in [0, 1]"),
        ("top_k", -1, "at least 0"),
        ("seed", 2**63, "a 64-bit integer"),
        ("max_tokens", 0, "at least 1"),
    ],
)
def test_a_value_out_of_range_is_named(argument, value, wanted):
    with pytest.raises(ValueError, match=rf"^{argument} must be ") as error:
        SamplingParams(**{argument: value})
    assert wanted in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("temperature", "1"), ("top_k", 1.5), ("max_tokens", None), ("seed", "7"), ("top_p", True)],
)
def test_a_value_of_a_wrong_type_is_named(argument, value):
    with pytest.raises(TypeError, match=rf"^{argument} must be a"):
        SamplingParams(**{argument: value})


def test_stop_is_texts_that_are_not_empty():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    with pytest.raises(ValueError, match=r"^stop must hold texts"):
        SamplingParams(stop=["a", ""])


def test_nothing_can_be_changed_afterwards():
    request = Request([1, 2], SamplingParams())
    assert request.prompt == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.prompt = (3,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.params.seed = 3
    with pytest.raises(ValueError, match="at least one token"):
        Request([])
