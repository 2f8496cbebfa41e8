"""A client of the map knows which of its words the server has taken."""

from roamcast.channels.client.map_client import MapClient
from roamcast.channels.client.publications import PublishContext, UnpublishContext
from roamcast.channels.client.watching import Refusal
from roamcast.channels.server.messages import Answer, Request
from roamcast.channels.server.settings import MapSettings
from roamcast.model.contexts import Context
from roamcast.model.machine import Received, Send
from tests.strategies_map import MapWorld


def test_an_object_is_taken_when_the_answer_to_its_latest_word_is_there() -> None:
    client = MapClient("a", server="s", epoch=1, now=0, settings=MapSettings(), draw=lambda: 0.5)
    assert not client.taken("p")  # nothing is, before there is a session
    effects = [*client.advance(0)]
    words = [
        PublishContext(Context("p", "l1")),
        PublishContext(Context("p", "l2")),
        UnpublishContext("p"),
    ]
    for now, word in enumerate([None, *words], start=1):
        if word is not None:
            effects = [*client.receive(word, now)]
            assert not client.taken("p")
            assert client.taken("q")
        request = next(one.message for one in effects if isinstance(one, Send))
        assert isinstance(request, Request)
        last = request.number + len(request.operations) - 1
        client.receive(Received("s", Answer(1, client.session, last, 1)), now)
        assert client.taken("p")


def test_a_refused_object_is_named_before_the_answer_says_that_it_was_taken() -> None:
    world = MapWorld(MapSettings(publications_max=1))
    world.client("a")
    world.run()
    world.put("a", "p", "l1")
    world.run()
    world.forget()
    world.put("a", "q", "l1")
    world.run()
    sent = [record.message for record in world.sent()]
    assert sent[sent.index("map.batch") + 1] == "map.answer"
    assert [(one.kind, one.name) for one in world.told_to("a", Refusal)] == [("publish", "q")]
