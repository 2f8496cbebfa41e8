"""Filter templates: the standard queries of AMS IV-B, with parameters such as {place}.

Clients that fill a template with the same values get the same canonical filter, so they share one
query and one channel.
"""

import re
from collections.abc import Mapping

import msgspec

from roamcast.errors import FilterError
from roamcast.model.contexts import Attribute, check_place
from roamcast.model.filters import Filter
from roamcast.model.kinds import attribute_literal

_HOLE = re.compile(r"\{([a-z][a-z_]*)\}")


class Template(msgspec.Struct, frozen=True):
    """A named filter text with parameters such as {place}."""

    name: str
    text: str
    says: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        return tuple(dict.fromkeys(_HOLE.findall(self.text)))

    def fill(self, values: Mapping[str, Attribute]) -> Filter:
        """Return the filter with every parameter filled in. Values are quoted, never pasted."""
        missing = [name for name in self.parameters if name not in values]
        unknown = sorted(set(values) - set(self.parameters))
        if missing or unknown:
            wants = ", ".join(self.parameters)
            problem = f"lacks {missing[0]}" if missing else f"has no {unknown[0]}"
            raise FilterError(f"the template {self.name} {problem}; it takes: {wants}")
        return Filter.parse(_HOLE.sub(lambda hole: _literal(hole[1], values[hole[1]]), self.text))


def _literal(name: str, value: Attribute) -> str:
    if name == "place" and isinstance(value, str):
        check_place(value)
    return attribute_literal(value)


STANDARD = {
    template.name: template
    for template in (
        Template("at", "place = {place}", "everything at exactly this place"),
        Template("in", "within(place, {place})", "everything in this place or a part of it"),
        Template("one", "vid = {vid}", "one context, wherever it goes"),
        Template(
            "kind-in", "type = {type} AND within(place, {place})", "one kind of thing in a place"
        ),
        Template("kind", "type = {type}", "one kind of thing anywhere"),
        Template(
            "group-in", "group = {group} AND within(place, {place})", "a group's members in a place"
        ),
    )
}
"""AMS's standard queries: at a place, in a region, a single context, by attributes."""
