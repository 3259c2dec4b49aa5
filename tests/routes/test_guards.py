"""Which hosts and which pages may talk to the server."""

from __future__ import annotations

import ipaddress

import psutil
import pytest

from vllama.routes.guards import Guards


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:11434", True),
        ("x.localhost", True),
        ("127.0.0.1:11434", True),
        ("127.3.2.1", True),
        ("[::1]:11434", True),
        ("0.0.0.0:11434", True),
        ("10.0.0.7", True),
        ("172.16.0.1", True),
        ("172.31.255.255:80", True),
        ("192.168.178.20:11434", True),
        ("[fd00::7]", True),
        ("[::ffff:10.0.0.7]:11434", True),
        ("nas.local:11434", True),
        # private to Python, but nobody's own
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("198.51.100.1", False),
        ("203.0.113.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("[2001:db8::1]", False),
        ("[::ffff:169.254.169.254]", False),
        ("172.32.0.1", False),
        ("8.8.8.8", False),
        ("evil.example:11434", False),
        ("10.0.0.7.evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example#localhost", False),
        ("[::1].evil.example", False),
        ("[::1]:80.evil.example", False),
        ("[::1]evil.localhost", False),
        ("[::1", False),
        ("::1]", False),
        ("localhost:80.evil.example", False),
        ("localhost:80:80", False),
        ("localhost:", True),
        ("localhost:evil.localhost", False),
        ("user@localhost", False),
        ("evil.example/.localhost", False),
        ("evil.example .localhost", False),
        ("[127.0.0.1]:80", True),
        ("::1", True),
    ],
)
def test_hosts_of_a_server_for_this_machine(host: str, allowed: bool) -> None:
    assert Guards(loopback=True).host_allowed(host) is allowed
    assert Guards(loopback=False).host_allowed(host)
    assert Guards(loopback=True).host_allowed(host, keyed=True)


def test_the_addresses_of_this_machine_are_allowed() -> None:
    addresses = {one.address for group in psutil.net_if_addrs().values() for one in group}
    for address in addresses:
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:  # of the hardware
            continue
        host = f"[{ip}]:11434" if ip.version == 6 else f"{ip}:11434"
        assert Guards(loopback=True).host_allowed(host), host


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("", "evil.example", True),  # no page
        ("http://localhost:3000", "gpu", True),
        ("app://chat", "gpu", True),
        ("http://chat.example", "gpu", True),  # named by the user
        # pages that a proxy serves beside us
        ("http://gpu:11434", "gpu:11434", True),
        ("http://gpu.lan", "gpu.lan", True),
        ("http://gpu.local:8080", "gpu.local:8080", True),
        ("http://192.168.0.2:11434", "192.168.0.2:11434", True),
        ("http://203.0.113.5", "203.0.113.5", True),
        ("http://[2001:db8::1]:11434", "[2001:db8::1]:11434", True),
        ("https://ai.example", "ai.example", True),  # who could show its certificate?
        # a stranger's page whose name leads here
        ("http://evil.example:11434", "evil.example:11434", False),
        ("http://192.168.0.2.evil.example", "192.168.0.2.evil.example", False),
        ("http://evil.example", "gpu", False),
        ("http://gpu:11434", "gpu:80", False),
        # nor what only begins like a page of this machine
        ("https://localhost:443.evil.example", "gpu", False),
        ("http://localhost:evil.example", "gpu", False),
        ("http://[::1].evil.example", "[::1].evil.example", False),
        ("http://localhost@evil.example", "gpu", False),
        ("http://evil@localhost", "gpu", False),
        ("http://localhost/evil.example", "gpu", False),
        ("http://localhost?evil.example", "gpu", False),
        ("http://localhost:3000 http://evil.example", "gpu", False),
        ("HTTP://LOCALHOST:3000", "gpu", False),
        ("null", "gpu", False),
    ],
)
def test_pages_on_a_server_for_all(origin: str, host: str, allowed: bool) -> None:
    guards = Guards(loopback=False, origins=("http://chat.example",))
    assert guards.origin_allowed(origin, host) is allowed


def test_with_keys_a_page_of_the_same_host_may_have_any_name() -> None:
    host = "gpu.corp.example:11434"
    assert Guards(loopback=False).origin_allowed(f"http://{host}", host, keyed=True)
    assert not Guards(loopback=False).origin_allowed(f"http://{host}", host)
