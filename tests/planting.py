"""Plant a defect: replace a piece of a function's source for one test.

A defect is found when a checker, or a test's own assertion, says which promise is broken. That a
machine, or what is planted in it, stumbles says nothing about promises: it does not count. Nor does
a failure while nothing ran of what was planted: the function has moved.
"""

import functools
import importlib
import inspect
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import roamcast
from roamcast.sim.scenario import Narrowing, draw_scenario, narrow, play
from roamcast.sim.workload import Workload

SEEDS = 1_000
"""Within so many seeds the swarm finds what is planted."""

OURS = Path(roamcast.__file__).parent
EXECUTED = "<string>"
"""What `exec` calls the file of planted code."""

LAST_FOUND: dict[str, int] = {
    "test_a_batch_that_is_named_anew_after_a_crash_is_found": 20,
    "test_a_cast_that_is_sent_before_anybody_consents_is_found": 8,
    "test_a_change_that_cuts_the_past_is_found": 9,
    "test_a_change_that_cuts_the_present_is_found": 17,
    "test_a_client_collected_with_its_contexts_left_behind_is_found": 28,
    "test_a_client_on_a_wide_area_group_that_does_not_filter_is_found": 9,
    "test_a_clock_that_nobody_looks_at_is_found": 7,
    "test_a_cursor_that_slips_when_an_object_before_it_leaves_is_found": 23,
    "test_a_duplicate_that_is_not_answered_is_found": 6,
    "test_a_hand_over_that_loses_the_last_publication_is_found": 6,
    "test_a_hidden_context_in_a_current_set_is_found": 3,
    "test_a_leak_in_the_map_is_told": 5,
    "test_a_link_that_resumes_with_old_numbers_is_found": 57,
    "test_a_lost_ack_that_deletes_a_later_mail_is_found": 8,
    "test_a_mailbox_beyond_its_bound_is_found": 10,
    "test_a_parcel_taken_before_it_is_written_is_found": 12,
    "test_a_push_that_failed_and_is_not_repeated_is_found": 252,
    "test_a_relay_that_keeps_departures_to_itself_is_found": 7,
    "test_a_row_lost_between_two_places_during_a_question_is_found": 6,
    "test_a_server_that_takes_a_remote_client_for_a_local_one_is_found": 9,
    "test_a_session_resumed_without_its_viewers_name_is_found": 17,
    "test_a_session_opened_twice_that_keeps_its_first_queries_is_found": 6,
    "test_a_step_written_after_the_acknowledgement_is_found": 6,
    "test_a_summary_that_forgets_at_once_who_ended_is_found": 6,
    "test_a_wake_up_for_each_mail_is_found": 41,
    "test_an_end_at_the_notice_and_not_at_the_last_sighting_is_found": 71,
    "test_an_end_that_overtakes_its_cast_and_is_forgotten_is_found": 79,
    "test_an_epoch_that_is_not_remembered_is_found": 12,
    "test_an_hour_that_begins_unnoticed_is_found": 95,
    "test_an_older_batch_that_wins_is_found": 44,
    "test_an_older_version_that_wins_is_found": 9,
    "test_an_open_end_that_counts_as_never_is_found": 2,
    "test_expiry_by_the_clock_is_found": 20,
    "test_hiding_that_counts_as_leaving_is_found": 17,
    "test_hours_of_the_wrong_clock_are_found": 16,
    "test_leaving_a_change_to_pages_that_have_passed_its_object_is_found": 18,
    "test_look_ups_that_see_what_rules_hide_are_found": 8,
    "test_mail_forgotten_before_the_trusted_node_has_it_is_found": 8,
    "test_mail_left_behind_that_wakes_nobody_again_is_found": 99,
    "test_pending_updates_that_a_restart_leaves_pending_are_found": 48,
    "test_results_in_one_page_are_found": 90,
    "test_rules_that_cut_what_is_cut_already_are_found": 40,
    "test_skipping_an_announcement_is_found": 264,
    "test_telling_a_class_what_it_may_not_see_has_changed_is_found": 17,
    "test_two_that_vouch_for_what_they_sent_each_other_are_found": 34,
    "test_versions_by_the_clock_are_found": 94,
}
"""Tests → the seed that last found what they plant: they try it first."""


def first_failure(
    make: type[Workload],
    seeds: int = SEEDS,
    *,
    sizes: dict[str, int] | None = None,
    promise: str = "",
) -> tuple[int, str] | None:
    """Look for a seed that breaks a promise, or this very one; first at the last one that did."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
    last = LAST_FOUND.get(test, 0)
    assert last < seeds
    for seed in dict.fromkeys((last, *range(seeds))):
        scenario = narrow(draw_scenario(make.name, make, seed), Narrowing(settings=sizes or {}))
        outcome = play(scenario, make)
        found = outcome.failed and not is_mistake(outcome.promise)
        if found and promise in ("", outcome.promise):
            return seed, outcome.promise
    return None


def promise_broken(
    make: type[Workload],
    seeds: int = SEEDS,
    *,
    sizes: dict[str, int] | None = None,
) -> str:
    """Give the promise that the first such seed breaks."""
    found = first_failure(make, seeds, sizes=sizes)
    assert found is not None, f"{seeds} seeds did not find it"
    return found[1]


def is_mistake(promise: str) -> bool:
    """Whether no checker said this: a machine raised it."""
    return promise == "own assertion" or promise.startswith("raises ")


@contextmanager
def refuted() -> Iterator[None]:
    """Expect that a checker's assertion fails: no machine, nor what is planted, is on the way."""
    with pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        yield
    for frame in traceback.extract_tb(caught.tb):
        stumbled = frame.filename == EXECUTED or Path(frame.filename).is_relative_to(OURS)
        assert not stumbled, f"no checker found it: {frame.name} stumbled"


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that passes although no function ran that it planted."""
    real = patch.setattr
    plants: list[str] = []
    ran: set[str] = set()

    def plant(*given: Any, **how: Any) -> None:
        *where, value = given
        if isinstance(value, FunctionType):
            plants.append(f"{where[-1]}")
            value = _noted(value, plants[-1], ran)
        real(*where, value, **how)

    patch.setattr = plant  # type: ignore[method-assign]
    yield
    assert ran or not plants, f"nothing calls {plants}: plant this defect elsewhere"


def _noted(function: Callable[..., Any], name: str, ran: set[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noted(*given: Any, **named: Any) -> Any:
        ran.add(name)
        return function(*given, **named)

    del vars(noted)["__wrapped__"]  # nobody unwraps it
    return noted


@contextmanager
def planted(where: str, old: str, new: str) -> Iterator[None]:
    """Run with `module:function` or `module:Class.method` changed.

    Whoever imported the function, or holds it in a table, gets the changed one. Decorators are left
    out, so kernels run as plain Python, and caches of the filters' modules are emptied. If nobody
    calls the changed one, that is a failure.
    """
    module, _, path = where.partition(":")
    home: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    owner = home
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    ran: set[str] = set()
    changed = _noted(_changed(home, original, name, old, new), name, ran)
    with pytest.MonkeyPatch.context() as patch:
        if owners:
            patch.setattr(owner, name, changed)
        else:
            for holder in [m for n, m in sys.modules.items() if n.startswith("roamcast.")]:
                _replace(patch, holder, original, changed)
        _empty_caches()
        try:
            yield
        finally:
            _empty_caches()
    assert ran, f"nothing calls {where}: plant this defect elsewhere"


def _changed(
    module: ModuleType, original: Any, name: str, old: str, new: str
) -> Callable[..., Any]:
    plain = inspect.unwrap(getattr(original, "py_func", original))
    source = textwrap.dedent(inspect.getsource(plain))
    source = source[source.index("def ") :]
    assert old in source, f"{name} no longer holds {old!r}: plant this defect elsewhere"
    made: dict[str, Any] = {}
    exec(source.replace(old, new), vars(module), made)
    return made[name]  # type: ignore[no-any-return]


def _replace(patch: pytest.MonkeyPatch, module: ModuleType, original: Any, changed: Any) -> None:
    for key, value in list(vars(module).items()):
        if value is original:
            patch.setitem(vars(module), key, changed)  # type: ignore[arg-type]
        elif isinstance(value, dict) and not key.startswith("__"):
            for entry, held in list(value.items()):
                if held is original:
                    patch.setitem(value, entry, changed)


def _empty_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("roamcast.model.filters"):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()
