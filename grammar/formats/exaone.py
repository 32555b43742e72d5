"""EXAONE 4.0: Hermes' call on one line (LGAI-EXAONE/EXAONE-4.0-32B, chat_template.jinja)."""

from collections.abc import Mapping, Sequence
from typing import Any

from grammar.formats.hermes import CLOSE, OPEN, Hermes
from grammar.formats.message import call_parts


class Exaone(Hermes):
    name = "exaone"
    style = "exaone"

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        return "\n".join(
            f'{OPEN}{{"name": "{name}", "arguments": {arguments}}}{CLOSE}'
            for name, arguments, _ in map(call_parts, calls)
        )
