"""The names of a service: those of its certificate, of its settings, and loopback at home."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from roamcast.errors import AuthError
from roamcast.live.auth.audiences import Audiences
from roamcast.live.config.settings import ServerSection


def certificate(path: Path, *names: x509.GeneralName) -> ServerSection:
    """Write a certificate for some names."""
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
    made = made.public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    path.write_bytes(made.sign(key, None).public_bytes(Encoding.PEM))
    return ServerSection(host="192.0.2.1", tls_cert=str(path), tls_key="k")


def accepts(audiences: Audiences, host: str) -> bool:
    try:
        return audiences.check(host) == host
    except AuthError:
        return False


def test_the_names_of_the_certificate_and_of_the_settings_count(tmp_path: Path) -> None:
    names = (
        x509.DNSName("maps.example"),
        x509.DNSName("*.hq.example"),
        x509.IPAddress(ip_address("2001:db8::1")),
    )
    own = Audiences(certificate(tmp_path / "c.pem", *names), ("Proxy.example",))
    for host in ("maps.example", "MAPS.example:8443", "a.hq.example", "[2001:db8::1]:80",
                 "proxy.example"):  # fmt: skip
        assert accepts(own, host), host
    for host in ("evil.example", "hq.example", "a.b.hq.example", "localhost", "", "192.0.2.1"):
        assert not accepts(own, host), host
    assert not accepts(Audiences(certificate(tmp_path / "d.pem"), ()), "maps.example")


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:1"])
def test_on_loopback_the_names_of_loopback_count(host: str) -> None:
    assert accepts(Audiences(ServerSection(), ()), host)
    assert not accepts(Audiences(ServerSection(), ()), "evil.example")
