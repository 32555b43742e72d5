"""What an OpenAI-compatible endpoint is sent for one request, free and constrained.

``free``: the request, less ``strict`` of its tools: a server may take that for a wish to constrain.

``constrained`` is one of three, as the server understands it (``VIA``):

* ``strict``: ``strict: true`` on every tool. OpenAI, vLLM (``--tool-strict-level``), SGLang.
* ``structural-tag``: vLLM's ``structured_outputs: {"structural_tag": ...}``, the tag that the local
  engine would decode under (``grammar.policy``), for the tool-call format the server parses. vLLM
  takes no such tag beside a named tool_choice, reads the answer of required as a JSON list of its
  own, and lets a response_format win over calls; the tag holds all three, so they are sent as
  tool_choice auto and without response_format.
* ``server``: the request as it is; the server was started to constrain.

``stream_options.include_usage`` is set where a request streams, or the usage would be lost. Keys of
``--extra-body`` go over all of that, and one that is null takes the key away: not every server
takes ``metadata``, say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from eval.chat_body import check_tools
from eval.engines import Sampling
from eval.request_lines import RequestLine

VIA = ("strict", "structural-tag", "server")
# Not among OpenAI's parameters; vLLM and SGLang know them.
_EXTRA = ("top_k", "min_p")


@dataclass(frozen=True)
class Sent:
    """The two parts of a body, as K2VV's rows keep them.

    request: the request with the settings of the run.
    extra_body: what goes over it, a null where a key is taken away.
    """

    request: dict[str, Any]
    extra_body: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """What goes over the wire. Metadata that OpenAI's servers would refuse stays here."""
        taken = {key for key, value in self.extra_body.items() if value is None}
        metadata = self.request.get("metadata") or {}
        if not all(isinstance(value, str) for value in metadata.values()):
            taken.add("metadata")
        merged = {**self.request, **self.extra_body}
        return {key: value for key, value in merged.items() if key not in taken}


@dataclass
class EndpointRequests:
    """Turns request lines into bodies.

    model: goes before the request's own; None leaves that.
    via: one of ``VIA``, or None for a free run.
    policy: keyword arguments of `grammar.policy.plan`; only a structural tag needs them.
    """

    model: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    via: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.via == "structural-tag":
            # xgrammar takes a second to import, and nothing else here needs it.
            from grammar.plan_cache import PlanCache

            self._plans = PlanCache()

    def sent(self, line: RequestLine) -> Sent:
        """The body of one request.

        Raises:
            ValueError: tools that are not OpenAI's; or a structural tag is to be sent, and the
                request has none that holds.
        """
        check_tools(line.body)
        request, extra = dict(line.body), {}
        if self.model is not None:
            request["model"] = self.model
        self._sample(request, extra, line)
        if self.via in (None, "strict"):
            _mark_strict(request, self.via == "strict")
        elif self.via == "structural-tag":
            self._tag(request, extra)
        if request.get("stream"):
            options = request.get("stream_options") or {}
            request["stream_options"] = {"include_usage": True, **options}
        return Sent(request, {**extra, **self.extra_body})

    def describe(self) -> dict[str, Any]:
        """As `eval.engines.Engine.describe` has it."""
        tag = self.via == "structural-tag"
        return {
            "model": self.model,
            **self.sampling.given(),
            "seed": self.sampling.base_seed,
            "extra_body": dict(self.extra_body),
            "constrained_via": self.via,
            **(self.policy if tag else {}),
            "sent": _PHRASES[self.via],
        }

    def _sample(self, request: dict[str, Any], extra: dict[str, Any], line: RequestLine) -> None:
        for name, value in self.sampling.given().items():
            if name == "max_tokens" and "max_completion_tokens" in request:
                name = "max_completion_tokens"
            (extra if name in _EXTRA else request)[name] = value
        if self.sampling.base_seed is not None and request.get("seed") is None:
            request["seed"] = self.sampling.seed_of(line)

    def _tag(self, request: dict[str, Any], extra: dict[str, Any]) -> None:
        plan = self._plans.plan(request, **self.policy)
        if plan.constraint is None:
            return
        tag = plan.constraint.model_dump_json()
        extra["structured_outputs"] = {"structural_tag": tag}
        request.pop("response_format", None)
        if plan.tool_choice in ("required", "named"):
            request["tool_choice"] = "auto"


def public(url: str) -> str:
    """An address without the user name and password that it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


_PHRASES = {
    None: "the requests, without strict",
    "strict": "strict: true on every tool",
    "structural-tag": "a structural tag in structured_outputs",
    "server": "the requests as they are; the server constrains",
}


def _mark_strict(request: dict[str, Any], strict: bool) -> None:
    if not isinstance(request.get("tools"), list):
        return
    tools = []
    for tool in request["tools"]:
        function = {k: v for k, v in tool["function"].items() if k != "strict"}
        tools.append({**tool, "function": {**function, "strict": True} if strict else function})
    request["tools"] = tools
