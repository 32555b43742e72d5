"""Tool-call formats, one file a family.

``FORMATS`` maps a parser name to its ``Format``; ``get_format`` looks one up with a clear error.
"""

from grammar.formats.base import Format, Tool
from grammar.formats.cohere import Cohere
from grammar.formats.dsml import DeepSeekV4, DeepSeekV32, DeepSeekV41
from grammar.formats.glm import Glm47
from grammar.formats.hermes import Hermes
from grammar.formats.kimi_k2 import KimiK2
from grammar.formats.message import Parsed, Problem
from grammar.formats.minimax import MiniMax
from grammar.formats.minimax_m3 import MiniMaxM3
from grammar.formats.qwen_xml import MiMo, NemotronNano, Qwen3Coder, Qwen35
from grammar.formats.stream import Delta, StreamParser

_HERMES, _QWEN3_CODER = Hermes(), Qwen3Coder()

FORMATS: dict[str, Format] = {
    "hermes": _HERMES,
    "qwen25": _HERMES,
    "kimi_k2": KimiK2(),
    "qwen3_coder": _QWEN3_CODER,
    "qwen_3_coder": _QWEN3_CODER,
    "qwen_3_5": Qwen35(),
    "nemotron_nano": NemotronNano(),
    "mimo": MiMo(),
    "deepseek_v3_2": DeepSeekV32(),
    "deepseek_v4": DeepSeekV4(),
    "deepseek_v4_1": DeepSeekV41(),
    "minimax": MiniMax(),
    "minimax_m3": MiniMaxM3(),
    "glm_4_7": Glm47(),
    "cohere": Cohere(),
}


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
