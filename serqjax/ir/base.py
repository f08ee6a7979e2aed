"""Bases of the classes that a program is made of: frozen, hashable, strict about unknown fields."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of the named parts of a program."""


class Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=True):
    """Base of alternatives; in JSON `{"type": tag, ...}`."""
