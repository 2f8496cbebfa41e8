"""How is a path told to Spark so that it means itself? With the signs of patterns escaped.

Spark's readers take a path for a pattern if it has one of these signs: `a[1].jsonl` would read
`a1.jsonl` instead, and no error would say so.
"""

import re

_SIGNS = re.compile(r"([{}\[\]*?\\])")


def literal(path: str) -> str:
    """Give the path as Spark has to be told it."""
    return _SIGNS.sub(r"\\\1", path)
