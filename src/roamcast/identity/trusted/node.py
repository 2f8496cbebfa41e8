"""A trusted node: its parts behind one router, live or simulated."""

import pyarrow as pa

from roamcast.identity.credentials import public_key
from roamcast.identity.keys import RandomBytes, TrustedKeys
from roamcast.identity.pseudonyms import open_few, open_vids
from roamcast.identity.trusted.departed import Departed
from roamcast.identity.trusted.epochs import TrustEpochs
from roamcast.identity.trusted.issuing import Issuing
from roamcast.identity.trusted.mailboxes import Mail, Mailboxes
from roamcast.identity.trusted.reach import ANYTHING, Reach
from roamcast.identity.trusted.register import Register
from roamcast.identity.trusted.settings import TrustSettings
from roamcast.identity.trusted.waking import WakeUps
from roamcast.model.parts import Load, Router


class TrustedNode(Router):
    """One trusted node; everything that changes it is an input given to `receive`."""

    def __init__(
        self,
        name: str,
        *,
        now: int,
        load: Load,
        private: bytes,
        random_bytes: RandomBytes,
        settings: TrustSettings | None = None,
    ) -> None:
        """`private` signs credentials; `load` reads stored values by prefix."""
        settings = settings or TrustSettings()
        self.name = name
        self.public_key = public_key(private)
        self.settings = settings
        self._epochs = TrustEpochs(name, random_bytes)
        self._mailboxes = Mailboxes(settings, lambda: self._epochs.keys)
        self._wakes = WakeUps(settings, random_bytes)
        self._register = Register(settings.people_max, random_bytes, self._keys_of)
        self._mailboxes.register = self._wakes.register = self._register
        self._departed = Departed(settings)
        self._wakes.mailboxes = self._mailboxes
        issuing = Issuing(
            settings,
            person=self._register.person,
            keys=lambda: self._epochs.keys,
            private=private,
            random_bytes=random_bytes,
        )
        super().__init__(
            (self._epochs, self._register, issuing, self._mailboxes, self._wakes, self._departed)
        )
        self.restore(load, now)

    def _keys_of(self, handle: bytes) -> list[str]:
        """Name everything that is stored for a handle besides its row in the register."""
        return [*self._mailboxes.keys_of(handle), *self._wakes.keys_of(handle)]

    # --- reads: none of these changes anything --------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the first key is on disk."""
        return bool(self._epochs.keys.current)

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs whose vids still resolve."""
        return tuple(sorted(self._epochs.keys.epochs))

    @property
    def sealing(self) -> int:
        """The epoch that seals the vids of pools."""
        return self._epochs.keys.current

    @property
    def fates(self) -> dict[str, int]:
        """What became of all parcels, counted exactly."""
        return dict(self._mailboxes.counts)

    def held(self) -> dict[str, int]:
        """How much is held of what, for metrics."""
        return {
            "people": self._register.count,
            "epochs": len(self.epochs),
            **self._mailboxes.held(),
        }

    def knows(self, subject: str) -> bool:
        """Whether somebody is in the register."""
        return self._register.knows(subject)

    def mails_of(self, subject: str) -> list[Mail]:
        """Read a person's mailbox, in the order of arrival; who never came has an empty one."""
        return self._mailboxes.mails_of(subject) if self.knows(subject) else []

    def reach_of(self, subject: str) -> Reach:
        """Read a person's reach rules; who never came has none that forbid anything."""
        return self._register.person(subject).reach if self.knows(subject) else ANYTHING

    def endpoints_of(self, subject: str) -> list[str]:
        """Read where a person's devices are woken."""
        return self._wakes.endpoints_of(subject) if self.knows(subject) else []

    def handle_of(self, subject: str) -> bytes:
        """Give a person's handle."""
        return self._register.person(subject).handle

    def departed(self, vids: list[str]) -> list[str]:
        """Give those vids whose person was erased here: their contexts are to be erased, too."""
        handles = open_vids(pa.array(vids, pa.string()), self._epochs.keys).to_pylist()
        found = zip(vids, handles, strict=True)
        return [vid for vid, handle in found if handle in self._departed]

    def shared_keys(self, agent: str) -> TrustedKeys | None:
        """Give the keys of a user agent's own epoch; None if it has none yet."""
        return self._epochs.shared_keys(agent)

    def resolve(self, vids: list[str]) -> list[bytes | None]:
        """Give the handle behind each vid, None where nobody is or nobody any more."""
        return [
            one if one is not None and self._register.reach_of(one) is not None else None
            for one in open_few(vids, self._epochs.keys)
        ]
