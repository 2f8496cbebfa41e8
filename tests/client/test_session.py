"""A session against the real map server's machine, over real sockets on loopback."""

import asyncio
import gc
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from roamcast.channels.server.messages import Batch
from roamcast.channels.server.settings import MapSettings
from roamcast.client import Change, View, connect
from roamcast.client.connecting import Connecting
from roamcast.errors import (
    AuthError,
    ContextError,
    FilterError,
    InputError,
    LimitError,
    UnreachableError,
)
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from tests.strategies_service import QUICK, TOKEN, Service, in_loop, running, until


def session(service: Service, device: str = "one") -> Connecting:
    return connect(service.url, TOKEN, device=device)


async def read(view: View, count: int) -> list[Change]:
    async with asyncio.timeout(20):
        return [await anext(view) for _ in range(count)]


@in_loop
async def test_one_appears_changes_and_leaves_and_the_other_is_told() -> None:
    async with running() as service, session(service) as me, session(service, "two") as you:
        view = you.watch("type = 'person' AND within(place, 'hq/2')")
        assert [one.kind for one in await read(view, 1)] == ["current"]
        ada = await me.appear(place="hq/2/kitchen", type="person", name="Ada")
        assert await read(view, 1) == [Change("appeared", ada)]
        there = await me.change(place="hq/2/hall", mood="good")
        assert await read(view, 1) == [Change("changed", there)]
        assert there.vid == ada.vid
        assert there.attributes == {"type": "person", "name": "Ada", "mood": "good"}
        plain = await me.change(mood=None)
        assert (await read(view, 1))[0].context == plain == me.context
        await me.leave()
        assert await read(view, 1) == [Change("left", plain)]
        assert view.contexts == {}
        assert me.context is None


@in_loop
async def test_a_view_begins_with_the_current_set_and_its_mark() -> None:
    async with running() as service, session(service) as me:
        for number in range(5):
            await me.publish(f"printer-{number}", place="hq/2", type="printer")
        view = me.watch("type = 'printer'")
        changes = await read(view, 6)
        assert {one.vid for one in changes[:5]} == {f"printer-{number}" for number in range(5)}
        assert changes[5] == Change("current", None, 5)
        await me.withdraw("printer-3")
        assert [one.vid for one in await read(view, 1)] == ["printer-3"]


@in_loop
async def test_every_appearance_has_a_fresh_vid_and_ends_the_one_before() -> None:
    async with running() as service, session(service) as me:
        first = await me.appear(place="hq/1")
        second = await me.appear(place="hq/2")
        assert first.vid != second.vid
        await until(lambda: list(service.machine.map.contexts) == [second.vid])
        await me.appear(place="hq/3", vid="mine")
        await until(lambda: list(service.machine.map.contexts) == ["mine"])


@in_loop
async def test_what_a_session_published_leaves_with_it() -> None:
    async with running() as service:
        async with session(service) as me:
            await me.appear(place="hq/1")
            await me.publish("cart", place="hq/1")
        await until(lambda: not service.machine.map.contexts, 1.5)  # and not by the time-out


@in_loop
async def test_a_filter_that_cannot_be_read_is_refused_where_it_is_said() -> None:
    async with running() as service, session(service) as me:
        with pytest.raises(FilterError, match="position"):
            me.watch("type = ")
        with pytest.raises(LimitError, match="characters"):
            me.watch(" OR ".join(f"vid = '{'x' * 200}{number}'" for number in range(50)))
        view = me.watch(Filter.parse("type = 'person'"))
        assert (await read(view, 1))[0].kind == "current"


@in_loop
async def test_standing_queries_have_a_limit_and_closing_one_makes_room() -> None:
    settings = MapSettings(**{**_fields(QUICK), "subscriptions_max": 2})
    async with running(settings) as service, session(service) as me:
        views = [me.watch("type = 'a'"), me.watch("type = 'b'")]
        with pytest.raises(LimitError, match="at most 2"):
            me.watch("type = 'c'")
        await views.pop().aclose()
        assert (await read(me.watch("type = 'c'"), 1))[0].kind == "current"


def _fields(settings: MapSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@in_loop
async def test_what_nobody_holds_any_more_is_withdrawn() -> None:
    async with running() as service, session(service) as me:
        async for change in me.watch("type = 'person'"):
            assert change.kind == "current"
            break
        gc.collect()
        clients = service.machine.desk.clients  # a slow machine may let a session lapse and return
        await until(lambda: not any(one.subscriptions for one in clients.values()))


@in_loop
async def test_a_closed_view_comes_to_its_end_for_whoever_reads_it() -> None:
    async with running() as service, session(service) as me:
        view = me.watch("type = 'person'")
        told: list[Change] = []
        reader = asyncio.create_task(_all(view, told))
        await until(lambda: bool(told))
        await view.aclose()
        async with asyncio.timeout(20):
            await reader
        assert [one.kind for one in told] == ["current"]


async def _all(view: View, told: list[Change]) -> None:
    async for change in view:
        told.append(change)  # noqa: PERF401 — others look at it meanwhile


@in_loop
async def test_reading_can_be_cancelled_and_nothing_is_lost() -> None:
    async with running() as service, session(service) as me:
        view = me.watch("type = 'person'")
        await read(view, 1)
        told: list[Change] = []
        for number in range(20):
            reader = asyncio.ensure_future(anext(view))
            await asyncio.sleep(0)
            reader.cancel()
            publishing = asyncio.create_task(me.publish(f"p{number}", place="x", type="person"))
            done = await asyncio.gather(reader, return_exceptions=True)
            told += [one for one in done if isinstance(one, Change)]
            await publishing
        while len(told) < 20:
            told += await read(view, 1)
        assert sorted(one.vid for one in told) == sorted(f"p{number}" for number in range(20))


@in_loop
async def test_a_slow_reader_is_told_the_latest_of_each_object() -> None:
    async with running() as service, session(service) as me, session(service, "two") as you:
        view = you.watch("type = 'person'")
        await read(view, 1)
        for step in range(50):
            for vid in ("a", "b"):
                await me.publish(vid, place=f"hq/{step}", type="person")
        await until(lambda: {one.place for one in view.contexts.values()} == {"hq/49"})
        assert view.waiting == 2
        changes = await read(view, 2)
        assert [(one.kind, one.context and one.context.place) for one in changes] == [
            ("appeared", "hq/49"),
            ("appeared", "hq/49"),
        ]


@in_loop
async def test_a_large_current_set_comes_whole() -> None:
    async with running() as service, session(service) as me, session(service, "two") as you:
        vids = {f"p{number:03}" for number in range(400)}  # more than an answer lists
        await asyncio.gather(*(me.publish(vid, place="hq", type="person") for vid in sorted(vids)))
        view = you.watch("type = 'person'")
        changes = await read(view, 401)
        assert {one.vid for one in changes[:400]} == vids
        assert changes[400] == Change("current", None, 400)


@in_loop
async def test_a_session_that_may_hold_fewer_contexts_says_so() -> None:
    async with running() as service, session(service) as me:
        for number in range(4):
            await me.publish(f"p{number}", place="hq", type="person")
        me._runner.session._contexts_max = 3
        view = me.watch("type = 'person'")
        with pytest.raises(LimitError, match="at most 3 contexts"):
            await read(view, 5)
        me._runner.session._contexts_max = 4
        assert len(await read(me.watch("type = 'person'"), 5)) == 5


@in_loop
async def test_what_the_service_refuses_is_raised() -> None:
    async with running() as service, session(service) as me:
        service.machine.contexts.put = _refuse  # type: ignore[method-assign]
        with pytest.raises(InputError, match="somebody else"):
            await me.appear(place="hq/1", vid="theirs")
        assert me.context is None
        with pytest.raises(InputError, match="call appear first"):
            await me.change(place="hq/2")


def _refuse(*_: object) -> None:
    raise ContextError("it is published by somebody else")


@in_loop
async def test_bad_contexts_are_refused_before_anything_is_sent() -> None:
    async with running() as service, session(service) as me:
        with pytest.raises(ContextError, match="needs a place, a point or both"):
            await me.appear(type="person")
        with pytest.raises(ContextError, match="longitude"):
            await me.appear(point=(200.0, 0.0))
        with pytest.raises(LimitError, match="bytes"):
            await me.appear(place="hq", text="x" * 9_000)
        assert not service.machine.map.contexts


@in_loop
async def test_a_wrong_key_is_told_at_once_and_no_service_as_well() -> None:
    async with running() as service:
        with pytest.raises(AuthError, match="make a token"):
            await connect(service.url, "wrong")
        url = service.url
    with pytest.raises(UnreachableError, match="roamcast serve"):
        await connect(url, TOKEN)


@pytest.mark.parametrize("device", ["", "a b", "x" * 65, "a/b"])
def test_a_devices_name_is_checked(device: str) -> None:
    with pytest.raises(InputError, match="device"):
        connect("http://127.0.0.1:1", TOKEN, device=device)


@in_loop
async def test_a_service_whose_clock_is_years_off_is_served_all_the_same() -> None:
    service = Service()
    service.ahead_us = 5 * 365 * 86_400_000_000
    await service.start()
    async with session(service) as me:
        view = me.watch("type = 'person'")
        made = await me.appear(place="hq", type="person")
        assert abs(made.t_r - service.now()) < 60_000_000
        await until(lambda: made.vid in view.contexts)
    await service.kill()


@in_loop
async def test_a_client_the_service_gave_up_on_asks_again() -> None:
    settings = MapSettings(**{**_fields(QUICK), "outbox_items_max": 8, "mode": "unicast only"})
    async with running(settings) as service, session(service) as me, session(service, "two") as you:
        view = you.watch("type = 'person'")
        await read(view, 1)
        await me.publish("p", place="hq", type="person")
        await read(view, 1)
        deaf = next(name for name in service.sockets if name.endswith("#two"))
        service.loses = lambda message: isinstance(message, Batch)
        for number in range(20):
            await me.publish(f"q{number}", place="hq", type="person")
        await me.withdraw("p")
        assert not service.machine.desk.clients[deaf].subscriptions  # too slow, it was dropped
        for number in range(4, 20):
            await me.withdraw(f"q{number}")
        service.loses = lambda _: False
        changes = await read(view, 5)
        assert sorted((one.kind, one.vid) for one in changes) == [
            *(("appeared", f"q{number}") for number in range(4)),
            ("left", "p"),
        ]


@in_loop
async def test_contexts_keep_every_kind_of_value() -> None:
    async with running() as service, session(service) as me, session(service, "two") as you:
        values = {
            "a": "text",
            "b": 2**62,
            "c": 0.5,
            "d": True,
            "e": datetime(2026, 11, 16, tzinfo=UTC),
        }
        made = await me.appear(point=(9.1, 48.7), **values)
        view = you.watch("b > 1")
        assert (await read(view, 1))[0].context == made
        assert isinstance(made, Context)


@in_loop
async def test_a_link_over_tls_is_opened_only_with_a_certificate_one_trusts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = _certificate(Path(folder))
        service = Service()
        service.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        service.tls.load_cert_chain(certificate, key)
        trusting = ssl.create_default_context(cafile=str(certificate))
    await service.start()
    with pytest.raises(UnreachableError, match="certificate"):
        await connect(service.url, TOKEN)
    async with connect(service.url, TOKEN, tls=trusting) as me:
        await me.appear(place="hq")
        assert me.connected
    await service.kill()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for the loopback address, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, secret
