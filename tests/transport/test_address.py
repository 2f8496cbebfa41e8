"""Where the service is: said, in the environment, or written by a service on this machine."""

from pathlib import Path

import pytest

from roamcast.errors import InputError, MissingError
from roamcast.transport.address import ServiceAddress, check_url, find

ENVIRONMENT = {"ROAMCAST_URL": "http://there:1/", "ROAMCAST_TOKEN": "t"}


def written(folder: Path, text: str = '{"url": "http://127.0.0.1:80", "token": "w"}') -> Path:
    (folder / "roamcast.json").write_text(text, encoding="utf-8")
    return folder


def test_what_is_said_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    data = written(tmp_path)
    said = find("https://here", "s", data=data, environment=ENVIRONMENT)
    assert said == ServiceAddress("https://here", "s")
    assert find(data=data, environment=ENVIRONMENT) == ServiceAddress("http://there:1", "t")
    found = find(data=data, environment={})
    assert (found.url, found.key) == ("http://127.0.0.1:80", "w")


def test_a_key_from_the_file_goes_to_no_other_service(tmp_path: Path) -> None:
    data = written(tmp_path)
    assert find("http://127.0.0.1:80/", data=data, environment={}).key == "w"
    with pytest.raises(MissingError, match="ROAMCAST_TOKEN"):
        find("http://elsewhere", data=data, environment={})


def test_a_key_from_the_file_is_the_one_that_the_service_wrote_last(tmp_path: Path) -> None:
    found = find(data=written(tmp_path), environment={})
    written(tmp_path, '{"url": "http://127.0.0.1:80", "token": "renewed"}')
    assert found.key == "renewed"
    written(tmp_path, '{"url": "http://127.0.0.1:81", "token": "of another"}')
    assert found.key == "renewed"
    (tmp_path / "roamcast.json").unlink()
    assert found.key == "renewed"


def test_without_anything_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="roamcast serve"):
        find(data=tmp_path, environment={})
    with pytest.raises(MissingError, match="set ROAMCAST_TOKEN"):
        find("http://here", data=tmp_path, environment={})


@pytest.mark.parametrize("text", ["", "{}", '{"url": 1, "token": "w"}', "\xff"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"roamcast\.json"):
        find(data=written(tmp_path, text), environment={})


@pytest.mark.parametrize(
    "url", ["", "here", "ftp://here", "http://", "http://here:x", "http://a/?b", "http://u@here"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        check_url(url)


def test_a_token_may_be_a_function_that_gives_a_fresh_one() -> None:
    keys = iter(["one", "two"])
    address = ServiceAddress("http://here", lambda: next(keys))
    assert address.key == "one"
    assert address.key == "two"


def test_the_link_follows_the_scheme() -> None:
    assert ServiceAddress("http://h:1", "t").link("a.b") == "ws://h:1/link?device=a.b"
    assert ServiceAddress("https://h/x", "t").link("d") == "wss://h/x/link?device=d"
