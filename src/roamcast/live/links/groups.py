"""By which ways does a service send to groups? Those its settings name."""

from pathlib import Path

from roamcast.errors import SettingsError
from roamcast.live.config.settings import Channels
from roamcast.transport.groups import Groups
from roamcast.transport.groups_nats import NatsGroups
from roamcast.transport.groups_udp import UdpGroups, udp_range
from roamcast.transport.sealing import seals_of_classes


def groups_of(channels: Channels, *, prefix: str, secret: bytes, mark: bytes) -> list[Groups]:
    """Make them; `secret` and `mark` are drawn at random for every process."""
    seal_of = seals_of_classes(secret, mark)
    found: list[Groups] = []
    if channels.udp:
        found.append(
            UdpGroups(
                udp_range(channels.udp),
                seal_of=seal_of,
                deliver=_nobody_listens,
                interface=channels.udp_interface,
            )
        )
    if channels.nats:
        found.append(
            NatsGroups(
                channels.nats,
                prefix=prefix,
                seal_of=seal_of,
                deliver=_nobody_listens,
                user=channels.nats_user,
                password=_password(channels),
            )
        )
    return found


def _nobody_listens(group: str, frame: bytes) -> None:
    raise AssertionError(f"a service sends to groups and joins none: {group}, {len(frame)} bytes")


def _password(channels: Channels) -> str:
    if not channels.nats_password_file:
        return ""
    path = Path(channels.nats_password_file)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"channels.nats_password_file cannot be read: {error}", source=str(path)
        ) from None
