"""A scripted web server on loopback, and an edge that decides where names lead: for the tests of models by URL."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from swarm.download.download import Edge

PUBLIC = "93.184.216.34"


@dataclass(frozen=True)
class Asked:
    """A request as the server received it."""

    target: str
    headers: Mapping[str, str]


Answer = Callable[[Asked, trio.abc.Stream], Awaitable[None]]


def reply(status: int = 200, body: bytes = b"", length: int | None = None, **headers: str) -> bytes:
    """The bytes of an answer; `length`: a false content length; -1: no content length."""
    values = {name.replace("_", "-"): value for name, value in headers.items()}
    if length != -1:
        values["content-length"] = str(len(body) if length is None else length)
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in values.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Web:
    """The server's pages, and the requests that it received."""

    asked: list[Asked] = field(default_factory=list)
    pages: dict[str, Answer | bytes] = field(default_factory=dict)
    port: int = 0

    def file(self, target: str, data: bytes, tag: str = '"one"', *, ranges: bool = True) -> None:
        """Serve a file as a well-behaved server does."""

        async def answer(asked: Asked, stream: trio.abc.Stream) -> None:
            expected = asked.headers.get("range")
            same = asked.headers.get("if-range", tag) == tag
            if not (ranges and expected and same):
                await stream.send_all(reply(body=data, etag=tag))
                return
            first, _, last = expected.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(len(data), int(last or len(data)) + 1)
            extent = f"bytes {begin}-{end - 1}/{len(data)}"
            await stream.send_all(reply(206, data[begin:end], etag=tag, content_range=extent))

        self.pages[target] = answer

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                part = await stream.receive_some(4096)
                if not part:
                    return
                head += part
            first, *lines = head.decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            request_found = Asked(first.split(" ")[1], headers)
            self.asked.append(request_found)
            page = self.pages.get(request_found.target, reply(404))
            if isinstance(page, bytes):
                await stream.send_all(page)
            else:
                await page(request_found, stream)
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            pass
        finally:
            with trio.move_on_after(0):
                await stream.aclose()


@dataclass(frozen=True)
class Papers:
    """A server's certificate, and a context that trusts it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def papers(folder: Path, *names: str, days: int = 30) -> Papers:
    """A self-signed certificate for `names`; `days` below 0: it has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    known: list[x509.GeneralName] = []
    for name in names:
        try:
            known.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            known.append(x509.DNSName(name))
    made = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "papers.pem"
    file.write_bytes(pem + secret)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    client = ssl.create_default_context(cadata=pem.decode())
    return Papers(server, client)


@asynccontextmanager
async def web(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Web]:
    """Run a server for the block."""
    site = Web()

    async def one(stream: trio.SocketStream) -> None:
        if tls is None:
            await site.serve(stream)
        else:
            await site.serve(trio.SSLStream(stream, tls, server_side=True))

    listeners = await trio.open_tcp_listeners(0, host=host)
    site.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, one, listeners)
        yield site
        nursery.cancel_scope.cancel()


@contextmanager
def web_beside() -> Iterator[Web]:
    """Run a server in another thread, for tests of blocking code."""
    up = threading.Event()
    results: list[tuple[Web, trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def serve() -> None:
        async with web() as made:
            with trio.CancelScope() as scope:
                results.append((made, trio.lowlevel.current_trio_token(), scope))
                up.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    up.wait(10)
    site, token, scope = results[0]
    try:
        yield site
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(10)


@dataclass
class Net:
    """A made-up internet: the addresses of each name, and the one server behind all of them."""

    names: dict[str, Sequence[str]]
    site: Web
    client: ssl.SSLContext | None = None
    connected: list[tuple[str, int, object]] = field(default_factory=list)
    """(address, port, name in the handshake) of each connection."""
    looked_up: list[str] = field(default_factory=list)
    dead: frozenset[str] = frozenset()

    def edge(self) -> Edge:
        """The edge to pass to `download`."""
        net = self

        async def resolve(host: str, port: int) -> Sequence[str]:
            net.looked_up.append(host)
            if host not in net.names:
                raise OSError("no such name")
            return net.names[host]

        class Rerouted(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                net.connected.append(
                    (request.url.host, request.url.port or 443, request.extensions["sni_hostname"])
                )
                if request.url.host in net.dead:
                    raise httpx.ConnectError("nobody there")
                request.url = request.url.copy_with(host="127.0.0.1", port=net.site.port)
                return await super().handle_async_request(request)

        return Edge(
            resolve,
            lambda proxy: Rerouted(verify=net.client or ssl.create_default_context()),
            lambda place: None,
        )
