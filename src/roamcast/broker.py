"""What is one broker made of? Its machines, and what one lends the other.

The map server under people's privacy rules, the hub for sessions held open in this process, and the
objects the service keeps for those who have no machine of their own. What must survive a crash is
asked of the driver as a `Store`; only when it is on disk does it come into force and is it
acknowledged. What is seen by nobody who may not is decided here once, by `RulesPolicy`.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from roamcast.channels.server.contexts import LocalUpdate
from roamcast.channels.server.map_server import MapServer
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.hub import CutOff, Frame, Hub
from roamcast.channels.sessions.publications import (
    PREFIX,
    Acknowledged,
    PublicationSettings,
    StoredPublication,
    StoredPublications,
)
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import LimitError, NotFoundError, RoamcastError, StoreError
from roamcast.identity.policy import RulesPolicy, subject_of
from roamcast.identity.rule_sets import PREFIX as RULES_PREFIX
from roamcast.identity.rule_sets import RuleSets
from roamcast.identity.rulebook import PUBLIC, RuleBook
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input, Store, Stored, earliest
from roamcast.model.nearest import Found, nearest
from roamcast.model.places import Places

KEYED_MAX = 100_000
"""Viewers of whom is remembered which keys they have; beyond, the first one's classes end."""


class PublishFor(Input, frozen=True):
    """Publish an object for an owner: for a lifetime, or as long as a session is open."""

    ticket: int
    owner: str
    context: Context
    session: str = ""
    lifetime_us: int | None = None


class UnpublishFor(Input, frozen=True):
    """Cancel the publication of an object that the service keeps."""

    ticket: int
    owner: str
    vid: str
    any_owner: bool = False


class SetRules(Input, frozen=True):
    """Set the privacy rules of a vid; None takes them away."""

    ticket: int
    owner: str
    vid: str
    rules: tuple[Rule, ...] | None
    any_owner: bool = False


class StoreFailed(Input, frozen=True):
    """The writes of the `Store` with this token did not reach the disk."""

    token: int
    reason: str


class Adopt(Input, frozen=True):
    """Another host had these newer: names of the store with their values, none if taken away."""

    entries: tuple[tuple[str, bytes | None], ...]


class Failed(Effect, frozen=True):
    """What was asked with this ticket was not done, and nothing has changed."""

    ticket: int
    error: RoamcastError


class Retired(Effect, frozen=True):
    """Links of this view class end: they come again into another one, with another key."""

    view_class: str


Pending = tuple[PublishFor | UnpublishFor | SetRules, StoredPublication | None]


class Broker:
    """One broker of the live service."""

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        now: int,
        stored: Mapping[str, bytes],
        map_settings: MapSettings,
        hub_settings: HubSettings | None = None,
        kept_settings: PublicationSettings | None = None,
        default_rules: Sequence[Rule] = PUBLIC,
        places: Places | None = None,
        peers: Sequence[str] = (),
    ) -> None:
        """`peers`: the hosts that may serve, by seat, this one among them; see `watchdog.py`."""
        self.viewers: dict[str, Viewer] = {}
        """Clients on links → who they are; the driver admits them."""
        self._keyed: dict[str, dict[str, None]] = {}
        """Viewers → the classes whose keys they were given."""
        self.rules = RuleBook(default_rules)
        self.policy = RulesPolicy(
            self.rules.of,
            self._viewer_of,
            names=self.rules.names,
            restricted=self.rules.restricted,
            places=places,
            used=self._classes_used,
        )
        self.server = MapServer(
            name, epoch=epoch, now=now, settings=map_settings, policy=self.policy, replicas=peers
        )
        self.hub = Hub(LocalQueries(self.server), hub_settings or HubSettings(), epoch)
        kept_settings = kept_settings or PublicationSettings()
        self.kept = StoredPublications(self.server.contexts, kept_settings)
        self.rule_sets = RuleSets(self.rules, kept_settings.publications_per_owner_max)
        self.server.contexts.publisher_of = self.rule_sets.publisher_of
        self.server.merging.keeps = self.kept.keeps
        self._session_viewers: dict[str, Viewer] = {}
        self._sessions_of: dict[str, dict[str, None]] = {}
        """Viewers → their sessions."""
        self._pending: dict[int, Pending] = {}
        self._token = 0
        self._restore(stored, now)

    def _restore(self, stored: Mapping[str, bytes], now: int) -> None:
        self.rule_sets.restore(stored)
        self.kept.restore(stored, now)
        self.server.changed(now)  # nobody watches yet

    def _viewer_of(self, client: str) -> Viewer:
        return self.viewers.get(client) or Viewer(subject_of(client))

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take an input of the broker's own, or hand it to the map server."""
        match given:
            case Stored(token):
                return self._stored(token, now)
            case StoreFailed(token, reason):
                return self._store_failed(token, reason)
            case PublishFor() | UnpublishFor() | SetRules():
                return self._ask(given, now)
            case Adopt(entries):
                return self._adopt(entries, now)
            case _:
                return self._told(self.server.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due in each machine."""
        effects = [*self.kept.expired(now)]
        if effects:
            effects += self._told(self.server.changed(now), now)
        effects += self._told(self.server.advance(now), now)
        effects += self.hub.advance(now)
        return effects

    def deadline(self) -> int | None:
        """When the first of the machines is due."""
        return earliest(self.server.deadline(), self.hub.deadline(), self.kept.deadline())

    def _told(self, effects: Sequence[Effect], now: int) -> list[Effect]:
        """Let the hub make frames of what it is told; everything else is the driver's."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, LocalUpdate):
                out += self.hub.tell(effect, now)
            else:
                out.append(effect)
        return out

    def _ask(self, given: PublishFor | UnpublishFor | SetRules, now: int) -> Sequence[Effect]:
        """Check what is asked and ask the disk; refuse with the reason before anything changes."""
        kept: StoredPublication | None = None
        write: tuple[str, bytes | None]
        try:
            match given:
                case PublishFor(_, owner, context, session, lifetime):
                    kept, write = self.kept.write(
                        context, owner, session=session, lifetime_us=lifetime, now=now
                    )
                case UnpublishFor(_, owner, vid, any_owner):
                    self._check_kept(owner, vid, any_owner)
                    write = (PREFIX + vid, None)
                case SetRules(_, owner, vid, rules, any_owner):
                    if not any_owner:
                        self.rule_sets.check_owner(vid, owner)
                        self.kept.check_owner(vid, owner)
                    write = self.rule_sets.write(owner, vid, rules, for_others=any_owner)
        except RoamcastError as error:
            return [Failed(given.ticket, error)]
        self._token += 1
        self._pending[self._token] = given, kept
        return [Store(self._token, (write,))]

    def _check_kept(self, owner: str, vid: str, any_owner: bool) -> None:
        known = self.kept.contexts.get(vid)
        if known is None or (known.owner != owner and not any_owner):
            # The same for both: whether somebody else has it may be hidden from who asks.
            raise NotFoundError(f"you have published no context {vid[:100]!r}")

    def _stored(self, token: int, now: int) -> Sequence[Effect]:
        pending = self._pending.pop(token, None)
        if pending is None:
            return ()
        given, kept = pending
        fresh = False
        self.server.desk.now = now
        effects: list[Effect] = []
        match given:
            case PublishFor():
                assert kept is not None
                is_open = kept.session in self._session_viewers
                fresh = self.kept.written(kept, open_session=is_open, now=now)
            case UnpublishFor(_, _, vid):
                self.kept.removed(vid)
            case SetRules(_, _, vid, rules):
                effects += self._tell_apart(self.rule_sets.written(vid, rules), now)
                self.server.contexts.reconsider(vid)
        effects += self._told(self.server.changed(now), now)
        effects.append(Acknowledged(given.ticket, fresh))
        return effects

    def _adopt(self, entries: Sequence[tuple[str, bytes | None]], now: int) -> list[Effect]:
        """Let come into force what another host has newer; rules before what they hide."""
        self.server.desk.now = now
        effects: list[Effect] = []
        for key, value in entries:
            if key.startswith(RULES_PREFIX):
                vid = key[len(RULES_PREFIX) :]
                effects += self._tell_apart(self.rule_sets.adopt(vid, value), now)
                self.server.contexts.reconsider(vid)
        for key, value in entries:
            if key.startswith(PREFIX):
                held = (
                    None
                    if value is None
                    else msgspec.msgpack.decode(value, type=StoredPublication).session
                )
                is_open = held in self._session_viewers
                self.kept.adopt(key[len(PREFIX) :], value, open_session=is_open, now=now)
        return effects + self._told(self.server.changed(now), now)

    def _tell_apart(self, viewers: Sequence[str], now: int) -> list[Effect]:
        """Rules name viewers for the first time: a class of its own for all sessions of each.

        They have the keys of the classes they were in: those end, and the others get new ones.
        """
        classes: dict[str, None] = {}
        sessions: list[str] = []
        for viewer in viewers:
            if viewer in self._keyed or viewer in self._sessions_of:
                classes |= self._keyed.pop(viewer, {})
                sessions += self._sessions_of.get(viewer, ())
                self.rules.keep_apart(viewer)
        effects = self._retire(classes)
        for session in sessions:
            try:
                view_class = self.policy.class_of(self._session_viewers[session])
                effects += self.hub.reclass(session, view_class, now)
            except LimitError as error:  # it may not stay where it is
                self.hub.close(session)
                effects.append(CutOff(session, f"rules: what you may see has changed, and {error}"))
        return effects

    def _retire(self, classes: Collection[str]) -> list[Effect]:
        ended = [one for one in classes if self.policy.retire(one)]
        if ended:
            for client in [*self.server.desk.clients.values()]:
                if client.view_class in ended:
                    self.server.remove(client, "its view class has ended")
        return [Retired(view_class) for view_class in ended]

    def _classes_used(self) -> Collection[str]:
        """Name the view classes that somebody is in, and forget the others."""
        used = {client.view_class for client in self.server.desk.clients.values()}
        used.update(session.view_class for session in self.hub.sessions.values())
        dissemination = self.server.dissemination
        self.server.contexts.forget_classes({*dissemination.forget_empty(used)})
        return used | dissemination.classes.keys()

    def admit(self, client: str, viewer: Viewer) -> tuple[str, list[Effect]]:
        """Let a client in by a link; give its view class, whose key it may have."""
        view_class = self.policy.class_of(viewer)
        effects: list[Effect] = []
        if viewer.name not in self._keyed and len(self._keyed) >= KEYED_MAX:
            effects = self._retire(self._keyed.pop(next(iter(self._keyed))))
            view_class = self.policy.class_of(viewer)
        self._keyed.setdefault(viewer.name, {})[view_class] = None
        self.viewers[client] = viewer
        return view_class, effects

    def dismiss(self, client: str) -> None:
        """A client's link is over."""
        self.viewers.pop(client, None)

    def _store_failed(self, token: int, reason: str) -> Sequence[Effect]:
        pending = self._pending.pop(token, None)
        if pending is None:
            return ()
        given, kept = pending
        if kept is not None:
            self.kept.failed(kept)
        elif isinstance(given, SetRules):
            self.rule_sets.settled(given.vid)
        return [Failed(given.ticket, StoreError(reason))]

    def open_session(self, name: str, viewer: Viewer, form: Format = "json") -> None:
        """Let a viewer hold a session open in this process."""
        self.hub.open(name, self.policy.class_of(viewer), form)
        self._session_viewers[name] = viewer
        self._sessions_of.setdefault(viewer.name, {})[name] = None
        self.kept.session_back(name)

    def close_session(self, name: str, now: int) -> None:
        """A session is over: what it published stays for a while."""
        viewer = self._session_viewers.pop(name, None)
        if viewer is not None:
            sessions = self._sessions_of[viewer.name]
            del sessions[name]
            if not sessions:
                del self._sessions_of[viewer.name]
        self.hub.close(name)
        self.kept.session_gone(name, now)

    def rules_for(self, owner: str, vid: str, any_owner: bool) -> tuple[Rule, ...] | None:
        """Give the rules of a vid to who set them."""
        if self.rule_sets.owner_of(vid) != owner and not any_owner:
            return None
        return self.rules.own(vid)

    def find(self, viewer: Viewer, wanted: Filter, now: int) -> list[Context]:
        """Answer a query once, as this viewer may see the map: by vid (AMS 3)."""
        found = []
        contexts = self.server.map.contexts
        for vid in sorted(self.server.contexts.candidates(wanted)):
            seen = self.policy.visible_to(contexts[vid].context, viewer, now)
            if seen is not None and wanted.matches(seen):
                found.append(seen)
        return found

    def get(self, viewer: Viewer, vid: str, now: int) -> Context | None:
        """Give one object as this viewer may see it."""
        known = self.server.map.contexts.get(vid)
        return None if known is None else self.policy.visible_to(known.context, viewer, now)

    def nearest(
        self, viewer: Viewer, to: tuple[float, float], wanted: Filter, count: int, now: int
    ) -> list[Found]:
        """Give the nearest objects that this viewer may see and a filter wants."""
        return nearest(self.find(viewer, wanted, now), to, wanted, count=count)


__all__ = [
    "Acknowledged",
    "Adopt",
    "Broker",
    "CutOff",
    "Failed",
    "Frame",
    "PublishFor",
    "Retired",
    "RulesPolicy",
    "SetRules",
    "StoreFailed",
    "UnpublishFor",
]
