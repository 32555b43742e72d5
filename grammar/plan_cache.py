"""Plans remembered by the content of the request.

Building the tag of 100 tools takes longer than everything else about a request whose grammar is
cached. Agents send the same tools turn after turn: then the plan is the same too.
"""

import copy
import marshal
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from grammar import policy, structured_outputs

FIELDS = ("tools", "tool_choice", "parallel_tool_calls", *structured_outputs.FIELDS)
"""What a plan depends on in a request."""

LARGEST = 2**18
"""Bytes of a request's fields, beyond which its plan is not remembered. Plan and key take about
twice what the request does, and a cache holds 128."""


class PlanCache:
    """``grammar.policy.plan`` with a memory. Safe to share between threads.

    Args:
        limit: plans kept; the longest unused go first.
    """

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._plans: OrderedDict[bytes, policy.Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, request_body: Mapping[str, Any], **options: Any) -> policy.Plan:
        """As ``policy.plan``; equal requests with equal options get the same plan.

        Args:
            request_body: of its fields only ``FIELDS`` reach ``policy.plan``.
            options: of ``policy.plan``.

        Raises:
            ValueError: as ``policy.plan`` does, each time anew.
        """
        body = {field: request_body[field] for field in FIELDS if field in request_body}
        try:
            # Version 0 writes what a value is, not how its objects are shared: equal requests, and
            # no others (True is not 1, and keys have an order), are equal bytes.
            key = marshal.dumps((body, sorted(options.items())), 0)
        except ValueError:
            # Something that is not plain JSON: a format object, or a tool of a class of its own.
            return policy.plan(body, **options)
        if len(key) > LARGEST:
            return policy.plan(body, **options)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        # A copy: the caller may change its tools later, and the plan shows them to the prompt.
        made = policy.plan(copy.deepcopy(body), **options)
        with self._lock:
            self._plans[key] = made
            while len(self._plans) > self._limit:
                self._plans.popitem(last=False)
        return made
