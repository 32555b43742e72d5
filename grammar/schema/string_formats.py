"""Patterns of the string formats that are enforced; any other ``format`` is an annotation.

RFC 3339 (dates and times, to the calendar), 5321 (mail), 1123 (hosts), 2673 and 4291 (addresses),
3986, 3987 and 6570 (URIs), 9562 (UUIDs), 6901 (JSON pointers). jsonschema checks none of them
unless it is told to, so they narrow: what they take, it takes.
"""

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    rf"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = r"[0-9A-Fa-f]{1,4}"
_LAST = rf"(?:{_HEX}:{_HEX}|{_IPV4})"
_IPV6 = "|".join(
    [
        rf"(?:{_HEX}:){{6}}{_LAST}",
        rf"::(?:{_HEX}:){{5}}{_LAST}",
        rf"(?:{_HEX})?::(?:{_HEX}:){{4}}{_LAST}",
        rf"(?:(?:{_HEX}:){{0,1}}{_HEX})?::(?:{_HEX}:){{3}}{_LAST}",
        rf"(?:(?:{_HEX}:){{0,2}}{_HEX})?::(?:{_HEX}:){{2}}{_LAST}",
        rf"(?:(?:{_HEX}:){{0,3}}{_HEX})?::{_HEX}:{_LAST}",
        rf"(?:(?:{_HEX}:){{0,4}}{_HEX})?::{_LAST}",
        rf"(?:(?:{_HEX}:){{0,5}}{_HEX})?::{_HEX}",
        rf"(?:(?:{_HEX}:){{0,6}}{_HEX})?::",
    ]
)
_PERCENT = r"%[0-9A-Fa-f]{2}"


def _uri(more: str, *, reference: bool = False) -> str:
    """A URI, or an IRI where ``more`` holds the characters beyond ASCII."""
    char = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@{more}-]|{_PERCENT})"
    name = rf"(?:[A-Za-z0-9._~!$&'()*+,;={more}-]|{_PERCENT})"
    authority = rf"(?:(?:{name}|:)*@)?(?:{name}*|\[[0-9A-Fa-f:.]+\])(?::\d*)?"
    path = rf"(?:/{char}*)*"
    rest = rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    whole = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{path}|/?(?:{char}+{path})?){rest}"
    if not reference:
        return f"^{whole}$"
    first = rf"(?:[A-Za-z0-9._~!$&'()*+,;=@{more}-]|{_PERCENT})+"
    return rf"^(?:{whole}|(?://{authority}{path}|/(?:{char}+{path})?|{first}{path})?{rest})$"


_BEYOND = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = rf"(?:[A-Za-z0-9_.]|{_PERCENT})+(?::[1-9]\d{{0,3}}|\*)?"
_EXPRESSION = rf"[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "duration": (
        r"^P(?:\d+W|(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"
        r"(?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))?"
        r"|T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))$"
    ),
    "email": rf"^{_ATOM}(?:\.{_ATOM})*@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^(?:{_IPV6})$",
    "uuid": r"^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
    "uri": _uri(""),
    "uri-reference": _uri("", reference=True),
    "iri": _uri(_BEYOND),
    "iri-reference": _uri(_BEYOND, reference=True),
    "uri-template": rf"^(?:[^\x00-\x20\"'%<>\\^`{{|}}]|{_PERCENT}|\{{{_EXPRESSION}\}})*$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9]\d*)(?:#|{_POINTER})$",
}
