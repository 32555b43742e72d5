"""Triton's interpreter at a bearable speed, for tests and for counting what a kernel touches.

Set ``TRITON_INTERPRET=1`` before triton is first imported; kernels then run on CPU tensors.
"""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Iterator

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from kernels import gumbel


@contextlib.contextmanager
def patched_once() -> Iterator[None]:
    """Patch triton's language for the interpreter once, for every launch inside.

    The interpreter does that anew at every call of a device function, which takes most of the time
    of a kernel made of small functions. It also works out every sum and product of 32 bits again in
    64, for an assertion that is made under TRITON_DEBUG alone, and not inside. Nothing can be
    compiled inside.
    """
    builder = interpreter.interpreter_builder
    options = builder.options
    builder.options = dataclasses.replace(options, sanitize_overflow=False)
    patch, np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
    language = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = patch(language)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    cached = functools.cache(np_dtype)
    # Types of blocks and pointers cannot be hashed; those of scalars are what is asked for.
    interpreter._get_np_dtype = lambda ty: cached(ty) if type(ty) is tl.dtype else np_dtype(ty)
    try:
        yield
    finally:
        builder.options = options
        interpreter._patch_lang, interpreter._get_np_dtype = patch, np_dtype
        scope.restore()


def host_noise(seed, position, stream, ids):
    """`gumbel_triton.gumbel_noise` by its twin, equal bit for bit, at a tenth of the time."""
    key = (int(word.handle.data.item()) for word in (seed, position, stream))
    data = ids.handle.data
    bits = gumbel.random_bits(*key, data.ravel().astype(np.int64))
    noise = gumbel.gumbel_from_bits(bits).reshape(data.shape)
    handle = interpreter.TensorHandle(noise, tl.float32)
    return tl.tensor(handle, tl.block_type(tl.float32, list(data.shape)))
