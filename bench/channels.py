"""How much does disseminating an update cost beside matching it?

The way of an update is that of the real server from a context to encoded messages: matching, query
set, channel choice, encoding. Matching alone is measured in the same rounds on the server's own
filters, and so are its other parts; what the parts leave of the way is the channel choice. Beside
it stands the whole way of a request: read, checked, answered, and explained in the journal.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import process_time
from typing import Any, TypeVar

from roamcast.channels.server.messages import (
    MAP_PROTOCOL,
    Batch,
    Publish,
    Receipt,
    Request,
    Subscribe,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.lab._ams import ServerDriver, person
from roamcast.lab.report import Claim, Report, Steps
from roamcast.matching.renewing import RenewingSet
from roamcast.model.contexts import Context, context_of
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.model.wire import Message

TITLE = "an update through matching, query set, channel choice and encoding, beside matching alone"

PLACES = 1_000
MOVERS = 100
ROUND = 500
ROUNDS = 9

Given = TypeVar("Given")


def run(quick: bool, progress: Steps) -> Report:
    """Measure every part in the same run for each number of subscriptions."""
    counts = (100, 2_000) if quick else (100, 10_000, 100_000, 1_000_000)
    rows: list[dict[str, Any]] = []
    with progress("subscriptions", len(counts)) as step:
        for count in counts:
            rows.append(_row(count))
            step(1)
    worst = max(row["times_matching"] for row in rows)
    whole = max(row["request_us"] / row["matching_us"] for row in rows)
    claims = [
        Claim(
            "an update takes at most so many times matching alone",
            worst,
            worst <= 3,
            bar=3,
            note=f"with reading, checking, answering and explaining the request {whole:.1f} times",
        )
    ]
    parameters = {
        "places": PLACES,
        "movers": MOVERS,
        "updates": ROUND * ROUNDS,
        "subscriptions_per_client": 10,
    }
    return Report("channels", parameters, rows, claims)


def _row(count: int) -> dict[str, Any]:
    """Everybody asks for ten places or floors; people move between places all over the building."""
    driver = ServerDriver(MapSettings())
    for start in range(0, count, 10):
        asked = (_text(number) for number in range(start, min(start + 10, count)))
        driver.request(f"c{start}", *(Subscribe(f"s{at}", text) for at, text in enumerate(asked)))
    rounds = _Rounds(driver)
    for at in range(ROUNDS + 1):
        numbers = range(at * ROUND, (at + 1) * ROUND)
        rounds.take([(number % MOVERS, _place(number * 7)) for number in numbers])
    # The first round earns the channels and loads the code.
    times = {name: median(every[1:]) * 1e6 for name, every in rounds.seconds.items()}
    times["encoding"] *= median(rounds.per_update[1:])
    update, matching = times["update"], times["matching"]
    parts = {f"{name}_us": time for name, time in times.items()}
    parts["query_set_us"] -= matching
    parts["channel_choice_us"] = update - times["query_set"] - times["encoding"]
    pairs = zip(rounds.seconds["update"], rounds.seconds["matching"], strict=True)
    ratios = [update / matching for update, matching in pairs]
    return {
        "subscriptions": count,
        "queries": driver.server.subscriptions.records,
        **parts,
        "times_matching": median(ratios[1:]),
        "updates_per_s": 1e6 / update,
        "messages_per_update": median(rounds.per_update[1:]),
    }


class _Rounds:
    """Takes rounds of moves through the server, once for each part, and keeps the seconds of one.

    Nothing is kept of a round that is measured but its time: what a server sends it forgets.
    """

    def __init__(self, driver: ServerDriver) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.per_update: list[float] = []
        self._driver = driver
        self._server = driver.server
        self._desk = driver.server.desk
        self._put = driver.server.contexts.put
        self._view = driver.server.dissemination.classes[""]
        matcher = driver.server.dissemination.shared.matcher
        assert isinstance(matcher, RenewingSet)
        self._matcher = matcher
        self._client = driver.server.desk.clients["c0"]
        self._sent: list[Message] = []
        self._stamp = 1

    def take(self, moves: Sequence[tuple[int, str]]) -> None:
        """Take a round: every move once for the parts, once for the update, once as a request."""
        puts, again = self._puts(moves), self._puts(moves)
        contexts = [context_of(put.body) for put in puts]
        self._measure("matching", self._matcher.match, contexts)
        self._server.desk.journal = False
        self._measure("query_set", self._query_set, list(zip(contexts, puts, strict=True)))
        self._measure("update", self._update, list(zip(contexts, again, strict=True)))
        self._sent.clear()
        for given in zip(contexts, self._puts(moves), strict=True):
            self._keep(given)
        self.per_update.append(len(self._sent) / len(moves))
        self._measure("encoding", MAP_PROTOCOL.encode, self._sent)
        requests = [self._driver.next_request("c0", put) for put in self._puts(moves)]
        frames = [MAP_PROTOCOL.encode(request) for request in requests]
        self._server.desk.journal = True
        self._measure("reading", MAP_PROTOCOL.decode, frames)
        self._measure("checking", context_of, [put.body for put in puts])
        self._measure("request", self._request, frames)

    def _puts(self, moves: Sequence[tuple[int, str]]) -> list[Publish]:
        self._stamp += len(moves)
        return [person(who, where, self._stamp + at) for at, (who, where) in enumerate(moves)]

    def _measure(self, name: str, do: Callable[[Given], object], given: Sequence[Given]) -> None:
        started = process_time()
        for one in given:
            do(one)
        mean = (process_time() - started) / max(1, len(given))
        self.seconds.setdefault(name, []).append(mean)

    def _query_set(self, given: tuple[Context, Publish]) -> None:
        context, put = given
        known = self._server.map.put(context, put.body, put.stamp, "c0")
        assert known is not None
        after = dict(self._server.dissemination.shared.match(context)).get("", ())
        self._server.contexts.step(self._view, known, context, put.body, context, after)

    def _update(self, given: tuple[Context, Publish]) -> None:
        context, put = given
        self._put(self._client, context, put.body, put.stamp)
        desk = self._desk
        desk.flush()
        effects, desk.out = desk.out, []
        for effect in effects:
            if isinstance(effect, Multicast):
                MAP_PROTOCOL.encode(effect.message)
            else:
                self._send((effect,))

    def _keep(self, given: tuple[Context, Publish]) -> None:
        """Take an update and keep what it sends."""
        context, put = given
        self._put(self._client, context, put.body, put.stamp)
        self._desk.flush()
        effects, self._desk.out = self._desk.out, []
        sent = [one for one in effects if isinstance(one, Multicast | Send)]
        self._sent += (one.message for one in sent)
        self._send(effects)

    def _request(self, frame: bytes) -> None:
        request = MAP_PROTOCOL.decode(frame)
        assert isinstance(request, Request)
        self._send(self._server.receive(Received("c0", request), self._driver.now))

    def _send(self, effects: Sequence[Effect]) -> None:
        """Encode what leaves; receipts of batches come at once, and count as part of the way."""
        for effect in effects:
            if isinstance(effect, Multicast):
                MAP_PROTOCOL.encode(effect.message)
            elif isinstance(effect, Send):
                message = effect.message
                MAP_PROTOCOL.encode(message)
                if isinstance(message, Batch):
                    receipt = Receipt(message.epoch, message.session, message.number)
                    given = Received(effect.to.name, receipt)
                    self._send(self._server.receive(given, self._driver.now))


def _place(number: int) -> str:
    return f"lab/{number % PLACES // 50}/{number % PLACES}"


def _text(number: int) -> str:
    if number % 10 == 0:
        return f"within(place, 'lab/{number % 20}')"
    return f"place = '{_place(number)}'"
