"""One broker: its parts behind one router, a machine like them.

The map server under people's privacy rules, the hub for sessions in this process, the publications
and rules on disk, and their replication to other hosts. Everything that changes a broker is an
input given to `receive`; `find`, `get`, `nearest`, `rules_for` and the like only read. Nothing is
acknowledged, and nothing is shown, before it is on disk. `RulesPolicy` is the only place that
decides visibility.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Final

from roamcast.channels.failover.replication import (
    DropReplica,
    ReplicaGone,
    Replication,
    ReplicationSettings,
)
from roamcast.channels.server.map_server import MapServer, compiled_matcher
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import Format
from roamcast.channels.sessions.hub import (
    CutOff,
    Frame,
    Hub,
    LimitSession,
    SessionDrained,
    SessionSlow,
    SubscribeSession,
    UnsubscribeSession,
)
from roamcast.channels.sessions.publications import (
    PublicationSettings,
    PublishFor,
    StoredPublications,
    UnpublishFor,
)
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import LimitError
from roamcast.identity.policy import RulesPolicy, subject_of
from roamcast.identity.revocations import Revocations, RevokeTokens, TokenRevoked
from roamcast.identity.rule_sets import RuleSets, SetRules
from roamcast.identity.rulebook import PUBLIC, RuleBook
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.events import (
    Acknowledged,
    ClassesEnded,
    ClientsMoved,
    Failed,
    MapTouched,
    RulesChanged,
    SessionClosed,
    SessionOpened,
)
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Input
from roamcast.model.nearest import Found, nearest
from roamcast.model.parts import Load, Occupancy, Part, Router
from roamcast.model.places import Places
from roamcast.model.wire import Message

KEYED_MAX: Final = 100_000
"""Maximum viewers whose keys we track; beyond it the oldest viewer's classes are retired."""


class OpenSession(Input, frozen=True):
    """A viewer holds a session open in this process; one of the same name gives way."""

    ticket: int
    session: str
    viewer: Viewer
    form: Format = "json"


class CloseSession(Input, frozen=True):
    """A session's connection is over."""

    session: str


class AdmitClient(Input, frozen=True):
    """A client with a machine of its own has connected; answered by `Admitted` or `Failed`."""

    ticket: int
    client: str
    viewer: Viewer


class DismissClient(Input, frozen=True):
    """A client's connection is over."""

    client: str


class Admitted(Effect, frozen=True):
    """A client is in this view class, whose key it may have."""

    ticket: int
    view_class: str


class Retired(Effect, frozen=True):
    """Links of this view class end: their clients come again into another one, with another key."""

    view_class: str


class Admission(Part):
    """Who is connected, and in which view class.

    Viewers who may see the same share a class and its keys. When rules name a viewer for the first
    time, that viewer needs a class of its own: the classes whose keys it had are retired, so that
    it can read nothing more of them.
    """

    part: ClassVar[str] = "admission"
    inputs: ClassVar = (
        OpenSession,
        CloseSession,
        AdmitClient,
        DismissClient,
        RulesChanged,
        SessionClosed,
    )

    def __init__(self, hub: Hub, rules: RuleBook, policy: RulesPolicy) -> None:
        self.viewers: dict[str, Viewer] = {}
        """Clients on links → who they are."""
        self._hub = hub
        self._rules = rules
        self._policy = policy
        self._keyed: dict[str, dict[str, None]] = {}
        """Viewers → the classes whose keys they were given."""
        self._clients_of: dict[str, dict[str, None]] = {}
        """Viewers → their clients on links."""
        self._session_viewers: dict[str, Viewer] = {}
        self._sessions_of: dict[str, dict[str, None]] = {}
        """Viewers → their sessions."""

    def occupancy(self) -> Occupancy:
        """How many viewers are tracked."""
        return {"keyed viewers": (len(self._keyed), KEYED_MAX)}

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take connections that come and go, and rules that name viewers."""
        match given:
            case OpenSession(ticket):
                try:
                    return [*self._open(given), Acknowledged(ticket)]
                except LimitError as error:
                    return [Failed(ticket, error)]
            case CloseSession(session):
                if session not in self._session_viewers:
                    return ()
                return [*self._hub.close(session), SessionClosed(session)]
            case SessionClosed(session):
                self._forget(session)
                return ()
            case AdmitClient(ticket, client, viewer):
                try:
                    return self._admit(ticket, client, viewer)
                except LimitError as error:
                    return [Failed(ticket, error)]
            case DismissClient(client):
                self._dismiss(client)
                return ()
            case RulesChanged(_, viewers):
                return self._tell_apart(viewers, now)
            case _:
                raise AssertionError(f"admission takes no {type(given).__name__}")

    def _open(self, given: OpenSession) -> list[Effect]:
        name, viewer = given.session, given.viewer
        view_class = self._policy.class_of(viewer)
        effects: list[Effect] = []
        if name in self._session_viewers:
            # It is not closed for the other parts: under the same name it goes on.
            effects += self._hub.close(name)
            self._forget(name)
            effects.append(CutOff(name, "replaced: the same device connected again"))
        self._hub.open(name, view_class, given.form)
        self._session_viewers[name] = viewer
        self._sessions_of.setdefault(viewer.name, {})[name] = None
        return [*effects, SessionOpened(name)]

    def _forget(self, name: str) -> None:
        viewer = self._session_viewers.pop(name, None)
        if viewer is not None:
            sessions = self._sessions_of[viewer.name]
            del sessions[name]
            if not sessions:
                del self._sessions_of[viewer.name]

    def _admit(self, ticket: int, client: str, viewer: Viewer) -> list[Effect]:
        view_class = self._policy.class_of(viewer)
        effects: list[Effect] = []
        if viewer.name not in self._keyed and len(self._keyed) >= KEYED_MAX:
            effects = self._retire(self._keyed.pop(next(iter(self._keyed))))
            view_class = self._policy.class_of(viewer)
        self._keyed.setdefault(viewer.name, {})[view_class] = None
        self._dismiss(client)
        self.viewers[client] = viewer
        self._clients_of.setdefault(viewer.name, {})[client] = None
        return [*effects, Admitted(ticket, view_class)]

    def _dismiss(self, client: str) -> None:
        viewer = self.viewers.pop(client, None)
        if viewer is not None:
            clients = self._clients_of[viewer.name]
            del clients[client]
            if not clients:
                del self._clients_of[viewer.name]

    def _tell_apart(self, viewers: Sequence[str], now: int) -> list[Effect]:
        """Give viewers whom rules name for the first time a class of their own."""
        classes: dict[str, None] = {}
        sessions: list[str] = []
        clients: list[str] = []
        for viewer in viewers:
            if viewer in self._keyed or viewer in self._sessions_of:
                classes |= self._keyed.pop(viewer, {})
                sessions += self._sessions_of.get(viewer, ())
                # A client registers later than it is admitted: it may be in another class than
                # the one whose key it was given, if rules changed in between.
                clients += self._clients_of.get(viewer, ())
                self._rules.keep_apart(viewer)
        ended = self._retire(classes)
        effects: list[Effect] = []
        for session in sessions:
            try:
                view_class = self._policy.class_of(self._session_viewers[session])
                effects += self._hub.reclass(session, view_class, now)
            except LimitError as error:  # it may not stay in its class, and there is no other
                effects += self._hub.close(session)
                reason = f"rules: what you may see has changed, and {error}"
                effects += [CutOff(session, reason), SessionClosed(session)]
        # Last: what leaves with clients of ended classes is an update of the new subscriptions.
        moved = [ClientsMoved(tuple(clients))] if clients else []
        return [*effects, *moved, *ended]

    def _retire(self, classes: Collection[str]) -> list[Effect]:
        ended = [view_class for view_class in classes if self._policy.retire(view_class)]
        if not ended:
            return []
        return [ClassesEnded(tuple(ended)), *map(Retired, ended)]


class Broker:
    """One broker, live or simulated."""

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        now: int,
        load: Load,
        stamp: int = 0,
        map_settings: MapSettings,
        hub_settings: HubSettings | None = None,
        publication_settings: PublicationSettings | None = None,
        replication_settings: ReplicationSettings | None = None,
        default_rules: Sequence[Rule] = PUBLIC,
        places: Places | None = None,
        replicas: Sequence[str] = (),
        make_matcher: Callable[[], Matcher] = compiled_matcher,
    ) -> None:
        """`load` reads stored values by prefix, `stamp` is the newest one on this disk.

        `replicas`: the hosts that may serve this node, by seat, this one among them.
        """
        self.name = name
        self.epoch = epoch
        publication_settings = publication_settings or PublicationSettings()
        rules = RuleBook(default_rules)
        self._policy = RulesPolicy(
            rules.of,
            self._viewer_of,
            names=rules.names,
            restricted=rules.restricted,
            places=places,
            used=self._classes_used,
        )
        self._rules = rules
        self._server = MapServer(
            name,
            epoch=epoch,
            now=now,
            settings=map_settings,
            policy=self._policy,
            make_matcher=make_matcher,
            replicas=replicas,
        )
        self._hub = Hub(LocalQueries(self._server), hub_settings or HubSettings(), epoch)
        self._publications = StoredPublications(self._server, publication_settings)
        self._rule_sets = RuleSets(
            rules, publication_settings.publications_per_owner_max, self._publications.check_owner
        )
        self._server.contexts.publisher_of = self._rule_sets.publisher_of
        self._server.merging.is_stored = self._publications.holds
        self._admission = Admission(self._hub, rules, self._policy)
        self._replication = Replication(
            name,
            epoch=epoch,
            replicas=replicas,
            stamp=stamp,
            settings=replication_settings or ReplicationSettings(),
        )
        # The order is that of events and of restoring: rules before what they hide, who may see
        # before what is shown, the store before the map that is handed over with it.
        self._router = Router(
            (
                self._replication,
                self._rule_sets,
                self._admission,
                self._publications,
                Revocations(),
                self._server,
                self._hub,
            ),
            disk=self._replication,
        )
        self._router.restore(load, now)
        self._router.receive_event(MapTouched(), now)  # nobody subscribes yet

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take one input."""
        return self._router.receive(given, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Do what is due in each part."""
        return self._router.advance(now)

    def deadline(self) -> int | None:
        """When the first part is due."""
        return self._router.deadline()

    def occupancy(self) -> Occupancy:
        """How much each part holds, and the bound of each."""
        return self._router.occupancy()

    def _viewer_of(self, client: str) -> Viewer:
        return self._admission.viewers.get(client) or Viewer(subject_of(client))

    def _classes_used(self) -> Collection[str]:
        """Name the view classes that somebody is in, and forget the others."""
        used = {client.view_class for client in self._server.desk.clients.values()}
        used.update(session.view_class for session in self._hub.sessions.values())
        dissemination = self._server.dissemination
        self._server.contexts.forget_classes({*dissemination.forget_empty(used)})
        return used | dissemination.classes.keys()

    # --- reads: none of these changes anything --------------------------------------------------

    def takes(self, message: Message) -> bool:
        """Whether a message of another host or client is for this broker."""
        return self._router.takes(message)

    @property
    def map_settings(self) -> MapSettings:
        """How large and how patient the map service is; clients are told."""
        return self._server.settings

    def held(self) -> dict[str, int]:
        """How much is held of what, for metrics."""
        server, replication = self._server, self._replication
        return {
            "contexts": len(server.map),
            "clients": len(server.desk.clients),
            "sessions": len(self._hub.sessions),
            "queries": server.subscriptions.records,
            "channels": len(server.desk.channels),
            "followers": replication.current,
            "entries behind": replication.behind,
        }

    def class_of_group(self, group: str) -> str | None:
        """Name the view class whose channel a group is."""
        use = self._server.desk.channels.get(group)
        return None if use is None else use.view_class

    def class_of_client(self, client: str) -> str:
        """Name the view class a client would be in if it came now."""
        return self._policy.name_of(self._viewer_of(client))

    def rules_for(self, owner: str, vid: str, any_owner: bool) -> tuple[Rule, ...] | None:
        """Give the rules of a vid to who set them."""
        if self._rule_sets.owner_of(vid) != owner and not any_owner:
            return None
        return self._rules.own(vid)

    def find(self, viewer: Viewer, wanted: Filter, now: int) -> list[Context]:
        """Answer a query once, as this viewer may see the map: by vid (AMS 3)."""
        found = []
        contexts = self._server.map.contexts
        for vid in sorted(self._server.contexts.candidates(wanted)):
            seen = self._policy.visible_to(contexts[vid].context, viewer, now)
            if seen is not None and wanted.matches(seen):
                found.append(seen)
        return found

    def get(self, viewer: Viewer, vid: str, now: int) -> Context | None:
        """Give one context as this viewer may see it."""
        known = self._server.map.contexts.get(vid)
        return None if known is None else self._policy.visible_to(known.context, viewer, now)

    def nearest(
        self, viewer: Viewer, to: tuple[float, float], wanted: Filter, count: int, now: int
    ) -> list[Found]:
        """Give the nearest contexts that this viewer may see and a filter wants."""
        return nearest(self.find(viewer, wanted, now), to, wanted, count=count)


__all__ = [
    "Acknowledged",
    "AdmitClient",
    "Admitted",
    "Broker",
    "CloseSession",
    "CutOff",
    "DismissClient",
    "DropReplica",
    "Failed",
    "Frame",
    "LimitSession",
    "OpenSession",
    "PublishFor",
    "ReplicaGone",
    "Retired",
    "RevokeTokens",
    "SessionDrained",
    "SessionSlow",
    "SetRules",
    "SubscribeSession",
    "TokenRevoked",
    "UnpublishFor",
    "UnsubscribeSession",
]
