"""An S3 endpoint on loopback: moto's, as a process of its own that tells its port.

A process of its own, because deltalake holds the interpreter's lock while it waits for an answer.
One request at a time: moto looks for a key and puts it in two steps, and S3 does so in one.
"""

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

application = DomainDispatcherApplication(create_backend_app)
turn = Lock()


def one_at_a_time(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    with turn:
        return list(application(environment, start))


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()
