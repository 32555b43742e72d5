"""Tool-call formats, one file a family.

``FORMATS`` maps a parser name to its ``Format``; ``get_format`` looks one up with a clear error.
"""

from grammar.formats.base import Format, Tool
from grammar.formats.cohere import Cohere
from grammar.formats.deepseek_v3 import DeepSeekR1, DeepSeekV31
from grammar.formats.dsml import DeepSeekV4, DeepSeekV32, DeepSeekV41
from grammar.formats.exaone import Exaone
from grammar.formats.gemma_4 import Gemma4
from grammar.formats.glm import Glm47
from grammar.formats.harmony import Harmony
from grammar.formats.hermes import Hermes
from grammar.formats.kimi_k2 import KimiK2
from grammar.formats.kimi_k3 import KimiK3
from grammar.formats.llama import Llama
from grammar.formats.message import Parsed, Problem
from grammar.formats.minimax import MiniMax
from grammar.formats.minimax_m3 import MiniMaxM3
from grammar.formats.qwen_xml import MiMo, NemotronNano, Qwen3Coder, Qwen35
from grammar.formats.stream import Delta, StreamParser

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Hermes(),
        Hermes("qwen25"),
        Hermes("qwen_3"),
        KimiK2(),
        KimiK2("kimi"),
        Exaone(),
        DeepSeekR1(),
        DeepSeekV31(),
        Llama(),
        Gemma4(),
        KimiK3(),
        Harmony(),
        Qwen3Coder(),
        Qwen3Coder("qwen_3_coder"),
        NemotronNano(),
        Qwen35(),
        MiMo(),
        DeepSeekV32(),
        DeepSeekV4(),
        DeepSeekV41(),
        MiniMax(),
        MiniMaxM3(),
        Glm47(),
        Cohere(),
    )
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
