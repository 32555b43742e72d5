"""Every argument error names the argument, what was wanted, what came and what to do."""

import numpy as np
import pytest
import torch

from kernels.masked_sample import masked_sample, masked_sample_reference

LOGITS = torch.zeros(3, 70)
WORDS = torch.full((3, 3), -1, dtype=torch.int32)
NAN = float("nan")


def call(logits=LOGITS, bitmask=None, **arguments):
    return masked_sample(logits, bitmask, **({"seed": 0, "position": 0} | arguments))


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"logits must be a torch.Tensor, got ndarray", {"logits": np.zeros((3, 70))}),
        (TypeError, r"logits must be float32.*got torch.float64.*float\(\)",
         {"logits": LOGITS.double()}),
        (ValueError, r"logits must be \[B, V\], got shape \(70,\)", {"logits": LOGITS[0]}),
        (ValueError, r"unit column stride, got 2.*contiguous", {"logits": LOGITS[:, ::2]}),
        (ValueError, r"at least one column", {"logits": LOGITS[:, :0]}),
        (ValueError, r"vocab_size must lie in \[1, 70\].*got 71", {"vocab_size": 71}),
        (ValueError, r"vocab_size must lie in", {"vocab_size": 0}),
        (TypeError, r"vocab_size must be an integer", {"vocab_size": 70.0}),
        (TypeError, r"bitmask must be a torch.Tensor", {"bitmask": WORDS.numpy()}),
        (TypeError, r"bitmask must be int32.*got torch.int64", {"bitmask": WORDS.long()}),
        (TypeError, r"bitmask must be int32.*got torch.bool.*pack", {"bitmask": LOGITS > 0}),
        (ValueError, r"bitmask must be \[3, words\].*got shape \(2, 3\).*constrained",
         {"bitmask": WORDS[:2]}),
        (ValueError, r"covers 64 tokens but logits have 70 columns.*padded vocabulary",
         {"bitmask": WORDS[:, :2]}),
        (ValueError, r"unit word stride, got 2", {"bitmask": WORDS.repeat(1, 2)[:, ::2]}),
        (ValueError, r"bitmask must be on cpu.*got meta", {"bitmask": WORDS.to("meta")}),
        (ValueError, r"bitmask is None; pass both or neither",
         {"constrained": torch.ones(3, dtype=torch.bool)}),
        (TypeError, r"constrained must be a bool tensor \[3\], got torch.int64",
         {"bitmask": WORDS, "constrained": torch.ones(3, dtype=torch.int64)}),
        (TypeError, r"constrained must be a bool tensor \[3\], got list",
         {"bitmask": WORDS, "constrained": [True] * 3}),
        (ValueError, r"constrained must have shape \[3\].*got \(2,\)",
         {"bitmask": WORDS, "constrained": torch.ones(2, dtype=torch.bool)}),
        (ValueError, r"temperature must be a finite number >= 0, got -0.1; use 0 for argmax",
         {"temperature": -0.1}),
        (ValueError, r"temperature must be a finite", {"temperature": float("inf")}),
        (ValueError, r"temperature must be a finite", {"temperature": NAN}),
        (TypeError, r"temperature must be a finite number >= 0.*got 'hot'", {"temperature": "hot"}),
        (TypeError, r"temperature.*got None", {"temperature": None}),
        (ValueError, r"top_p must be a number in \(0, 1\], got 0.0; use 1.0", {"top_p": 0.0}),
        (ValueError, r"top_p must be .* got 1.01", {"top_p": 1.01}),
        (ValueError, r"top_k must be an integer >= 0, got -1; use 0", {"top_k": -1}),
        (TypeError, r"top_k must be an integer.*got 1.5", {"top_k": 1.5}),
        (TypeError, r"top_k must be an integer.*got True", {"top_k": True}),
        (ValueError, r"min_p must be a number in \[0, 1\], got 1.5", {"min_p": 1.5}),
        (ValueError, r"seed must be an int64, got 9223372036854775808", {"seed": 2**63}),
        (TypeError, r"seed must be an int64.*got 1.0", {"seed": 1.0}),
        (ValueError, r"position must be an int32, got 2147483648", {"position": 2**31}),
        (ValueError, r"stream must be an int32, got -2147483649", {"stream": -(2**31) - 1}),
        (ValueError, r"impl must be one of auto, triton, torch, reference, got 'cuda'",
         {"impl": "cuda"}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(error, message, arguments):
    with pytest.raises(error, match=message):
        call(**arguments)


@pytest.mark.parametrize(
    ("name", "values", "row"),
    [
        ("temperature", [1.0, 0.0, -1.0], 2),
        ("temperature", [1.0, NAN, -1.0], 1),
        ("top_p", [1.0, 0.5, 0.0], 2),
        ("top_p", [2.0, 0.5, 0.0], 0),
        ("min_p", [0.0, 1.1, 0.0], 1),
        ("top_k", [0, 5, -2], 2),
        ("position", [0, 2**31, 0], 1),
        ("stream", [0, 0, -(2**31) - 1], 2),
    ],
)
def test_a_bad_value_in_a_cpu_tensor_names_its_row(name, values, row):
    with pytest.raises(ValueError, match=rf"{name} must be .*got .* in row {row}"):
        call(**{name: torch.tensor(values)})


def test_parameter_tensors_have_one_value_a_row():
    with pytest.raises(ValueError, match=r"top_p must be a number or have shape \[3\].*\(4,\)"):
        call(top_p=torch.ones(4))
    with pytest.raises(TypeError, match=r"seed must be a number or an integer tensor \[3\]"):
        call(seed=torch.zeros(3))
    with pytest.raises(TypeError, match=r"temperature must be a number or a floating-point"):
        call(temperature=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"seed must be on cpu.*got meta; move it"):
        call(seed=torch.zeros(3, dtype=torch.int64, device="meta"))


def test_numbers_of_every_kind_are_numbers():
    expected = call(top_k=5, top_p=0.5, seed=3).token
    for five, half, three in (
        (np.int64(5), np.float32(0.5), np.int32(3)),
        (torch.tensor(5), torch.tensor(0.5), torch.tensor(3)),
        (torch.full((3,), 5), torch.full((3,), 0.5, dtype=torch.float64), torch.full((3,), 3)),
        (torch.full((3,), 5).int(), torch.full((3,), 0.5).bfloat16(), torch.full((3,), 3).int()),
    ):
        assert torch.equal(call(top_k=five, top_p=half, seed=three).token, expected)


def test_seed_and_position_have_no_default():
    with pytest.raises(TypeError, match="position"):
        masked_sample(LOGITS, seed=0)
    with pytest.raises(TypeError, match="seed"):
        masked_sample_reference(LOGITS, position=0)


def test_the_reference_checks_its_arguments_too():
    with pytest.raises(ValueError, match="top_p must be"):
        masked_sample_reference(LOGITS, seed=0, position=0, top_p=0.0)


def test_a_named_implementation_never_gives_way_to_another():
    with pytest.raises(ValueError, match=r"impl='triton' wants logits on a CUDA.*got cpu"):
        call(impl="triton")
    with pytest.raises(ValueError, match=r"impl='torch' wants logits on the CPU, got meta"):
        call(logits=LOGITS.to("meta"), impl="torch")


def test_out_of_the_wrong_form_is_refused():
    out = call()._replace(token=torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"out.token must be torch.int64 \[3\], got torch.int32"):
        call(out=out)
    with pytest.raises(ValueError, match=r"out.status must be torch.int8 \[3\].*\[2\]"):
        call(out=call()._replace(status=torch.zeros(2, dtype=torch.int8)))
