"""Random hierarchies of places: paths that tempt a careless order, squares, doors."""

from typing import Any

from hypothesis import strategies as st

# Letters around "/" in code order, so that sorting text and sorting segments differ.
segment = st.text(alphabet="ab-.0/é".replace("/", ""), min_size=1, max_size=3)
path = st.lists(segment, min_size=1, max_size=5).map("/".join)


def square(x: float, y: float, size: float) -> dict[str, Any]:
    corners = [[x, y], [x + size, y], [x + size, y + size], [x, y + size], [x, y]]
    return {"type": "Polygon", "coordinates": [corners]}


def closed(paths: list[str]) -> list[str]:
    """Add every ancestor, each path once, in the order of first appearance."""
    found: dict[str, None] = {}
    for one in paths:
        parts = one.split("/")
        for depth in range(len(parts)):
            found.setdefault("/".join(parts[: depth + 1]))
    return list(found)


@st.composite
def documents(draw: st.DrawFn, drawn: bool = True) -> dict[str, Any]:
    """A valid FeatureCollection in any order of features."""
    paths = draw(st.permutations(closed(draw(st.lists(path, min_size=1, max_size=8)))))
    features = []
    asked: dict[tuple[str, str], float] = {}
    for one in paths:
        properties: dict[str, Any] = {"path": one, "kind": draw(st.sampled_from(["room", "floor"]))}
        others = [other for other in paths if other != one]
        chosen = draw(st.lists(st.sampled_from(others), unique=True, max_size=3)) if others else []
        if chosen:
            properties["neighbours"] = chosen
            if draw(st.booleans()):
                properties["walking_m"] = [
                    asked.setdefault(
                        (min(one, other), max(one, other)), draw(st.integers(1, 4)) / 2
                    )
                    for other in chosen
                ]
        if draw(st.booleans()):
            properties["note"] = draw(st.none() | st.integers() | st.text(max_size=3))
        geometry = None
        if drawn and draw(st.booleans()):
            corner = draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3)))
            geometry = square(*corner, draw(st.integers(1, 4)))
        feature = {"type": "Feature", "geometry": geometry, "properties": properties}
        if draw(st.booleans()):
            feature["id"] = draw(st.integers() | st.text(max_size=3))
        features.append(feature)
    document: dict[str, Any] = {"type": "FeatureCollection", "features": features}
    if draw(st.booleans()):
        document["name"] = "somewhere"
    return document
