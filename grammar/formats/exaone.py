"""EXAONE 4.0: Hermes' call on one line (LGAI-EXAONE/EXAONE-4.0-32B, chat_template.jinja)."""

from grammar.formats.hermes import Hermes


class Exaone(Hermes):
    """EXAONE 4.0."""

    name = "exaone"
    style = "exaone"
    layout = Hermes.layout.replace("\n", "")
