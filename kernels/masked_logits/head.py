"""The weight and bias of a head, if it is one that `masked_logits` may stand in for."""

import torch


def linear_head(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight [V, D] and the bias [V] or None of a plain linear layer, tied or not.

    Raises:
        TypeError: the module computes something else than ``hidden @ weight.T + bias``, or might:
            it is of another class (quantised, low-rank, sharded), has a parametrised weight, or
            hooks.
    """
    name = type(module).__name__
    remedy = "call the module itself, and pass its logits on"
    if type(module) is not torch.nn.Linear:
        raise TypeError(f"the head must be a torch.nn.Linear, got {name}; {remedy}")
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        raise TypeError(
            f"the head must have no hooks, got a {name} whose forward is wrapped; remove them "
            f"(accelerate's with remove_hook_from_module), or {remedy}"
        )
    check_plain("weight", module.weight)
    return module.weight, module.bias


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose elements are not the numbers that they look like.

    Raises:
        TypeError: it is no tensor, a subclass (torchao, bitsandbytes, DTensor), quantised, or of a
            layout other than strided.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(tensor).__name__}; "
            "pass the weight of the model's output layer"
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_quantized:
        kind = "a quantised tensor" if tensor.is_quantized else type(tensor).__name__
        raise TypeError(
            f"{name} must be a plain torch.Tensor, got {kind}; dequantise it, "
            "or call the model's own head and pass its logits on"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be strided, got {tensor.layout}; call .to_dense()")
