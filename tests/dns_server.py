"""A DNS server on loopback, with the records that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import dns.asyncresolver
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset

ZONE = "test.example"


class DnsServer(asyncio.DatagramProtocol):
    """`records` are lines such as `nodes A 127.0.0.1`; None: every question fails.

    Those that begin with `+` come along with every response.
    """

    def __init__(self) -> None:
        self.records: Iterable[str] | None = ()
        self.questions: list[str] = []

    async def __aenter__(self) -> DnsServer:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self.resolver = dns.asyncresolver.Resolver(configure=False)
        self.resolver.nameservers = ["127.0.0.1"]
        self.resolver.port = self._transport.get_extra_info("sockname")[1]
        self.resolver.search = [dns.name.from_text(ZONE)]
        return self

    async def __aexit__(self, *ended: object) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        (question,) = query.question
        self.questions.append(question.to_text())
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if self.records is None:
            response.set_rcode(dns.rcode.SERVFAIL)
        names = set()
        for line in self.records or ():
            name, kind, *words = line.removeprefix("+").split()
            full = dns.name.from_text(f"{name}.{ZONE}")
            names.add(full)
            rows = dns.rrset.from_text(full, 30, "IN", kind, " ".join(words))
            if line.startswith("+"):
                response.additional.append(rows)
            elif (rows.name, rows.rdtype) == (question.name, question.rdtype):
                response.find_rrset(
                    response.answer, rows.name, rows.rdclass, rows.rdtype, create=True
                ).update(rows)
        if self.records is not None and question.name not in names:
            response.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(response.to_wire(), addr)
