"""Hermes and Qwen 2.5/3: ``<tool_call>`` + newline + JSON object + newline + ``</tool_call>``."""

from grammar.formats.marked_json import MarkedJson


class Hermes(MarkedJson):
    """Hermes, Qwen 2.5 and Qwen 3."""

    name = "hermes"
    style = "qwen_3"
    opener, closer = "<tool_call>", "</tool_call>"
    layout = '<tool_call>\n{"name": "$name", "arguments": $arguments}\n</tool_call>'
    markers = (opener, closer, MarkedJson.start_of_thinking, MarkedJson.end_of_thinking)
    string_excludes = ("tool_call>",)
    banned = (opener,)
