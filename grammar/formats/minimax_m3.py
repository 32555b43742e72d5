"""MiniMax M3: a block of calls whose arguments are elements inside elements.

Every tag starts with the token ``]<]minimax[>[``, here ``NS``::

    NS<tool_call>
    NS<invoke name="get_weather">NS<city>BernNS</city>NS<tags>NS<item>aNS</item>NS</tags>NS</invoke>
    NS</tool_call>

An object is its members, an array its ``item`` elements, anything else its text: a string as it
stands, other values as JSON. What a text is, and what an element without content is, the tool's
schema says. The chat template leaves out members that are null; ``render`` writes ``null``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xgrammar.structural_tag import GrammarFormat, JSONSchemaFormat, TagFormat

from grammar.formats import json_text, xml_values
from grammar.formats.base import NAME_PATTERN, Tool, _nodes
from grammar.formats.message import Malformed
from grammar.formats.xml_calls import Body, XmlFormat, object_text
from grammar.formats.xml_values import Declared

NS = "]<]minimax[>["
OPEN, CLOSE = f"{NS}<tool_call>", f"{NS}</tool_call>"

_TAG = re.compile(rf"{re.escape(NS)}<(/?)([^<>/\n][^<>\n]*)>")
_TAG_SO_FAR = re.compile(rf"{re.escape(NS)}(?:</?[^<>\n]*)?")

_RESERVED = ("invoke", "tool_call")


def _name_rules(words: Sequence[str], prefix: str = "") -> str:
    """Grammar rules for a name that is none of ``words``; ``prefix`` has been spelled so far."""
    ahead = sorted({w[len(prefix)] for w in words if w.startswith(prefix) and w != prefix})
    ways = [] if prefix in ("", *words) else ['""']
    ways += [f'"{letter}" name_{prefix}{letter}' for letter in ahead]
    ways.append(f"[^{_BARRED}{''.join(ahead)}] tail")
    rules = [f"name{'_' + prefix if prefix else ''} ::= {' | '.join(ways)}"]
    return "\n".join([*rules, *(_name_rules(words, prefix + letter) for letter in ahead)])


_BARRED = r"\x00-\x20\x7f<>\"=/"  # from names, as a part of a character class


def _any_elements(whitespace: int) -> str:
    """A grammar of elements whose names are not known.

    It cannot demand that one is closed by its own name: the parser takes any name, and reports it.
    """
    return rf"""
root ::= ws (element ws)*
element ::= "{NS}<" name ">" value "{NS}</" name ">"
value ::= text | ws element (ws element)* ws
{_name_rules(_RESERVED)}
tail ::= [^{_BARRED}]{{0,63}}
ws ::= [ \t\r\n]{{0,{whitespace}}}
text ::= TagDispatch(
  loop_after_dispatch=false,
  excludes=("{NS}")
)
"""


@dataclass
class _Element:
    name: str
    text: str = ""
    children: list["_Element"] = field(default_factory=list)


class MiniMaxM3(XmlFormat):
    """MiniMax M3."""

    name = "minimax_m3"
    style = "minimax_m3"
    start_of_thinking, end_of_thinking = "<mm:think>", "</mm:think>"
    block = (OPEN, CLOSE)
    head = f"{NS}<invoke name="
    call_open = re.compile(rf'{re.escape(NS)}<invoke name="(?P<name>{NAME_PATTERN})"\s*>')
    call_so_far = re.compile(rf"{re.escape(NS)}<invoke name=[^<>\n]*")
    call_close = f"{NS}</invoke>"
    markers = (OPEN, CLOSE, head, call_close, NS, start_of_thinking, end_of_thinking)
    banned = (NS,)

    def _can_write_key(self, key: str) -> bool:
        return bool(_TAG.fullmatch(f"{NS}<{key}>")) and key[0] != "/" and key not in _RESERVED

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        return f'{NS}<invoke name="{name}">{self._render_members(arguments)}{self.call_close}'

    def _render_members(self, raw: str) -> str:
        return "".join(self._render_element(k, v) for k, v in json_text.members(raw))

    def _render_element(self, name: str, raw: str) -> str:
        if not self._can_write_key(name):
            raise ValueError(f"format {self.name!r} has no way to write the key {name!r}")
        if raw.startswith("{"):
            text = self._render_members(raw)
        elif raw.startswith("["):
            text = "".join(self._render_element("item", e) for e in json_text.elements(raw))
        elif raw.startswith('"'):
            text = json_text.loads(raw)
            if NS in text:
                raise ValueError(
                    f"format {self.name!r} has no way to write a string that holds {NS}:"
                    f" {text[:60]!r}"
                )
        else:
            text = raw
        return f"{NS}<{name}>{text}{NS}</{name}>"

    def _read_body(self, text: str, pos: int, declared: Declared, final: bool) -> Body:
        body, root = Body("complete", pos), _Element("")
        path = [root]
        while True:
            at = text.find(NS, pos)
            path[-1].text += text[pos:at] if at >= 0 else ""
            if at < 0:
                # Between the elements of a call stands nothing but whitespace.
                stray = len(path) == 1 and text[pos:].strip()
                may_start = stray and NS.startswith(stray)
                body.state = "broken" if stray and not may_start else "open"
                return body
            if len(path) == 1 and root.text.strip():
                body.state = "broken"
                return body
            if text.startswith(self._openers, at):
                body.state, body.stop = ("unclosed" if root.children else "broken"), at
                if len(path) > 1:
                    raise Malformed(f"the element {path[-1].name!r} is not closed")
                break
            if text.startswith(self.call_close, at):
                if len(path) > 1:
                    raise Malformed(f"the element {path[-1].name!r} is not closed")
                body.stop = at + len(self.call_close)
                break
            tag = _TAG.match(text, at)
            if tag is None:
                so_far = _TAG_SO_FAR.fullmatch(text, at)
                body.state = "open" if so_far else "broken"
                return body
            pos = tag.end()
            if not tag[1]:
                element = _Element(tag[2])
                path[-1].children.append(element)
                path.append(element)
            elif len(path) == 1:
                raise Malformed(f"the element {tag[2]!r} has no beginning")
            else:
                closed = path.pop()
                if closed.name != tag[2]:
                    body.mended.append(f"{closed.name!r} is closed as {tag[2]!r}")
        body.members = _members(root, declared, body.mended)
        return body

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        # xgrammar makes an object of undeclared members an empty one: no argument could be passed.
        for tag in _nodes(node):
            content = getattr(tag, "content", None)
            if (
                isinstance(tag, TagFormat)
                and isinstance(content, JSONSchemaFormat)
                and content.json_schema == {"type": "object"}
            ):
                tag.content = GrammarFormat(grammar=_any_elements(content.max_whitespace_cnt))
        return node


def _members(element: _Element, declared: Declared, mended: list[str]) -> list[tuple[str, str]]:
    members = []
    for child in element.children:
        value = _value(child, declared.member(child.name), mended)
        members.append((child.name, value))
    return members


def _value(element: _Element, declared: Declared, mended: list[str]) -> str:
    """The JSON text of an element's content."""
    if element.children:
        if element.text.strip():
            raise Malformed(f"the element {element.name!r} holds text beside other elements")
        items = all(child.name == "item" for child in element.children)
        if items and "array" in declared.types and "item" not in declared.properties:
            inner = declared.element()
            return f"[{', '.join(_value(child, inner, mended) for child in element.children)}]"
        members = _members(element, declared, mended)
        if len({key for key, _ in members}) < len(members):
            raise Malformed(f"the element {element.name!r} has a member twice")
        return object_text(members)
    if not element.text.strip():
        empty = {"string": element.text, "object": {}, "array": []}
        for kind, value in empty.items():
            if kind in declared.types and declared.accepts(value):
                return json_text.dumps(value)
    value, note = xml_values.read(element.text, declared, layout=False)
    if note:
        mended.append(f"{element.name!r}: {note}")
    return value
