"""A cast reaches who is known by sensors alone: their user agent holds the keys, and hands over."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from roamcast.client.operating import TrustClient
from roamcast.errors import InputError
from roamcast.identity.key_store import KeyStore
from roamcast.identity.sealing import agent_secrets
from roamcast.model.context_arrow import SEALING_COLUMN, from_arrow
from roamcast.model.filters import Filter
from roamcast.model.time import format_instant
from roamcast.pipeline.archive.retention import retain
from roamcast.pipeline.ingest.run import IngestSettings, ingest_once
from roamcast.pipeline.ingest.state import SEALING_FILE, opened
from roamcast.pipeline.ingest.trusted import give_seeds, vids_of_person
from roamcast.pipeline.lookup.rows import matching
from tests.overlay_services import DEADLINE_S
from tests.running_service import RunningService

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

HOUR_US = 3_600 * 1_000_000


def sighting(person: str, moment: int, place: str) -> str:
    said = {"person": person, "source": "badge", "time": format_instant(moment), "place": place}
    # what sensors say under this name is no key
    return json.dumps({**said, "attributes": {"sealing_key": "forged"}})


def test_a_cast_reaches_who_was_only_seen_by_sensors(spark: Any, tmp_path: Path) -> None:
    archive, private = tmp_path / "archive", tmp_path / "private"
    settings = f'[past]\narchive = "{archive}"\n'
    with RunningService(tmp_path, settings) as running:
        token_file = tmp_path / "admin.token"
        token_file.touch(0o600)
        token_file.write_text(running.operator)
        client = TrustClient(running.url, token_file)
        before = time.time_ns() // 1_000 - 3 * HOUR_US
        sightings = tmp_path / "sightings.jsonl"
        seen = [("ada", 0, "hq/1"), ("bob", 1, "hq/2"), ("ada", HOUR_US, "hq/1")]
        sightings.write_text("\n".join(sighting(who, before + at, on) for who, at, on in seen))
        keys = client.keys("ingest")
        with opened(private, archive, "x", os.urandom, keys) as state:
            state.handles_of = client.handles
            done = ingest_once(
                spark, state, [sightings], IngestSettings(), lambda: time.time_ns() // 1_000
            )
            assert done.counts["contexts"] == 3
            secret, own = state.sealing_secret, vids_of_person(state, "ada")
        rows = matching(archive, Filter.parse("true"), 10)
        shown = {one.vid: one.attributes["sealing_key"] for one in from_arrow(rows)}
        assert len(set(shown.values())) == 3, "a key tells no two vids together"
        assert len(own) == 2
        # Reducing old contexts leaves their people reachable.
        retain(archive, reduce_before=time.time_ns() // 1_000)
        assert SEALING_COLUMN in matching(archive, Filter.parse("true"), 10).schema.names

        start, end = (format_instant(before + by * HOUR_US) for by in (-1, 2))
        during = f"T_INTERSECTS(time, INTERVAL('{start}','{end}'))"
        cast = {"filter": f"within(place, 'hq/1') AND {during}", "text": "the lamp is mended"}
        sent = running.ask("POST", "/casts", running.operator, cast)
        assert sent.status == 201, sent
        reader = running.token("ada", ("subscribe",))
        deadline = time.monotonic() + DEADLINE_S
        while not (mails := running.ask("GET", "/mailbox", reader).json["mails"]):
            assert time.monotonic() < deadline, running.ask("GET", f"/casts/{sent.json['id']}")
            time.sleep(0.05)
        (mail,) = mails
        assert mail["vid"] in own
        assert running.ask("GET", "/mailbox", running.token("bob")).json["mails"] == []
        # What is asked of the map shows no key.
        shown = running.get("/collections/contexts/items", datetime=f"{start}/{end}")
        assert all("sealing_key" not in one["properties"] for one in shown.json["features"])

        # The agent hands Ada her keys, and hers alone.
        with opened(private, archive, "x", os.urandom) as state:
            store = KeyStore.open(tmp_path / "ada.keys")
            assert give_seeds(state, "ada", store) == 2
            assert store.of(mail["vid"]) is not None
            assert store.take(0) is None, "they serve to open mail, not to appear"
            store.close()
            with pytest.raises(InputError, match="no such person"):
                give_seeds(state, "cid", store)
        told = subprocess.run(
            [sys.executable, "-m", "roamcast", "inbox", "--keys", str(tmp_path / "ada.keys")],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            env={**os.environ, "ROAMCAST_URL": running.url, "ROAMCAST_TOKEN": reader},
        )  # fmt: skip
        assert "the lamp is mended" in told.stdout, told
        assert "a pseudonym of yours was within hq/1 between" in told.stdout
    assert agent_secrets(secret, own[0]) != agent_secrets(secret, own[1])
    (private / SEALING_FILE).chmod(0o644)
    with opened(private, archive, "x", os.urandom) as state, pytest.raises(InputError, match="600"):
        _ = state.sealing_secret
