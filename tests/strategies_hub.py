"""A broker with sessions in one process and no clock: what each session has read so far."""

from collections.abc import Sequence
from typing import Any

import msgspec

from roamcast.broker import (
    Acknowledged,
    AdmitClient,
    Admitted,
    Broker,
    CloseSession,
    CutOff,
    DismissClient,
    Failed,
    Frame,
    LimitSession,
    OpenSession,
    PublishFor,
    Retired,
    SessionDrained,
    SessionSlow,
    SetRules,
    SubscribedMany,
    SubscribeSession,
    SubscribeSessionMany,
    UnpublishFor,
    UnsubscribeSession,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.channels.sessions import messages
from roamcast.channels.sessions.publications import PublicationSettings
from roamcast.channels.sessions.settings import HubSettings
from roamcast.errors import RoamcastError
from roamcast.identity.rules import Rule, Viewer
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.machine import Effect, Entry, Input, Store, Stored
from roamcast.model.parts import Adopt

START = 1_700_000_000_000_000


class Reader:
    """What a session's program has read: its watches' views, and every frame's size and time."""

    def __init__(self) -> None:
        self.views: dict[int, dict[str, Any]] = {}
        self.query_of: dict[str, int] = {}
        self.complete: set[int] = set()
        self.frames: list[tuple[int, int]] = []
        self.pending = 0
        self.cut = ""

    def read(self, data: bytes, now: int) -> None:
        self.frames.append((now, len(data)))
        described = msgspec.json.decode(data, type=messages.Answer)
        assert msgspec.json.encode(described) == data, "a frame differs from its struct"
        frame = msgspec.json.decode(data)
        if frame["type"] == "subscribed":
            self.query_of[frame["re"]] = frame["query"]
            self.views[frame["query"]] = {one["id"]: one for one in frame["features"]}
        elif frame["type"] == "current":
            self.complete.add(frame["query"])
        else:
            self.pending = frame.get("pending", 0)
            view = self.views[frame["query"]]
            for event in frame["events"]:
                kind = event["type"].rpartition(".")[2]
                vid = event["subject"]
                assert (vid in view) == (kind != "appeared"), (kind, vid)
                if kind == "left":
                    del view[vid]
                else:
                    view[vid] = event["data"]


class Desk:
    """A broker, a disk that always works, and readers."""

    def __init__(
        self,
        hub: HubSettings | None = None,
        publications: PublicationSettings | None = None,
        map_settings: MapSettings | None = None,
        *,
        own_vids: bool = False,
    ) -> None:
        self.own_vids = own_vids
        self.hub_settings, self.publication_settings = hub, publications
        self.map_settings = map_settings or MapSettings()
        self.now = START
        self.disk: dict[str, bytes] = {}
        self.readers: dict[str, Reader] = {}
        self.answers: dict[int, Effect] = {}
        self.retired: list[str] = []
        self.tickets = 0
        self.boot()

    def boot(self) -> None:
        self.broker = Broker(
            "test",
            epoch=self.now,
            now=self.now,
            load=self.load,
            map_settings=self.map_settings,
            hub_settings=self.hub_settings,
            publication_settings=self.publication_settings,
            own_vids=self.own_vids,
        )

    def load(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self.disk.items() if key.startswith(prefix)}

    def carry(self, effects: Any) -> None:
        for effect in list(effects):
            match effect:
                case Store(token, writes):
                    for key, value in writes:
                        if value is None:
                            self.disk.pop(key, None)
                        else:
                            self.disk[key] = value
                    self.give(Stored(token))
                case Frame(sessions, data):
                    for session in sessions:
                        self.readers[session].read(data, self.now)
                case CutOff(session, reason):
                    self.readers[session].cut = reason
                case Retired(view_class):
                    self.retired.append(view_class)
                case (
                    Acknowledged(ticket)
                    | Failed(ticket)
                    | Admitted(ticket)
                    | SubscribedMany(ticket)
                ):
                    self.answers[ticket] = effect

    def give(self, given: Input) -> None:
        self.carry(self.broker.receive(given, self.now))

    def request(self, make: Any, *given: Any) -> Effect:
        """Give an input with a ticket, and its answer back; raise if it was refused."""
        self.tickets += 1
        self.give(make(self.tickets, *given))
        answer = self.answers[self.tickets]
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def adopt(self, *entries: tuple[str, bytes | None]) -> None:
        """Let come into force what another host had newer, as replication does."""
        newer = tuple(Entry(key, value, self.now) for key, value in entries)
        broker = self.broker
        self.carry(broker.perform(broker._replication, [Adopt(newer)], self.now))

    def keep(self, vid: str, place: str, owner: str = "ann", **more: Any) -> Effect:
        self.tickets += 1
        lifetime = more.pop("lifetime_us", None)
        session = more.pop("session", "")
        context = Context(vid, place, None, more, self.now)
        self.give(PublishFor(self.tickets, owner, context, session, lifetime))
        return self.answers[self.tickets]

    def release(self, vid: str, owner: str = "ann") -> Effect:
        self.tickets += 1
        self.give(UnpublishFor(self.tickets, owner, vid))
        return self.answers[self.tickets]

    def rules(
        self,
        vid: str,
        rules: Sequence[Rule] | None,
        owner: str = "ann",
        *,
        any_owner: bool = False,
    ) -> Effect:
        self.tickets += 1
        said = None if rules is None else tuple(rules)
        self.give(SetRules(self.tickets, owner, vid, said, any_owner))
        return self.answers[self.tickets]

    def open(self, session: str, viewer: Viewer | None = None) -> Reader:
        self.request(OpenSession, session, viewer or Viewer(session))
        self.readers[session] = Reader()
        return self.readers[session]

    def close(self, session: str) -> None:
        self.give(CloseSession(session))

    def watch(self, session: str, text: str, about: str = "w") -> None:
        self.request(SubscribeSession, session, about, Filter.parse(text))

    def watch_many(self, session: str, texts: dict[str, str]) -> dict[str, RoamcastError]:
        """Place many; give those that were refused, and why."""
        filters = tuple((about, Filter.parse(text)) for about, text in texts.items())
        answer = self.request(SubscribeSessionMany, session, filters)
        assert isinstance(answer, SubscribedMany)
        for frame in answer.frames:
            self.readers[session].read(frame, self.now)
        return dict(answer.refused)

    def unwatch(self, session: str, about: str = "w") -> None:
        self.request(UnsubscribeSession, session, about)

    def limit(self, session: str, limit_bytes: int) -> None:
        self.request(LimitSession, session, limit_bytes)

    def slow(self, session: str) -> None:
        self.give(SessionSlow(session))

    def drained(self, session: str) -> None:
        self.give(SessionDrained(session))

    def admit(self, client: str, viewer: Viewer) -> str:
        answer = self.request(AdmitClient, client, viewer)
        assert isinstance(answer, Admitted)
        return answer.view_class

    def dismiss(self, client: str) -> None:
        self.give(DismissClient(client))

    def run(self, microseconds: int) -> None:
        """Let time pass, waking the broker whenever it is due."""
        end = self.now + microseconds
        while (due := self.broker.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.carry(self.broker.advance(self.now))
        self.now = end

    def sees(self, session: str, about: str = "w") -> dict[str, str]:
        reader = self.readers[session]
        view = reader.views[reader.query_of[about]]
        return {vid: one["properties"]["place"] for vid, one in sorted(view.items())}
