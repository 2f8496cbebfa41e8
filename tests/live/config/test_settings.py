"""Settings: every key has a default and limits, and every mistake is told with its line."""

import math
import random
import re
import tomllib
from pathlib import Path
from typing import Annotated, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import LimitError, SettingsError
from roamcast.live.config.lines import FILE_BYTES_MAX, lines_of
from roamcast.live.config.settings import (
    REPLICAS_MAX,
    SECRET_BYTES_MAX,
    SUMMARY_BYTES,
    SUMMARY_BYTES_MAX,
    SUMMARY_BYTES_MIN,
    Settings,
    check_cluster,
    check_listening,
    is_loopback,
    load_settings,
    parse_settings,
    with_server,
)

SECTIONS = {field.name: field.type for field in msgspec.structs.fields(Settings)}
NUMBERS = [
    (section, field.name, get_args(field.type)[1])
    for section, kind in SECTIONS.items()
    for field in msgspec.structs.fields(kind)
    if get_origin(field.type) is Annotated and get_args(field.type)[0] in (int, float)
]


def refused(text: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "roamcast.toml")
    return caught.value


def test_an_empty_file_gives_the_defaults_and_the_defaults_are_valid() -> None:
    assert parse_settings("") == Settings()
    assert msgspec.convert(msgspec.to_builtins(Settings()), Settings) == Settings()


def test_every_number_says_what_it_limits_and_between_which_bounds() -> None:
    assert len(NUMBERS) > 30
    for section, name, meta in NUMBERS:
        assert meta.ge is not None, name
        assert meta.le is not None, name
        assert meta.description, f"{section}.{name}"


@pytest.mark.parametrize(("section", "name", "meta"), NUMBERS, ids=lambda p: str(p)[:40])
def test_a_number_is_taken_at_its_limits_and_refused_beyond(
    section: str, name: str, meta: msgspec.Meta
) -> None:
    kind = SECTIONS[section]
    low, high = meta.ge, meta.le
    assert low is not None
    assert high is not None
    for value in (low, high):
        assert getattr(msgspec.convert({name: value}, kind), name) == value
    for value in (low - 1, high + 1):
        error = refused(f"# settings\n[{section}]\n{name} = {value}\n")
        assert (error.source, error.line) == ("roamcast.toml", 3)
        assert f"{section}.{name}: expected" in str(error)
    assert refused(f"[{section}]\n{name} = nan").line == 2


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[limits]\nbody_bytes_max = 'x'", 2, "limits.body_bytes_max: expected int, got str"),
        ("[limits]\n\nbody_byte_max = 1", 3, "did you mean body_bytes_max?"),
        ("\n[limts]\na = 1", 2, "did you mean limits?"),
        ("[log]\nzzz = 1", 2, "known are level, style"),
        ("[server]\nport = \n", 2, "not TOML"),
        ("[server]\nport = 1\nport = 2\n", 3, "not TOML"),
        ("[privacy]\ndefault_viewers = [\n 'a',\n 3,\n]", 2, "default_viewers: expected str"),
        ("[log]\nstyle = 'xml'", 2, "expected one of plain, json"),
        ("limits.items_max = 5", 1, "must not be more than items_max (5)"),
        ("[limits]\nsocket_high_bytes = 8_388_608", 2, "socket_bytes_max"),
        ("[limits]\nsocket_low_bytes = 1_048_576", 2, "socket_high_bytes"),
        ("[limits]\ncontext_lifetime_s = 700_000", 2, "context_lifetime_s_max"),
        ("[limits]\ncontext_lifetime_s_max = 60", 2, "context_lifetime_s"),
        ("server = 3", 1, "server: expected object"),
        ("[server]\ntls_cert = 'c.pem'", 2, "tls_cert and tls_key go together"),
        ("[server]\nport = 9\nhost = '0.0.0.0'", 3, "refusing to listen on 0.0.0.0 without TLS"),
        ("[server]\nname = 'A b'", 2, "server.name: expected str matching"),
        ("[channels]\nudp = '10.0.0.0/8:5007'", 2, "the multicast range"),
        ("[channels]\nudp = '239.192.0.1/16:5007'", 2, "not a range of addresses"),
        ("[channels]\nudp = '239.192.0.0/16:0'", 2, "port 0 does not exist"),
        ("[channels]\nnats = 'localhost'", 2, "nats://"),
        ("[channels]\nheartbeat_s = 4", 2, "two heartbeats"),
        ("[homes]\nhigh = 0.4", 2, "low (0.5) must not be more than high (0.4)"),
        ("[homes]\nlatency = 0", 2, "latency, bytes or power"),
        ("[privacy]\ndefault_precision = 'fuzzy'", 2, "expected one of hidden, presence"),
        ("a = '''\n\n", 1, "not TOML"),
        ("[cluster]\nsilent_s = 1\n[cluster.replicas]\na = 'here'", 4, "expected an address such"),
        ("[cluster.replicas]\na = 'https://a'\nB = 'https://b'", 3, "letters a-z"),
        ("[cluster.replicas]\na = 'https://a'\nb = 'http://10.0.0.1:1'", 3, "need https"),
        ("[cluster.replicas]\na = 'https://a/x'", 2, "scheme, host and port only"),
        ("[cluster.replicas]\na = 'https://a'\nb = 'https://a'", 1, "the same address"),
        ("[cluster.replicas]\na = 'https://a'", 1, "set secret_file in [cluster]"),
        ("[server]\nname = 'c'\n[cluster.replicas]\na = 'https://a'", 2, "none of the replicas a"),
        ("[cluster]\nreplica = 1", 2, "did you mean replicas?"),
        (
            "[cluster]\nsecret_file = 's'\nsilent_s = 1\nprobe_s = 0.9\nreplicas.a = 'https://a'",
            3,
            "at least two probes",
        ),
        (
            "[limits]\nframe_bytes_max = 2_000\n[cluster]\nsecret_file = 's'\nreplicas.a = 'https://a'",
            2,
            "replicas need messages",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, said: str) -> None:
    error = refused(text)
    assert error.line == line
    assert said in str(error)
    assert "\n" not in str(error)


@given(st.integers(0, 2**32))
def test_every_key_is_found_in_the_line_it_was_written_to(seed: int) -> None:
    generator = random.Random(seed)
    values = [
        "1",
        "'[a]'",
        '"""\n[no]\nb = 2\n"""',
        "[\n1,\n # c\n2]",
        "{x = 1, y.z = 2}",
        "1.5 # c",
    ]
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number in range(generator.randrange(12)):
        lines += [""] * generator.randrange(2) + ["# key = 1"] * generator.randrange(2)
        if generator.random() < 0.3:
            table = (f"t{number}", "inner")[: generator.randint(1, 2)]
            lines.append(f"[{'.'.join(table)}]")
            expected[table] = len(lines)
            continue
        key = (f"k{number}", "d")[: generator.randint(1, 2)]
        expected[(*table, *key)] = len(lines) + 1
        lines += f"{'.'.join(key)} = {generator.choice(values)}".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    found = lines_of(text)
    assert {path: found[path] for path in expected} == expected


def test_a_file_is_read_and_its_name_told(tmp_path: Path) -> None:
    path = tmp_path / "roamcast.toml"
    with pytest.raises(SettingsError, match="cannot read the settings"):
        load_settings(path)
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="UTF-8"):
        load_settings(path)
    path.write_text("[limits]\nitems_max = 0\n")
    with pytest.raises(SettingsError, match=re.escape(f"{path}, line 2: limits.items_max")):
        load_settings(path)
    path.write_text("[server]\nport = 0\n[log]\nstyle = 'json'\n")
    assert load_settings(path).server.port == 0


def test_a_file_at_the_limit_is_read_and_one_byte_more_refused(tmp_path: Path) -> None:
    path = tmp_path / "roamcast.toml"
    path.write_text("#" * FILE_BYTES_MAX)
    assert load_settings(path) == Settings()
    path.write_text("#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(LimitError, match="at most 65536 bytes"):
        load_settings(path)
    with pytest.raises(LimitError):
        parse_settings("#" * (FILE_BYTES_MAX + 1))


def test_what_the_command_line_says_wins_and_is_checked() -> None:
    assert with_server(Settings(), port=9, host=None).server.port == 9
    with pytest.raises(SettingsError, match="65535"):
        with_server(Settings(), port=70_000)


def test_loopback_is_known_by_address() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_others_are_served_only_with_tls_and_keys(tmp_path: Path) -> None:
    check_listening(Settings().server)
    open_to_all = msgspec.structs.replace(Settings().server, host="0.0.0.0", data=str(tmp_path))
    with pytest.raises(SettingsError, match="without TLS"):
        check_listening(open_to_all)
    pem = tmp_path / "a.pem"
    secured = msgspec.structs.replace(open_to_all, tls_cert=str(pem), tls_key=str(pem))
    with pytest.raises(SettingsError, match="there is no file"):
        check_listening(secured)
    pem.touch()
    with pytest.raises(SettingsError, match="without keys: make them with `roamcast token"):
        check_listening(secured)
    (tmp_path / "keys.json").touch()
    check_listening(secured)


def test_the_machines_are_told_what_the_file_says() -> None:
    settings = parse_settings("[channels]\nsubscribers_min = 5\nheartbeat_s = 0.5")
    told = settings.map_settings()
    assert (told.subscribers_min, told.heartbeat_us) == (5, 500_000)
    assert math.isclose(told.client_timeout_us, 5_000_000)


def test_bounds_of_a_summary_are_those_of_who_makes_it() -> None:
    from roamcast.matching import aggregate
    from roamcast.overlay.tables.crowd import BYTES_MAX

    assert (SUMMARY_BYTES, SUMMARY_BYTES_MIN) == (aggregate.BUDGET, aggregate.BUDGET_MIN)
    assert SUMMARY_BYTES_MAX == BYTES_MAX // 2


def test_the_page_shows_a_file_that_changes_nothing() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    shown = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert [parse_settings(text) for text in shown] == [Settings()]


def test_a_host_must_be_one_of_its_cluster_and_read_the_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    text = (
        f"[cluster]\nsecret_file = '{secret}'\nreplicas.a = 'https://a'\nreplicas.b = 'https://b'"
    )
    shared = parse_settings(text)
    with pytest.raises(SettingsError, match="name this one with --name"):
        check_cluster(shared)
    b = with_server(shared, name="b")
    assert b.seats == ("a", "b")
    assert Settings().seats == ("roamcast",)
    with pytest.raises(SettingsError, match="cannot read the replicas' secret"):
        check_cluster(b)
    secret.write_text("s" * 31)
    secret.chmod(0o600)
    with pytest.raises(SettingsError, match="32 to 4096 bytes"):
        check_cluster(b)
    for size in (32, SECRET_BYTES_MAX):
        secret.write_text("s" * size)
        check_cluster(b)
    secret.write_text("s" * (SECRET_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="32 to 4096 bytes"):
        check_cluster(b)
    secret.write_text("s" * 32)
    secret.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        check_cluster(b)


def test_a_cluster_has_at_most_so_many_replicas() -> None:
    def text(count: int) -> str:
        hosts = "".join(f"h{number} = 'https://h{number}'\n" for number in range(count))
        return f"[cluster]\nsecret_file = 's'\n[cluster.replicas]\n{hosts}"

    assert len(parse_settings(text(REPLICAS_MAX)).seats) == REPLICAS_MAX
    with pytest.raises(SettingsError, match=f"length <= {REPLICAS_MAX}"):
        parse_settings(text(REPLICAS_MAX + 1))
