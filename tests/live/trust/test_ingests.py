"""One person everywhere: an ingest gets handles and an epoch of the live trusted node; erasure."""

import json
import time
from os import urandom
from pathlib import Path

import pyarrow as pa
import pytest
from websockets.exceptions import InvalidStatus

from roamcast.client.operating import TrustClient
from roamcast.errors import AuthError, ForbiddenError, InputError
from roamcast.identity.credentials import vid_of
from roamcast.identity.pseudonyms import HANDLE, open_vids, seal
from roamcast.identity.sealing import VidSecrets
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.pipeline.archive.append import append
from roamcast.pipeline.ingest.forgetting import forget_departed
from roamcast.pipeline.ingest.state import opened
from roamcast.pipeline.ingest.trusted import archived_vids, rotate
from tests.running_service import RunningService

pytestmark = [pytest.mark.process, pytest.mark.slow]


def text(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def every(archive: Path) -> list[str]:
    return [vid for column in archived_vids(archive) for vid in column.to_pylist()]


def drawn(running: RunningService, name: str) -> list[str]:
    """Draw a pool as a person does."""
    own = [VidSecrets(bytes([number]) * 32).public for number in range(32)]
    keys = [{"signing": text(one.signing), "sealing": text(one.sealing)} for one in own]
    token = running.token(name, ("subscribe",))
    answer = running.ask("POST", "/pools", token, {"keys": keys})
    assert answer.status == 201, answer
    return [vid_of(one) for one in answer.json["credentials"]]


def test_sensors_and_programs_know_the_same_person_and_erasing_reaches_the_archive(
    tmp_path: Path,
) -> None:
    (tmp_path / "trust").mkdir()
    settings = '[identity]\nnode = "trust.example"\n'
    with RunningService(tmp_path / "trust", settings, command=("trust",)) as running:
        token_file = tmp_path / "admin.token"
        token_file.touch(0o600)
        token_file.write_text(running.operator)
        client = TrustClient(running.url, token_file)
        ada, bob = client.handles(["ada", "bob"])
        keys = client.keys("ingest")
        assert client.keys("ingest") == keys, "the same ingest keeps its epoch"
        assert client.keys("other").current != keys.current
        assert (keys.node, list(keys.epochs)) == ("trust.example", [keys.current])
        # The agent opens its own vids, and none that people drew by themselves.
        live = drawn(running, "ada")
        assert open_vids(pa.array(live), keys).null_count == len(live)
        # Her mail comes over the WebSocket of the trusted node itself.
        parcel = {"vid": live[0], "sealed": text(b"sealed")}
        until = time.time_ns() // 1_000 + 10**9
        mail = {"cast": "c1", "sender": "x", "kind": "t", "expires_us": until, "parcels": [parcel]}
        assert running.ask("POST", "/deposits", running.operator, mail).status == 200
        with running.session(running.token("ada", ("subscribe",)), "/mailbox") as socket:
            assert json.loads(socket.recv())["id"] == "c1"
            socket.send('{"type":"ack","id":"c1"}')
            assert json.loads(socket.recv())["type"] == "done"
        with pytest.raises(InvalidStatus), running.session(live[0], "/mailbox"):
            pass
        with pytest.raises(InvalidStatus), running.session(running.operator, "/session"):
            pass
        handles = pa.array([ada, bob, ada], HANDLE)
        sensed: list[str] = seal(handles, keys, urandom).to_pylist()
        archive = tmp_path / "archive"
        rows = [Context(vid, "hq/1", None, {}, 10**15, 10**15 + 10**9) for vid in sensed + live[:1]]
        append(pa.Table.from_batches([to_arrow(rows)]), archive)
        assert client.departed(every(archive)) == []
        # Ada erases herself with her own program: what sensors saw of her goes as well.
        gone = running.ask("DELETE", "/me", running.token("ada", ("subscribe",)))
        assert gone.status == 200, gone
        report = forget_departed(archive, client)
        assert (report.person_entries, report.private_rows) == (None, 0)
        assert (report.archive.vids, report.archive.rows_erased) == (3, 3)
        assert every(archive) == sensed[1:2]
        # Bob is erased by the operator, after a restart that must not lose the key.
        running.kill()
        running.start()
        token_file.write_text(running.operator)
        client = TrustClient(running.url, token_file)
        assert client.keys("ingest") == keys
        report = forget_departed(archive, client, "bob")
        assert (report.person_entries, report.archive.rows_erased) == (0, 1)
        assert forget_departed(archive, client).archive.rows_erased == 0
        assert client.handles(["ada"]) != [ada], "she would be a stranger"
        token_file.write_text(running.token("eve", ("subscribe", "deposit")))
        for ask in (lambda: TrustClient(running.url, token_file).keys("x"),):
            with pytest.raises((AuthError, ForbiddenError)):
                ask()
        token_file.chmod(0o644)
        with pytest.raises(InputError, match="chmod 600"):
            TrustClient(running.url, token_file)


def test_a_private_folder_is_bound_to_the_keys_it_was_made_with(tmp_path: Path) -> None:
    from roamcast.identity.keys import TrustedKeys

    given = TrustedKeys("trust.example", {7: bytes(32)}, 7)
    with opened(tmp_path / "p", tmp_path / "a", "localhost", urandom, given) as state:
        assert (state.keys, state.shared) == (given, True)
        with pytest.raises(InputError, match="trusted node's"):
            rotate(state, urandom)
    other = TrustedKeys("trust.example", {8: bytes(32)}, 8)
    with (
        pytest.raises(InputError, match="other keys"),
        opened(tmp_path / "p", tmp_path / "a", "localhost", urandom, other),
    ):
        pass
    with opened(tmp_path / "q", tmp_path / "a", "localhost", urandom) as own:
        assert not own.shared
