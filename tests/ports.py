"""Ports that stay a test's own.

The system gives a port in use to nobody who asks for any port, neither to a listener nor to a connection. A connection from the
port keeps it in use, and a server that names it can listen there, also after a restart (both with SO_REUSEADDR).

    python3 tests/ports.py      prints the number of such a port, and holds it until its standard input ends
"""

import socket
import sys

# Both ends of the connections that hold ports.
_ends: list[socket.socket] = []


def held_port() -> int:
    """A port of 127.0.0.1 that is this process's own until the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        near.bind(("127.0.0.1", 0))
        near.connect(listener.getsockname())
        far, _ = listener.accept()
    _ends.extend((near, far))
    return near.getsockname()[1]


if __name__ == "__main__":
    print(held_port(), flush=True)
    sys.stdin.read()
