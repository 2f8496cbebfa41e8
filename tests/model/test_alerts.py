"""Alerts of the Common Alerting Protocol: what a cast needs of them, and what is refused."""

import pytest

from roamcast.errors import InputError, LimitError
from roamcast.model.alerts import identity_of, read_alert
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter
from roamcast.model.time import parse_instant
from tests.alert_cases import ALL, AMBER, EARTHQUAKE, HURRICANE, STORM


def at(lon: float, lat: float) -> Context:
    return Context("v", None, (lon, lat), {}, 0)


def test_a_storm_goes_where_its_polygon_is_until_it_expires() -> None:
    alert = read_alert(STORM.encode())
    assert alert.expires_us == parse_instant("2003-06-17T23:00:00Z")
    assert alert.priority == "warning"
    assert alert.text_in("en").startswith("SEVERE THUNDERSTORM WARNING\nAT 254 PM")
    wanted = Filter.parse(alert.filter)
    assert wanted.matches(at(-119.94, 38.48))
    assert not wanted.matches(at(-120.2, 38.48))


def test_an_earthquake_is_an_update_of_another_and_a_point() -> None:
    alert = read_alert(EARTHQUAKE.encode())
    assert alert.step == "Update"
    assert alert.references == (identity_of("trinet@caltech.edu", "TRI13970876.1"),)
    assert alert.priority == "routine"
    assert Filter.parse(alert.filter).matches(at(-115.5527, 32.9525))


def test_an_amber_alert_speaks_two_languages_and_names_no_shape() -> None:
    alert = read_alert(AMBER.encode())
    assert alert.filter == ""
    assert alert.text_in("es-MX") == "Alerta Amber en el condado de Los Ángeles"
    assert alert.text_in("en") == alert.text_in("de") == "Amber Alert in Los Angeles County"


def test_a_circle_holds_everybody_within_its_radius_and_few_beyond() -> None:
    alert = read_alert(HURRICANE.encode())
    assert alert.priority == "emergency"
    wanted = Filter.parse(alert.filter)
    for lon, lat, inside in ((-90.07, 30.39, True), (-89.56, 29.95, True), (-90.07, 30.42, False)):
        assert wanted.matches(at(lon, lat)) == inside


def test_ids_are_those_of_sender_and_identifier() -> None:
    alerts = [read_alert(text.encode()) for text in ALL.values()]
    assert len({alert.cast_id for alert in alerts}) == len(ALL)
    assert alerts[0].cast_id == identity_of("KSTO@NWS.NOAA.GOV", "KSTO1055887203")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<alert ", "<alarm ", "not an alert"),
        ("cap:1.2", "cap:1.1", "not an alert of the Common Alerting Protocol 1.2"),
        ("<status>Actual", "<status>Draft", "a draft is not sent"),
        ("<msgType>Alert", "<msgType>Ack", "is no message to people"),
        ("<sender>KSTO@NWS.NOAA.GOV</sender>", "", "needs sender"),
        ("14:57:00-07:00", "14:57:00", "timestamp"),
        ("38.47,-120.14 38.34", "x 38.34", "is no point"),
        ("38.47,-120.14 38.34", "98.47,-120.14 38.34", "not on Earth"),
        ("38.47,-120.14</polygon>", "38.4,-120.1</polygon>", "the last as the first"),
        ("<alert ", '<!DOCTYPE a [<!ENTITY x "y">]><alert ', "no document type"),
    ],
)
def test_what_is_no_alert_is_refused_by_name(old: str, new: str, why: str) -> None:
    assert old in STORM
    with pytest.raises(InputError, match=why):
        read_alert(STORM.replace(old, new).encode())


def test_a_large_alert_is_refused() -> None:
    with pytest.raises(LimitError):
        read_alert(b"<" + bytes(PAYLOAD_BYTES_MAX))
