"""The mathematics of one masked sampling step, and its GPU code. Knows tensors only.

transformers probes for a distribution called ``kernels`` (Hugging Face's) and, finding a package
of that name, imports this one to read ``__version__``. So this file imports nothing, always has a
version, and keeps it below 0.9: some releases of transformers read 0.9 and up as Hugging Face's
package and then fail to import names that are not here.
"""

__version__ = "0.1.0"


def __getattr__(name: str):
    # `from kernels import X` for an X of Hugging Face's package lands here: say whose this is.
    from importlib import metadata

    hint = ""
    try:
        other = metadata.version("kernels")
    except metadata.PackageNotFoundError:
        pass
    else:
        hint = (
            f" Hugging Face's `kernels` {other} is installed beside masked-sampling and is hidden"
            " by it: uninstall one of the two, or use separate environments."
        )
    raise AttributeError(
        f"module 'kernels' (of masked-sampling {__version__}) has no attribute {name!r}.{hint}"
    )
