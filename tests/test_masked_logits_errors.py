"""Every argument error names the argument, what was wanted, what came and what to do."""

import numpy as np
import pytest
import torch

from kernels.masked_logits import (
    Costs,
    dense_logits,
    linear_head,
    masked_logits,
    masked_logits_reference,
)

HIDDEN, WEIGHT = torch.zeros(3, 8), torch.zeros(70, 8)
WORDS = torch.full((3, 3), -1, dtype=torch.int32)


class Wrapped(torch.Tensor):
    """A tensor subclass, as torchao and DTensor make."""


def call(hidden=HIDDEN, weight=WEIGHT, bitmask=WORDS, **arguments):
    return masked_logits(hidden, weight, bitmask, **arguments)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, r"hidden must be a torch.Tensor, got ndarray", {"hidden": np.zeros((3, 8))}),
        (TypeError, r"hidden must be float32.*got torch.float64.*float\(\)",
         {"hidden": HIDDEN.double()}),
        (ValueError, r"hidden must be \[B, D\], got shape \(1, 3, 8\); pass the last position",
         {"hidden": HIDDEN[None]}),
        (ValueError, r"hidden must have unit column stride, got 2",
         {"hidden": torch.zeros(3, 16)[:, ::2]}),
        (TypeError, r"weight must be a torch.Tensor, got Linear",
         {"weight": torch.nn.Linear(8, 70)}),
        (TypeError, r"weight must be a plain torch.Tensor, got Wrapped; dequantise it",
         {"weight": WEIGHT.as_subclass(Wrapped)}),
        (TypeError, r"weight must be strided, got torch.sparse_coo",
         {"weight": WEIGHT.to_sparse()}),
        (TypeError, r"weight must be torch.float32.*got torch.int8; a quantised head",
         {"weight": WEIGHT.to(torch.int8)}),
        (TypeError, r"weight must be torch.float32.*got torch.float8_e4m3fn; a quantised head",
         {"weight": WEIGHT.to(torch.float8_e4m3fn)}),
        (TypeError, r"weight must be torch.float32.*got torch.bfloat16; pass hidden.to",
         {"weight": WEIGHT.bfloat16()}),
        (ValueError, r"weight must be \[V, 8\].*got shape \(8, 70\)", {"weight": WEIGHT.T}),
        (ValueError, r"weight must have unit column stride, got 70",
         {"weight": torch.zeros(8, 70).T}),
        (ValueError, r"weight must be on cpu, where hidden is, got meta",
         {"weight": WEIGHT.to("meta")}),
        (ValueError, r"bias must be contiguous \[70\].*got shape \(3,\)", {"bias": torch.zeros(3)}),
        (TypeError, r"bias must be float32.*got torch.int64", {"bias": torch.zeros(70).long()}),
        (TypeError, r"scale must be a number, got '2'; use 1.0 for none", {"scale": "2"}),
        (TypeError, r"scale must be a number, got None", {"scale": None}),
        (ValueError, r"scale must be finite, got nan", {"scale": float("nan")}),
        (ValueError, r"softcap must be > 0 or None, got 0.0; use None", {"softcap": 0.0}),
        (ValueError, r"softcap must be finite, got inf", {"softcap": float("inf")}),
        (ValueError, r"vocab_size must lie in \[1, 70\].*got 71", {"vocab_size": 71}),
        (TypeError, r"bitmask must be int32.*got torch.bool.*pack", {"bitmask": HIDDEN > 0}),
        (ValueError, r"covers 64 tokens but logits have 70 columns", {"bitmask": WORDS[:, :2]}),
        (ValueError, r"bitmask must be \[3, words\].*got shape \(2, 3\)", {"bitmask": WORDS[:2]}),
        (TypeError, r"constrained must be a bool tensor \[3\], got torch.int32",
         {"constrained": torch.ones(3).int()}),
        (ValueError, r"bitmask is None; pass both or neither",
         {"bitmask": None, "constrained": torch.ones(3).bool()}),
        (ValueError, r"out must be \[3, 70\].*got shape \(3, 71\)", {"out": torch.zeros(3, 71)}),
        (TypeError, r"out must be torch.float32.*got torch.float64",
         {"out": torch.zeros(3, 70).double()}),
        (ValueError, r"out must have unit column stride", {"out": torch.zeros(70, 3).T}),
        (ValueError, r"impl must be one of auto, triton, torch, reference, got 'cuda'",
         {"impl": "cuda"}),
        (ValueError, r"impl='torch' wants hidden on the CPU, got meta",
         {"hidden": HIDDEN.to("meta"), "weight": WEIGHT.to("meta"), "bitmask": None,
          "impl": "torch"}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(error, message, arguments):
    with pytest.raises(error, match=message):
        call(**arguments)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_weight_is_refused_by_name():
    weight = torch.quantize_per_tensor(WEIGHT, 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"weight must be a plain torch.Tensor, got a quantised"):
        call(weight=weight)


def test_the_reference_and_the_dense_head_check_their_arguments_too():
    with pytest.raises(ValueError, match=r"softcap must be > 0"):
        masked_logits_reference(HIDDEN, WEIGHT, None, softcap=-1.0)
    with pytest.raises(ValueError, match=r"weight must be \[V, 8\]"):
        dense_logits(HIDDEN, WEIGHT[:, :7])


def test_costs_are_of_known_methods():
    with pytest.raises(ValueError, match=r"methods must be of blocks, matmul, got 'fast'"):
        Costs((1.0,), ("fast",), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"dense and methods must be of one length"):
        Costs((1.0, 2.0), ("blocks",), 1.0, 1.0)


class Adapter(torch.nn.Linear):
    """A low-rank adapter, by its class."""


def parametrised():
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 70))


def hooked():
    layer = torch.nn.Linear(8, 70)
    layer.register_forward_hook(lambda *_: None)
    return layer


def wrapped():
    layer = torch.nn.Linear(8, 70)
    layer.forward = lambda hidden: hidden
    return layer


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Adapter(8, 70), r"must be a torch.nn.Linear, got Adapter; call the module itself"),
        (torch.nn.Sequential(torch.nn.Linear(8, 70)), r"must be a torch.nn.Linear, got Sequential"),
        (parametrised(), r"must be a torch.nn.Linear, got ParametrizedLinear"),
        (hooked(), r"must have no hooks, got a Linear whose forward is wrapped"),
        (wrapped(), r"must have no hooks"),
    ],
    ids=("subclass", "container", "parametrised", "hook", "forward"),
)
def test_a_head_that_is_more_than_a_linear_layer_is_refused_by_name(module, message):
    with pytest.raises(TypeError, match=message):
        linear_head(module)


def test_a_plain_head_is_taken_apart():
    layer = torch.nn.Linear(8, 70)
    weight, bias = linear_head(layer)
    assert weight is layer.weight
    assert bias is layer.bias
    assert linear_head(torch.nn.Linear(8, 70, bias=False))[1] is None
