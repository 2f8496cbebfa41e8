"""Seven deliberate defects of tables and summaries: the tests find each of them."""

from collections.abc import Callable

import pytest

from tests.matching import test_aggregate as summaries
from tests.overlay import test_areas_table as areas
from tests.overlay import test_crowd_table as crowd
from tests.overlay import test_wants_table as wants
from tests.planting import planted, refuted

PARTS = "roamcast.matching.aggregate_parts"
TABLES = "roamcast.overlay.tables"

DEFECTS: dict[str, tuple[str, str, str, Callable[[], None]]] = {
    "a summary holds vids": (
        f"{PARTS}:part_of",
        "in context.attributes.items()",
        'in {"vid": context.vid, **context.attributes}.items()',
        summaries.test_a_summary_names_nobody,
    ),
    "an open end is the point FOREVER": (
        f"{PARTS}:part_of",
        "(Interval(low=open_from),)",
        "(Interval(2**63 - 1, 2**63 - 1),)",
        lambda: summaries.test_an_open_end_admits_predicates_that_only_an_end_can_satisfy("during"),
    ),
    "a removal is offered before it is confirmed and has lingered": (
        f"{TABLES}.sending:Sending._settled",
        "new = both(self.shown.get(key), seen)",
        "new = seen",
        areas.test_a_removal_waits_for_the_confirmation_and_then_lingers,
    ),
    "a summary forgets who came and went between two offers": (
        f"{TABLES}.crowd:Crowd._rebuild",
        "link.sending.passed(CROWD, pack(before))",
        "link.sending.changed.add(CROWD)",
        crowd.test_who_begins_and_ends_between_two_offers_is_known_until_it_has_lingered,
    ),
    "a table is cleared before it is rebuilt": (
        f"{TABLES}.hearing:Hearing._begun",
        "if not offer.page:",
        "if offer.full:\n        self.entries.clear()\n    if not offer.page:",
        areas.test_a_version_is_applied_as_a_whole_when_its_last_page_is_there,
    ),
    "covered filters are not sent after their cover goes": (
        "roamcast.matching.cover_index:CoverIndex.settle",
        "moved += [child, *self._place(child)]",
        "moved.append(ghost)",
        wants.test_a_cover_is_forwarded_alone_and_what_it_covered_follows_it,
    ),
    "an older version is accepted": (
        f"{TABLES}.hearing:Hearing.hear",
        "if offer.version < held:",
        "if False:",
        areas.test_older_repeated_and_torn_versions_change_nothing,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    where, old, new, check = DEFECTS[defect]
    check()
    with planted(where, old, new), refuted():
        check()
