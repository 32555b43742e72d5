"""Tool-call formats, one file a family.

``FORMATS`` maps a parser name to its ``Format``; ``get_format`` looks one up with a clear error.
"""

from grammar.formats.base import Format, Tool
from grammar.formats.hermes import Hermes
from grammar.formats.kimi_k2 import KimiK2
from grammar.formats.message import Parsed, Problem
from grammar.formats.stream import Delta, StreamParser

_HERMES = Hermes()

FORMATS: dict[str, Format] = {"hermes": _HERMES, "qwen25": _HERMES, "kimi_k2": KimiK2()}


def get_format(name: str | Format) -> Format:
    """The format called ``name``; a ``Format`` is returned as it is.

    Raises:
        ValueError: no format has that name.
    """
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        raise ValueError(f"format must be one of {known}; got {name!r}")
    return FORMATS[name]


__all__ = [
    "FORMATS",
    "Delta",
    "Format",
    "Parsed",
    "Problem",
    "StreamParser",
    "Tool",
    "get_format",
]
