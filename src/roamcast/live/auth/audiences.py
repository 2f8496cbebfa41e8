"""The names of a service, for which people sign their registrations.

A registration is signed for the address that the person has dialled. A service that only compared
it with the request's own header Host would accept what another service passes on: that one writes
into the header whatever it was dialled by. So the name must be one of ours: of our certificate, of
the settings, or loopback where we listen on nothing else (decision 0189).
"""

import ipaddress
from collections.abc import Collection
from pathlib import Path

from cryptography import x509

from roamcast.errors import AuthError, SettingsError
from roamcast.live.config.problems import is_loopback
from roamcast.live.config.settings import ServerSection


class Audiences:
    """Whom a registration may be signed for."""

    def __init__(self, server: ServerSection, listed: Collection[str]) -> None:
        """`listed`: names by which people reach this service, such as that of a proxy."""
        self._names = {name.lower() for name in listed}
        if server.tls_cert:
            self._names |= _names_of(Path(server.tls_cert))
        self._local = is_loopback(server.host)

    def check(self, host: str) -> str:
        """Give the header Host if it names this service; refuse it by name otherwise."""
        name = _host_of(host)
        _, _, parent = name.partition(".")
        known = name in self._names or f"*.{parent}" in self._names
        if not known and not (self._local and is_loopback(name)):
            raise AuthError(
                f"foreign service: {name[:100]!r} is not this one; its operator lists its names in "
                "[identity] hosts"
            )
        return host


def _host_of(header: str) -> str:
    """Give the name in a header Host, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _names_of(path: Path) -> set[str]:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read as a certificate: {error}") from None
    dns = {one.lower() for one in names.get_values_for_type(x509.DNSName)}
    addresses = names.get_values_for_type(x509.IPAddress)
    return dns | {str(one) for one in addresses if isinstance(one, _ADDRESS)}


_ADDRESS = (ipaddress.IPv4Address, ipaddress.IPv6Address)
