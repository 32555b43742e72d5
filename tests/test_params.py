"""Requests and sampling parameters: checked when made, frozen afterwards."""

import copy
import dataclasses
import math
import pickle
import re

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
        ("presence_penalty", 2.5, "in [-2, 2]"),
        ("presence_penalty", math.nan, "in [-2, 2]"),
        ("frequency_penalty", -2.1, "in [-2, 2]"),
        ("repetition_penalty", 0.0, "greater than 0"),
        ("repetition_penalty", math.inf, "greater than 0"),
    ],
)
def test_a_value_out_of_range_is_named(argument, value, wanted):
    with pytest.raises(ValueError, match=rf"^{argument} must be ") as error:
        SamplingParams(**{argument: value})
    assert wanted in str(error.value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("temperature", "1"),
        ("top_k", 1.5),
        ("max_tokens", None),
        ("seed", "7"),
        ("top_p", True),
        ("presence_penalty", "1"),
        ("repetition_penalty", None),
        ("finish_in_budget", 1),
    ],
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


@pytest.mark.parametrize(
    ("bias", "error", "message"),
    [
        ([1, 2], TypeError, "logit_bias must map token ids to numbers"),
        ({"5": 1}, TypeError, "logit_bias must have token ids for keys, got '5'"),
        ({True: 1}, TypeError, "logit_bias must have token ids for keys, got True"),
        ({5: "1"}, TypeError, "logit_bias[5] must be a number, got '1'"),
        ({5: 100.5}, ValueError, "logit_bias[5] must be in [-100, 100], got 100.5"),
        ({5: math.nan}, ValueError, "logit_bias[5] must be in [-100, 100], got nan"),
        ({5: -(10**400)}, ValueError, "logit_bias[5] must be in [-100, 100]"),
    ],
)
def test_a_bias_that_is_none_is_named(bias, error, message):
    with pytest.raises(error, match=rf"^{re.escape(message)}"):
        SamplingParams(logit_bias=bias)


def test_a_bias_is_a_copy_and_parameters_can_be_copied_and_hashed():
    given = {5: 1}
    params = SamplingParams(logit_bias=given)
    given[5] = 1000
    assert params.logit_bias == {5: 1.0}
    assert copy.deepcopy(params) == params
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(dataclasses.replace(params))


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(ValueError, match=r"^temperature must be a number that a float can hold"):
        SamplingParams(temperature=10**400)
