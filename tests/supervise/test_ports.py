"""The reserved port: the child can have it, nobody else is given it."""

from __future__ import annotations

import socket
import sys

import pytest

from vllama.base.errors import EngineStartFailed
from vllama.supervise.ports import PortReservation

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="double bind")


@LINUX
@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_child_can_bind_and_serve_while_it_is_held(option: int, host: str) -> None:
    with PortReservation() as port, socket.socket() as child:
        assert port.shareable
        port.before_spawn()
        assert port.held
        child.setsockopt(socket.SOL_SOCKET, option, 1)
        child.bind((host, port.port))
        child.listen()
        for _ in range(20):  # every connection is the child's
            with socket.create_connection(("127.0.0.1", port.port), timeout=240):
                child.accept()[0].close()


@LINUX
@pytest.mark.parametrize("options", [[], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT]])
def test_nobody_is_given_it_meanwhile(options: list[int]) -> None:
    port_range = 51  # IP_LOCAL_PORT_RANGE (Linux 6.3): only this port may be chosen
    with PortReservation() as port, socket.socket() as other, socket.socket() as client:
        only = ((port.port << 16) | port.port).to_bytes(4, sys.byteorder)
        try:
            other.setsockopt(socket.IPPROTO_IP, port_range, only)
            client.setsockopt(socket.IPPROTO_IP, port_range, only)
        except OSError:
            pytest.skip("needs Linux 6.3")
        for option in options:
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", 0))
        with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError):
            client.connect(server.getsockname())


def test_it_is_let_go_before_the_spawn_where_it_must() -> None:
    with PortReservation() as port:
        port.shareable = False
        port.before_spawn()
        assert not port.held
        with socket.socket() as child:
            child.bind(("127.0.0.1", port.port))
        port.release()


def test_reservations_differ() -> None:
    with PortReservation() as one, PortReservation() as two:
        assert one.port != two.port


def test_where_no_port_can_be_had_that_is_the_cause() -> None:
    with pytest.raises(EngineStartFailed, match=r"no free port on 192\.0\.2\.1: ."):
        PortReservation("192.0.2.1")  # of nobody (RFC 5737)
