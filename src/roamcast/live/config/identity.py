"""Settings of who vouches for people, and where their mail goes."""

from typing import Annotated

import msgspec

from roamcast.live.config.problems import TRUSTED_NAME_MAX, public_key
from roamcast.live.config.sections import Section
from roamcast.live.config.sections import number as _number
from roamcast.live.config.sections import text as _text


class TrustedMailSection(Section, frozen=True, kw_only=True):
    """Where mail for the people of a trusted node goes."""

    url: Annotated[str, _text("address of the trusted node")]
    token_file: Annotated[
        str, _text("file with a token of its own, of scope `deposit`; readable by its owner only")
    ]
    tls_ca: Annotated[str, _text("PEM file of who signs its certificate")] = ""


PUSH_SERVICES = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    ".push.apple.com",
    ".notify.windows.com",
)


class PushSection(Section, frozen=True, kw_only=True):
    """Web Push: waking devices whose mailbox has mail, without saying anything."""

    contact: Annotated[
        str,
        msgspec.Meta(
            max_length=255,
            pattern="^((mailto:|https://)[!-~]+)?$",
            description="`mailto:` or `https:` address of the operator, for push services; "
            "without one no pushes are sent",
        ),
    ] = ""
    services: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=253)], ...],
        msgspec.Meta(
            max_length=1_000,
            description="hosts of push services that may be asked; one that begins with a dot "
            "stands for all below it",
        ),
    ] = PUSH_SERVICES
    timeout_s: Annotated[float, _number(0.1, 60, "time for a push service to answer")] = 10.0
    private_addresses: Annotated[
        bool,
        msgspec.Meta(
            description="whether push services may be on loopback and private networks, and use "
            "http"
        ),
    ] = False


class Identity(Section, frozen=True, kw_only=True):
    """Who vouches for people without naming them (docs/trust.md)."""

    node: Annotated[
        str,
        msgspec.Meta(
            max_length=TRUSTED_NAME_MAX,
            description="name of the trusted node that runs inside this service; empty for none",
        ),
    ] = "trust.localhost"
    accept: Annotated[
        dict[str, str],
        msgspec.Meta(
            max_length=1_000,
            description="other trusted nodes whose credentials are accepted, each with its key: "
            '`"trust.example.org" = "ed25519:…"`',
        ),
    ] = msgspec.field(default_factory=dict)
    mail: Annotated[
        dict[str, TrustedMailSection],
        msgspec.Meta(max_length=1_000, description="tables `[identity.mail.NODE]`: see below"),
    ] = msgspec.field(default_factory=dict)
    hosts: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=253)], ...],
        msgspec.Meta(
            max_length=100,
            description="names by which people reach this service, besides those of its "
            "certificate, such as that of a proxy: registrations are signed for them",
        ),
    ] = ()
    key_days: Annotated[
        float,
        _number(
            0.001, 36_600, "longest that the key of a vid is kept, to seal casts into its past"
        ),
    ] = 60.0

    def accepted(self) -> dict[str, bytes]:
        """Give the public keys of the trusted nodes in `accept`."""
        return {name: public_key(text) for name, text in self.accept.items()}
