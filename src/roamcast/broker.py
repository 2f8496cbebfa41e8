"""One broker: its parts behind one router, a machine like them.

The map server under people's privacy rules, the hub for sessions in this process, the publications
and rules on disk, and their replication to other hosts. Everything that changes a broker is an
input given to `receive`; `find`, `get`, `nearest`, `rules_for` and the like only read. Nothing is
acknowledged, and nothing is shown, before it is on disk. `RulesPolicy` is the only place that
decides visibility.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.failover.replication import (
    DropReplica,
    ReplicaGone,
    Replication,
    ReplicationSettings,
)
from roamcast.channels.past.part import Lives, Past
from roamcast.channels.past.settings import PastSettings
from roamcast.channels.server.live_views import SMALL_MAX
from roamcast.channels.server.map_server import MapServer, compiled_matcher
from roamcast.channels.server.queries import Matcher
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.server.subscriptions import LocalQueries
from roamcast.channels.sessions.events import (
    CutOff,
    Format,
    Frame,
    LimitSession,
    SessionDrained,
    SessionSlow,
    SubscribedMany,
    SubscribeSession,
    SubscribeSessionMany,
    UnsubscribeSession,
)
from roamcast.channels.sessions.hub import Hub
from roamcast.channels.sessions.publications import (
    PublicationSettings,
    PublishFor,
    StoredPublication,
    StoredPublications,
    UnpublishFor,
)
from roamcast.channels.sessions.settings import HubSettings
from roamcast.channels.sessions.webhooks import (
    CheckWebhook,
    PostWebhook,
    RegisterWebhook,
    RemoveWebhook,
    Webhook,
    WebhookAnswered,
    WebhookChecked,
    WebhookFrame,
    Webhooks,
    WebhookSettings,
)
from roamcast.errors import LimitError
from roamcast.identity.live_blur import EXACT, LiveBlur
from roamcast.identity.policy import PUBLIC, RuleBook, RulesPolicy, is_own, subject_of
from roamcast.identity.revocations import Revocations, RevokeTokens, TokenRevoked
from roamcast.identity.rule_sets import RuleSets, SetRules
from roamcast.identity.rules import Rule, Viewer, both_show, visible
from roamcast.identity.vid_keys import KeepVidKey, VidKeyStore
from roamcast.matching.live.slices import ContextPage, Question, one_by_one, run
from roamcast.model.areas import Area
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
    SessionRequested,
)
from roamcast.model.filters import Filter
from roamcast.model.filters.price import Price
from roamcast.model.machine import Effect, Input
from roamcast.model.nearest import Found
from roamcast.model.parts import Load, Occupancy, Part, Router
from roamcast.model.places import Places
from roamcast.overlay.casts.casts import Casts
from roamcast.overlay.casts.consents import ConsentRequest, Consents
from roamcast.overlay.casts.messages import CAST_KINDS, CastBody, CastView
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.consumers.desk import EventDesk
from roamcast.overlay.consumers.drain import Drain, DrainView
from roamcast.overlay.consumers.searching import SearchDesk
from roamcast.overlay.consumers.settings import EventSettings
from roamcast.overlay.filters.part import NodeFilterView
from roamcast.overlay.handoff.events import AttachConsumer
from roamcast.overlay.handoff.settings import living_surroundings
from roamcast.overlay.overlay import Overlay, OverlayNode, OverlayView, lone_events

RULES_DECODED: Final = 4_096

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

    Clients on links who may see the same share a class and its keys. When rules name a viewer for
    the first time, its links need a class of their own: the classes whose keys it had are retired,
    so that it can read nothing more of them. Sessions have no keys: they stay in the class of their
    groups, and see otherwise what names them (0320).
    """

    part: ClassVar[str] = "admission"
    inputs: ClassVar = (
        OpenSession,
        CloseSession,
        AdmitClient,
        DismissClient,
        RulesChanged,
        SessionClosed,
        SessionRequested,
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
            case SessionRequested(session, viewer, groups):
                opens = OpenSession(0, session, Viewer(viewer, groups), "sse")
                return self.receive(opens if viewer else CloseSession(session), now)
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
                return self._tell_apart(viewers)
            case _:
                raise AssertionError(f"admission takes no {type(given).__name__}")

    def _open(self, given: OpenSession) -> list[Effect]:
        name, viewer = given.session, given.viewer
        view_class = self._policy.shared_class_of(viewer)
        effects: list[Effect] = []
        if name in self._session_viewers:
            # It is not closed for the other parts: under the same name it goes on.
            effects += self._hub.close(name)
            self._forget(name)
            effects.append(CutOff(name, "replaced: the same device connected again"))
        self._hub.check_room()
        self._hub.open(name, view_class, given.form, viewer=self._policy.enter(viewer))
        self._session_viewers[name] = viewer
        return [*effects, SessionOpened(name)]

    def _forget(self, name: str) -> None:
        viewer = self._session_viewers.pop(name, None)
        if viewer is not None:
            self._policy.leave(viewer)

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

    def _tell_apart(self, viewers: Sequence[str]) -> list[Effect]:
        """Give the links of viewers whom rules name for the first time a class of their own."""
        classes: dict[str, None] = {}
        clients: list[str] = []
        for viewer in viewers:
            if viewer in self._keyed:
                classes |= self._keyed.pop(viewer)
                # A client registers later than it is admitted: it may be in another class than
                # the one whose key it was given, if rules changed in between.
                clients += self._clients_of.get(viewer, ())
                self._rules.keep_apart(viewer)
        ended = self._retire(classes)
        # Last: what leaves with clients of ended classes is an update of the new subscriptions.
        moved = [ClientsMoved(tuple(clients))] if clients else []
        return [*moved, *ended]

    def _retire(self, classes: Collection[str]) -> list[Effect]:
        ended = [view_class for view_class in classes if self._policy.retire(view_class)]
        if not ended:
            return []
        return [ClassesEnded(tuple(ended)), *map(Retired, ended)]


Charge = Callable[[Viewer, Filter, int], None]
"""Charges a viewer for a current set, of which a relay pays one share; raises what is too dear."""


class Memory(msgspec.Struct, frozen=True):
    """A broker's share of a question about the past: steps that wait, lives, and who may see."""

    waiting: list[tuple[str, bytes]]
    known: Lives
    seen: Callable[[Context, str], Context | None]
    whole: Callable[[str, str], bool]
    """Whether everybody sees all of a vid, by the rules of then and of now."""


@lru_cache(RULES_DECODED)
def _decoded_rules(encoded: bytes | None) -> tuple[Rule, ...] | None:
    """Read the rules of a past context; without them nobody may see it."""
    return None if encoded is None else msgspec.msgpack.decode(encoded, type=tuple[Rule, ...])


class Broker(Router):
    """One broker, live or simulated: its parts, their order, and what may be read of them."""

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
        webhook_settings: WebhookSettings | None = None,
        past_settings: PastSettings | None = None,
        cast_settings: CastSettings | None = None,
        event_settings: EventSettings | None = None,
        default_rules: Sequence[Rule] = PUBLIC,
        own_vids: bool = False,
        places: Places | None = None,
        replicas: Sequence[str] = (),
        trusted_nodes: Collection[str] = (),
        make_matcher: Callable[[], Matcher] = compiled_matcher,
        overlay: OverlayNode | None = None,
        charge: Charge | None = None,
        key_of: Callable[[str], bytes | None] | None = None,
        blur: LiveBlur = EXACT,
    ) -> None:
        """`load` reads stored values by prefix, `stamp` is the newest one on this disk.

        `own_vids`: vids that could be guessed begin with their publisher's name (0098).
        `replicas`: the hosts that may serve this node, by seat, this one among them.
        `trusted_nodes`: those whose vids belong to who registered them alone. `overlay`: what
        makes this broker a node of many; without it, it has no part of the overlay.
        `event_settings`: sessions publish and subscribe to events, with an overlay or without;
        None: they do not. `charge` is asked before a client on a link gets a current set. `key_of`
        gives a vid's sealing key; without one, what vids registered here is asked. `blur` rounds
        what is shown of pseudonyms; casts are matched with what was (0220).
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
            names_of=rules.names_of,
            naming=rules.naming,
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
        if charge is not None:
            self._server.subscriptions.charge = lambda client, wanted, shares: charge(
                self._viewer_of(client), wanted, shares
            )
        self._hub = Hub(LocalQueries(self._server), hub_settings or HubSettings(), epoch)
        self._webhooks = Webhooks(webhook_settings or WebhookSettings(), epoch)
        self._replication = Replication(
            name,
            epoch=epoch,
            replicas=replicas,
            stamp=stamp,
            settings=replication_settings or ReplicationSettings(),
        )
        self._past = Past(
            epoch=epoch,
            now=now,
            settings=past_settings or PastSettings(),
            stamp=self._replication.stamp,
            rules_of=rules.encoded,
        )
        self._server.past = self._server.contexts.past = self._past
        self._publications = StoredPublications(self._server, publication_settings, self._past)
        self._rule_sets = RuleSets(
            rules,
            publication_settings.publications_per_owner_max,
            publication_settings.rule_names_per_owner_max,
            self._publications.check_owner,
        )
        self._server.contexts.publishers = self._rule_sets.publishers
        self._server.contexts.trusted_nodes = frozenset(trusted_nodes)
        self.blur = blur
        if blur.grid_s:
            self._server.contexts.blurred = blur.shown
        if own_vids:
            self._server.contexts.may_name = is_own
        self._server.merging.is_stored = self._publications.holds
        self._admission = Admission(self._hub, rules, self._policy)
        self._vid_keys = VidKeyStore()
        self.overlay: Overlay | None = None
        self.events: EventDesk | None = None
        self.drain: Drain | None = None
        if overlay is not None:
            node = msgspec.structs.replace(overlay, kinds=overlay.kinds | CAST_KINDS)
            if event_settings is not None:
                event_settings = self._surrounded(event_settings, node.name, places)
                node = msgspec.structs.replace(
                    node,
                    flows=event_settings.flows,
                    handoff=event_settings.handoff,
                    homes=event_settings.homes,
                )
            self.overlay = Overlay(node, epoch=epoch, now=now)
            self.overlay.feeding.under(rules.is_public, rules.restricted)
            self._server.contexts.check_place = self.overlay.feeding.check_place
            self._past.followers.append(self.overlay.feeding)
            self._past.companions = self.overlay.feeding.unstored
            if self.overlay.states is not None:
                self._hub.placing.remote = self.overlay.states
                public = partial(self._policy.class_of, Viewer(""))
                self.overlay.states.under(LocalQueries(self._server), public)
        self._casts = Casts(
            cast_settings or CastSettings(),
            now=now,
            draw=(lambda: 0.5) if overlay is None else overlay.draw,
            see=self._policy.visible_to,
            state_of=self._state_of,
            key_of=key_of or self._vid_keys.key_of,
            trusted_nodes=trusted_nodes,
            make_matcher=make_matcher,
            overlay=self.overlay,
        )
        self._past.followers.append(self._casts)
        self._consents = Consents(self._casts.is_known)
        events = self._event_parts(event_settings, epoch)
        # The order is that of events and of restoring: rules before what they hide, who may see
        # before what is shown, the store before the map that is handed over with it.
        super().__init__(
            (
                self._replication,
                self._rule_sets,
                self._past,
                self._admission,
                self._publications,
                Revocations(),
                self._vid_keys,
                self._server,
                self._hub,
                self._webhooks,
                *(self.overlay.parts if self.overlay is not None else ()),
                self._casts,
                self._consents,
                *events,
            ),
            disk=self._replication,
        )
        self.restore(load, now)
        if self.overlay is not None and (stamp or self._past.lives):
            self.overlay.feeding.unknown_until(now + self._past.settings.return_us)
        self.receive_event(MapTouched(), now)  # nobody subscribes yet

    def _surrounded(
        self, settings: EventSettings, node: str, places: Places | None
    ) -> EventSettings:
        """Let handoff know the places' own neighbours, and which node serves each."""
        if places is None:
            return settings

        def near(path: str) -> tuple[str, ...]:
            return places[path].neighbours if path in places else ()

        def node_at(path: str) -> str | None:
            return None if self.overlay is None else self.overlay.feeding.node_at(path)

        around = living_surroundings(node, near, node_at)
        borders, known, least = around.borders, settings.transitions, settings.transitions_least

        def likely(path: str) -> tuple[str, ...]:
            return known.likely(path, borders(path), node_at, least=least)

        def nodes_at(points: Sequence[tuple[float, float]]) -> list[str | None]:
            found = places.deepest_many(points).tolist()
            return [None if one < 0 else node_at(places.path(one)) for one in found]

        def shaped(path: str) -> tuple[str, ...]:
            drawn = [one for one in near(path) if one in places and places.polygon(one) is not None]
            return tuple(node for one in drawn if (node := node_at(one)) is not None)

        around = msgspec.structs.replace(around, borders=likely, nodes_at=nodes_at, shaped=shaped)
        handoff = msgspec.structs.replace(settings.handoff, surroundings=around)
        return msgspec.structs.replace(settings, handoff=handoff)

    def _event_parts(self, settings: EventSettings | None, epoch: int) -> tuple[Part, ...]:
        """Make what sessions use of the event plane, and the plane itself where no node has it."""
        if settings is None:
            return ()
        alone: tuple[Part, ...] = ()
        if self.overlay is None:
            alone = flows, handoff, serving, *_ = lone_events(
                self.name, settings.flows, settings.handoff, settings.homes, epoch=epoch
            )
        else:
            assert self.overlay.flows is not None
            assert self.overlay.handoff is not None
            assert self.overlay.serving is not None
            flows, handoff = self.overlay.flows, self.overlay.handoff
            serving = self.overlay.serving
        self.events = EventDesk(
            self._hub,
            self._policy,
            settings,
            check_owner=self._publications.check_owner,
            served=lambda: flows.home.consumers,
            check_attach=lambda given, now: (
                handoff.check(given)
                if isinstance(given, AttachConsumer)
                else serving.check(given, now)
            ),
            nodes=self._urls,
            standing=self._server.subscriptions.standing,
        )
        desk = self.events
        handoff.spent = desk.spent
        self._server.subscriptions.standing.others = desk.__len__
        self.drain = Drain(
            self._hub,
            consumers_of=desk.consumers_of,
            consumers=desk.consumers,
            prepared=handoff.prepared,
            nodes=self._other_nodes,
        )
        search = SearchDesk(
            self.node,
            hop_us=settings.homes.hop_us,
            modulated_of=desk.modulated_of,
            nodes=self._urls,
        )
        return (*alone, self.events, search, self.drain)

    def _urls(self) -> dict[str, str]:
        """Give the nodes that are known, and where people reach each."""
        nodes = [] if self.overlay is None else self.overlay.feeding.nodes()
        return {one.node: one.url for one in nodes}

    def _other_nodes(self) -> dict[str, str]:
        """Give the other nodes in reach, and where people reach each."""
        if self.overlay is None:
            return {}
        reach = self.overlay.topology.tree
        others = [one for one in self.overlay.feeding.nodes() if one.node in reach]
        return {one.node: one.url for one in others if one.node != self.node}

    def _state_of(self, vid: str) -> Context | None:
        known = self._server.map.contexts.get(vid)
        return None if known is None else known.context

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

    @property
    def map_settings(self) -> MapSettings:
        """How large and how patient the map service is; clients are told."""
        return self._server.settings

    @property
    def node(self) -> str:
        """The name of this broker among nodes; its own if it is none."""
        return self.name if self.overlay is None else self.overlay.links.node

    def check_place(self, place: str) -> None:
        """Refuse a place that another node serves, and say where that is."""
        if self.overlay is not None:
            self.overlay.feeding.check_place(place)

    def drain_view(self) -> DrainView:
        """Say how far the drain of this node has come."""
        return DrainView(False) if self.drain is None else self.drain.view()

    def check_newcomer(self) -> None:
        """Refuse a session while this node is drained, and say where to go."""
        if self.drain is not None:
            self.drain.check_newcomer()

    def sessions_of(self, client: str) -> dict[str, int]:
        """Give a client's open sessions, and how many subscriptions of events each has."""
        found = [one for one in self._hub.sessions if client in (one, subject_of(one))]
        desk = self.events
        return {one: 0 if desk is None else len(desk.consumers_of(one)) for one in found}

    def overlay_view(self) -> OverlayView | None:
        """Describe this node among others; None for a broker on its own."""
        return None if self.overlay is None else self.overlay.view()

    def cast_view(self, cast: str) -> CastView:
        """Say how far a cast that was sent here has come, with exact counts."""
        return self._casts.view(cast)

    def consents(self) -> dict[str, ConsentRequest]:
        """Give the casts that wait for a second person's consent, by their ids."""
        return self._consents.waiting()

    def cast_leaves(self, area: Area) -> bool:
        """Say whether a cast to an area may find people at other nodes."""
        return self._casts.leaves(area)

    def cast_body(self, cast: str) -> CastBody | None:
        """Give a cast that is held here, None where there is none; its sender may know it."""
        held = self._casts.casts.get(cast)
        return None if held is None else held.body

    def placement_view(self) -> NodeFilterView | None:
        """Describe which nodes match what passes; None for a broker on its own."""
        return None if self.overlay is None else self.overlay.filters.view()

    def held(self) -> dict[str, int]:
        """How much is held of what, for metrics."""
        server, replication = self._server, self._replication
        return {
            "contexts": len(server.map),
            "clients": len(server.desk.clients),
            "sessions": len(self._hub.sessions),
            "coalesced": self._hub.coalesced,
            "queries": server.subscriptions.records,
            "channels": len(server.desk.channels),
            "bands": server.dissemination.bands,
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

    def key_of(self, vid: str) -> bytes | None:
        """Give the key that casts to a vid are sealed to; None where nobody registered it here."""
        return self._vid_keys.key_of(vid)

    def rules_for(self, owner: str, vid: str, any_owner: bool) -> tuple[Rule, ...] | None:
        """Give the rules of a vid to who set them."""
        if self._rule_sets.owner_of(vid) != owner and not any_owner:
            return None
        return self._rules.own(vid)

    @property
    def default_rules(self) -> Sequence[Rule]:
        """The rules of vids that have none of their own."""
        return self._rules.default

    def publication_for(self, owner: str, vid: str) -> StoredPublication | None:
        """Give a publication to who published it, through a session or over HTTP."""
        known = self._publications.publications.get(vid)
        return known if known is not None and known.owner == owner else None

    def webhooks_of(self, owner: str) -> list[Webhook]:
        """Give the webhooks of an owner."""
        return self._webhooks.owned_by(owner)

    def webhooks(self) -> list[Webhook]:
        """Give all webhooks."""
        return [*self._webhooks.webhooks.values()]

    def find(self, viewer: Viewer, wanted: Filter, now: int) -> list[Context]:
        """Answer a query once, as this viewer may see the map: by vid (AMS 3)."""
        live = self._server.contexts.live
        return run(live.every(self._policy.name_of(viewer), self._seen_by(viewer), wanted, now))

    def page(
        self, viewer: Viewer, wanted: Filter, now: int, *, after: str, limit: int
    ) -> Question[ContextPage]:
        """Ask for the first contexts after a vid, in slices: the driver serves others between."""
        live = self._server.contexts.live
        name = self._policy.name_of(viewer)
        return live.page(name, self._seen_by(viewer), wanted, now, after, limit)

    def prepared(self, viewer: Viewer, now: int) -> Question[None] | None:
        """Make the map ready for a viewer's subscription, in slices; None if it is, or nearly."""
        live, who = self._server.contexts.live, [Viewer("", viewer.groups)]
        naming = self._policy.naming(viewer.name) if viewer.name else ()
        if naming is None or len(naming) > SMALL_MAX:
            who.append(viewer)  # much may lie apart for it
        steps = [live.prepared(self._policy.name_of(one), self._seen_by(one), now) for one in who]
        return one_by_one([step for step in steps if step is not None]) if any(steps) else None

    def count(self, viewer: Viewer, wanted: Filter, now: int) -> Question[int]:
        """Ask how many contexts this viewer may see and a filter wants, in slices."""
        live = self._server.contexts.live
        return live.count(self._policy.name_of(viewer), self._seen_by(viewer), wanted, now)

    def price(self, viewer: Viewer, wanted: Filter, now: int) -> Price:
        """Give the price of a question before it is asked."""
        return self._server.contexts.live.price(self._policy.name_of(viewer), wanted, now)

    def steps(self, viewer: Viewer, wanted: Sequence[Filter], now: int) -> list[int]:
        """Give the steps of each of some questions: what their prices charge."""
        live, view_class = self._server.contexts.live, self._policy.name_of(viewer)
        return [live.work(view_class, each, now)[1] for each in wanted]

    def _seen_by(self, viewer: Viewer) -> Callable[[Context, int], Context | None]:
        return lambda context, now: self._policy.visible_to(context, viewer, now)

    @property
    def past_stays_us(self) -> int:
        """How long a context stays in the log after its end."""
        return self._past.settings.store_us

    def remembers(self, viewer: Viewer, now: int) -> "Memory":
        """Give what a question about the past needs of this broker, as of now.

        Read the log after this, and the archive after the log (`channels/past/asking.py`).
        """
        return Memory(
            self._past.waiting,
            self._past.known(now),
            partial(self._seen_then, viewer, now),
            self._whole,
        )

    def _whole(self, vid: str, rules: str) -> bool:
        return not rules and self._rules.public and self._rules.is_public(vid)

    def _seen_then(self, viewer: Viewer, now: int, context: Context, rules: str) -> Context | None:
        """Give what a viewer may see of a past context: by its rules then, and by those of now."""
        if self._whole(context.vid, rules):
            return context  # soon decided: questions about the past ask for every context
        then: Sequence[Rule] | None = self._rules.default
        if rules:
            then = _decoded_rules(self._past.rules.get(rules))
        places = self._policy.places
        shown = None if then is None else visible(context, then, viewer, now, places)
        own = self._rules.own(context.vid)
        if shown is None or own is None:
            return shown
        now_shown = visible(context, own, viewer, now, places)
        return None if now_shown is None else both_show(shown, now_shown)

    def get(self, viewer: Viewer, vid: str, now: int) -> Context | None:
        """Give one context as this viewer may see it; its owner sees all of it."""
        known = self._server.map.contexts.get(vid)
        if known is None or self._policy.owns(viewer, vid):
            return None if known is None else known.context
        return self._policy.visible_to(known.context, viewer, now)

    def nearest(
        self, viewer: Viewer, to: tuple[float, float], wanted: Filter, count: int, now: int
    ) -> Question[list[Found]]:
        """Ask for the nearest contexts that this viewer may see and a filter wants, in slices."""
        live = self._server.contexts.live
        name = self._policy.name_of(viewer)
        return live.nearest(name, self._seen_by(viewer), wanted, now, to, count)


__all__ = [
    "Acknowledged",
    "AdmitClient",
    "Admitted",
    "Broker",
    "CheckWebhook",
    "CloseSession",
    "CutOff",
    "DismissClient",
    "DropReplica",
    "Failed",
    "Frame",
    "KeepVidKey",
    "LimitSession",
    "OpenSession",
    "PostWebhook",
    "PublishFor",
    "RegisterWebhook",
    "RemoveWebhook",
    "ReplicaGone",
    "Retired",
    "RevokeTokens",
    "SessionDrained",
    "SessionSlow",
    "SetRules",
    "SubscribeSession",
    "SubscribeSessionMany",
    "SubscribedMany",
    "TokenRevoked",
    "UnpublishFor",
    "UnsubscribeSession",
    "WebhookAnswered",
    "WebhookChecked",
    "WebhookFrame",
]
