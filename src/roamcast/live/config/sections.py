"""What all sections of the settings share."""

import msgspec


def number(least: float, most: float, description: str) -> msgspec.Meta:
    """Describe a number within bounds."""
    return msgspec.Meta(ge=least, le=most, description=description)


def text(description: str, most: int = 1_024) -> msgspec.Meta:
    """Describe a text of a length."""
    return msgspec.Meta(max_length=most, description=description)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""
