"""Hashes that are worked out once: trees and shapes are keys of many tables."""

from typing import TypeVar

_C = TypeVar("_C", bound=type)


def hashed_once(cls: _C) -> _C:
    """Make a frozen dataclass remember its hash."""
    compute = cls.__hash__

    def remembered(self: object) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = compute(self)
        return known

    cls.__hash__ = remembered
    return cls
