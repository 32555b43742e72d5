"""How long to wait before asking an endpoint again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST_WAIT = 0.5
"""Seconds before the first retry; twice that before the next, and so on."""
LONGEST_WAIT = 30.0
"""Seconds: where doubling ends."""
LONGEST_ASKED_WAIT = 120.0
"""Seconds: a longer Retry-After is cut to this."""


def retry_wait(
    retry: int, headers: Mapping[str, str] | None = None, *, now: datetime | None = None
) -> float:
    """Seconds to wait before a retry.

    What the server asks for in ``retry-after-ms`` or ``Retry-After`` (RFC 9110: seconds, or a
    date), with up to a tenth more; else exponential, with a jitter of a half, so that requests
    that failed together do not come back together.

    retry: how many retries there were before this one.
    headers: of the refusal; None where no answer came.
    now: the time; for tests.
    """
    asked = _asked(headers or {}, now or datetime.now(UTC))
    if asked is not None:
        return min(asked, LONGEST_ASKED_WAIT) * random.uniform(1.0, 1.1)
    return min(FIRST_WAIT * 2**retry, LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _asked(headers: Mapping[str, str], now: datetime) -> float | None:
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        try:
            seconds = float(text) * scale
        except (TypeError, ValueError):
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after"))
    except (TypeError, ValueError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())
