"""The kernel of masked_logits in the audit: each row block, with all that a head may have."""

from kernels import audit as audits

_TYPES = {"bitmask_ptr": "*i32", "constrained_ptr": "*i8", "scale": "fp32", "softcap": "fp32"}
_OF_DTYPE = ("hidden_ptr", "weight_ptr", "bias_ptr", "out_ptr")
_ALIGNED = ("width", "hidden_stride", "weight_stride", "out_stride")
_MAIN_LOAD = "tl.load(weight_at"
_WIDEST_BATCH = {"head_16": 16, "head_64": 64}


def audit(target: str, dtype: str) -> list[dict]:
    """One dict of `audit.COLUMNS` for each block of rows."""
    from kernels.masked_logits.triton_impl import _constants, _launch_config
    from kernels.masked_logits.triton_kernel import _head_kernel

    pointer, element_size = audits.DTYPES[dtype]
    types = _TYPES | dict.fromkeys(_OF_DTYPE, pointer)
    rows = []
    for name, batch in _WIDEST_BATCH.items():
        config = _launch_config(element_size, batch, audits.TARGETS[target][2])
        compiled = audits.compile_kernel(
            _head_kernel,
            types,
            _ALIGNED,
            _constants(config),
            config.options,
            audits.TARGETS[target],
        )
        rows.append(audits.measure(compiled, name, target, dtype, _MAIN_LOAD))
    return rows
