"""On which host is the service now? Those it was said to be on, and those it told of itself.

A service that other hosts take over from names them in its welcome. Whoever answered last is asked
first; the others are asked when it does not answer.
"""

from collections.abc import Iterable
from typing import Final

from roamcast.errors import InputError
from roamcast.transport.address import ServiceAddress, check_url

HOSTS_MAX: Final = 32


class Hosts:
    """The addresses of one service, with the key that is good on all of them."""

    def __init__(self, address: ServiceAddress) -> None:
        self._token = address.token
        self._urls = dict.fromkeys((address.url, *address.others))

    @property
    def current(self) -> ServiceAddress:
        """The host that answered last, or the first that was said."""
        return self.all()[0]

    def all(self) -> list[ServiceAddress]:
        """Every host, in the order in which to ask them."""
        return [ServiceAddress(url, self._token) for url in self._urls]

    def answered(self, url: str) -> None:
        """Ask this one first from now on."""
        self._urls = dict.fromkeys((url, *self._urls))

    def passed_over(self, url: str) -> None:
        """Ask this one last from now on."""
        self._urls.pop(url, None)
        self._urls[url] = None

    def learn(self, urls: Iterable[str]) -> None:
        """Take hosts that the service told of; a key that went by TLS never goes without."""
        secure = self.current.url.startswith("https:")
        for url in urls:
            try:
                url = check_url(url)
            except InputError:
                continue
            if len(self._urls) < HOSTS_MAX and (not secure or url.startswith("https:")):
                self._urls.setdefault(url)
