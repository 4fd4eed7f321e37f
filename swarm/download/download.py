"""Download one file by URL. Each redirect is resolved, checked and followed explicitly, to exactly the address that was checked.

    await download(url, OTHERS_URL_REACH, sink=file.write, size=model.size)      resume with offset=… and tag=… of the first part

Nothing about this machine is sent: no cookies, no credentials; only the owner's own URLs go through a proxy. Responses must be uncompressed
(`identity`), so nothing expands here. The caller checks the hash of the bytes in the sink.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx
import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.base.threads import DISK, DNS
from swarm.download.response import FileChanged, RangeRequest, ResponseHead, check_response
from swarm.download.urls import FileUrl, UrlReach, address_problem, read_url, redirected

CONNECT_S: Final = 10.0
HEAD_S: Final = 30.0
"""Time limit for connecting and for the whole head of a response."""
STALL_S: Final = 20.0
"""Longest time without a byte."""
PACE_S: Final = 60.0
PACE: Final = 64 * 1024
"""Bytes that must arrive in each `PACE_S`; a slower server is given up."""
MAX_REDIRECTS: Final = 5
MAX_ADDRESSES: Final = 4
"""How many addresses of one host are tried."""
MAX_SIZE: Final = 64 * 1024**3
BLOCK: Final = 1024**2
"""Bytes passed to the sink at once."""

Sink = Callable[[bytearray], object]
"""Stores the next bytes, in order. Called in a worker thread; its exceptions go to the caller."""
Progress = Callable[[int, int], None]
"""(bytes so far, total bytes; 0 if unknown)"""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Transport = Callable[[str | None], httpx.AsyncBaseTransport]
"""Makes a fresh transport, through a proxy if one is given."""

log = structlog.get_logger("sark.urls")


async def look_up(host: str, port: int) -> Sequence[str]:
    """The host's addresses, from this system's resolver. Raises `OSError`."""
    entries = await DNS.run(
        socket.getaddrinfo, host, port, socket.AF_UNSPEC, socket.SOCK_STREAM, abandon_on_cancel=True
    )
    return [str(entry[4][0]) for entry in entries]


def transport(proxy: str | None) -> httpx.AsyncBaseTransport:
    """The real transport. It reads no environment variables except those for CA certificates."""
    return httpx.AsyncHTTPTransport(verify=httpx.create_ssl_context(), trust_env=False, proxy=proxy)


def proxy_for(
    url: FileUrl,
    proxies: Callable[[], Mapping[str, str]] = getproxies,
    bypass: Callable[[str], object] = proxy_bypass,
) -> str | None:
    """The HTTP proxy that the environment names for a URL; None if there is none."""
    named = proxies().get(url.scheme, "")
    proxy = named if "://" in named or not named else f"http://{named}"
    return proxy if proxy.startswith(("http://", "https://")) and not bypass(url.host) else None


@dataclass(frozen=True, slots=True)
class Edge:
    """The outside world: name lookup, connections, the environment's proxies. Tests replace it."""

    resolve: Resolve = look_up
    transport: Transport = transport
    proxy_for: Callable[[FileUrl], str | None] = proxy_for


EDGE: Final = Edge()


async def download(
    url: str,
    reach: UrlReach,
    *,
    sink: Sink,
    offset: int = 0,
    end: int | None = None,
    tag: str = "",
    size: int | None = None,
    limit: int = MAX_SIZE,
    progress: Progress | None = None,
    on_head: Callable[[ResponseHead], object] | None = None,
    edge: Edge = EDGE,
) -> ResponseHead:
    """Read the file at `url` into `sink`, from byte `offset` to the end of the file, or up to byte `end`.

    `tag`: from an earlier `ResponseHead`, so that versions never mix; `size`: of the whole file, if known; `limit`: its largest allowed
    size; `on_head`: gets the head before the first byte, and its exception ends the download.

    Raises `Refused` (a URL or redirect that is not allowed, no such file, too large; `FileChanged` if it is a different file) and
    `Unreachable` if a retry from the current offset may help. The caller limits the total time.
    """
    transfer = _Download(RangeRequest(offset, tag, size, limit, end), sink, progress, on_head, edge, offset)
    target = read_url(url, reach)
    for _ in range(MAX_REDIRECTS + 1):
        addresses, proxy = await transfer.resolve(target, reach)
        if addresses and not any(map(_address_problem, addresses)):
            reach = replace(reach, inside=False)  # no redirect leads from the internet back inside
        async with transfer.connect(target, addresses, proxy) as response:
            location = response.headers.get("location", "")
            if response.status_code not in (301, 302, 303, 307, 308):
                return await transfer.receive(target, response)
        try:
            target = redirected(target, location, reach)
        except Refused as exc:
            raise Refused(
                f"{target.shown} redirects to a target that is not followed: {exc.what}", reason=exc.reason
            ) from None
    raise Refused(f"{target.shown}: more than {MAX_REDIRECTS} redirects", reason=Reason.NOT_ALLOWED)


@dataclass(slots=True)
class _Download:
    """One download, however many responses it takes."""

    request: RangeRequest
    sink: Sink
    progress: Progress | None
    on_head: Callable[[ResponseHead], object] | None
    edge: Edge
    position: int
    """Bytes of the file before this position are in the sink."""

    # -- connecting --------------------------------------------------------------------------------------------------------

    async def resolve(self, url: FileUrl, reach: UrlReach) -> tuple[Sequence[str], str | None]:
        """The checked addresses to connect to, or the proxy that connects for us. Raises as `download`."""
        proxy = self.edge.proxy_for(url) if reach.proxies else None
        if proxy is not None:
            return (), proxy
        addresses: Sequence[str] = [url.host]
        if url.address is None:
            try:
                with trio.fail_after(CONNECT_S):
                    addresses = list(dict.fromkeys(await self.edge.resolve(url.host, url.port)))
            except (OSError, UnicodeError) as exc:
                why = getattr(exc, "strerror", None) or str(exc)
                raise Unreachable(f"{url.host} cannot be resolved: {why}") from None
            except trio.TooSlowError:
                raise Unreachable(f"{url.host} cannot be resolved: no answer in {CONNECT_S:g} s") from None
        if not addresses:
            raise Unreachable(f"{url.host} has no address")
        if not reach.inside:
            for address in addresses:  # one inside address rejects them all: only an attack mixes them
                if why := _address_problem(address):
                    raise Refused(f"{url.host} {why}", reason=Reason.NOT_ALLOWED)
        return addresses[:MAX_ADDRESSES], None

    @contextlib.asynccontextmanager
    async def connect(
        self, url: FileUrl, addresses: Sequence[str], proxy: str | None
    ) -> AsyncIterator[httpx.Response]:
        """The head of the response from the first address that accepts a connection; the block may read its body."""
        transport = await DISK.run(self.edge.transport, proxy)  # reads the CA certificates
        try:
            response = await self._send(url, addresses or [url.host], transport)
            try:
                yield response
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        except httpx.HTTPError as exc:
            raise _explain(url, exc) from None
        finally:
            with trio.CancelScope(shield=True):
                await transport.aclose()

    async def _send(
        self, url: FileUrl, addresses: Sequence[str], transport: httpx.AsyncBaseTransport
    ) -> httpx.Response:
        for address in addresses:
            try:
                with trio.fail_after(HEAD_S):
                    return await transport.handle_async_request(_http_request(url, address, self.request))
            except trio.TooSlowError:
                raise Unreachable(f"{url.shown}: no answer in {HEAD_S:g} s") from None
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                if address == addresses[-1] or _certificate_problem(exc):
                    raise
        raise AssertionError("there is an address")

    # -- the body ----------------------------------------------------------------------------------------------------------

    async def receive(self, url: FileUrl, response: httpx.Response) -> ResponseHead:
        """Check the head and store the body."""
        request = self.request
        head = check_response(url, response.status_code, response.headers, request)
        if self.on_head is not None:
            self.on_head(head)
        await self._store_body(url, response, skip=self.position - head.begins, total=head.total)
        expected = request.end if request.end is not None else request.size
        if expected is not None and self.position != expected:
            if not head.counted or request.end is not None:
                raise Unreachable(f"{url.shown}: the link ended at byte {self.position:,}")
            raise FileChanged(
                f"{url.shown} holds {self.position:,} bytes now, not the {expected:,} of the model"
            )
        return head if request.end is not None else replace(head, total=self.position)

    async def _store_body(
        self, url: FileUrl, response: httpx.Response, *, skip: int, total: int | None
    ) -> None:
        """Store the body without its first `skip` bytes, in blocks; never more than announced or allowed."""
        request = self.request
        most = min(each for each in (request.limit, total, request.size, request.end) if each is not None)
        block = bytearray()
        pace_from, pace_bytes = trio.current_time(), 0

        async def flush() -> None:
            nonlocal block
            if block:
                await DISK.run(self.sink, block)
                self.position += len(block)
                block = bytearray()
                if self.progress is not None:
                    self.progress(self.position, total or request.size or 0)

        body = response.aiter_raw()
        try:
            async for data in body:
                now = trio.current_time()
                pace_bytes += len(data)
                if now - pace_from > PACE_S:
                    if pace_bytes < PACE:
                        raise Unreachable(
                            f"{url.shown}: {pace_bytes:,} bytes in {now - pace_from:.0f} s is too slow"
                        )
                    pace_from, pace_bytes = now, 0
                fresh = data[skip:]
                skip = max(0, skip - len(data))
                if self.position + len(block) + len(fresh) > most:
                    what = f"{url.shown} sends more than {most:,} bytes"
                    raise (
                        Refused(what, reason=Reason.DISK_FULL) if request.size is None else FileChanged(what)
                    )
                block += fresh
                if len(block) >= BLOCK:
                    await flush()
        except (httpx.HTTPError, Unreachable):
            await flush()  # these bytes are good: a retry continues from here
            raise
        finally:
            with trio.CancelScope(shield=True):
                await _close(response, body)
        await flush()


def _address_problem(address: str) -> str:
    try:
        return address_problem(ip_address(address))
    except ValueError:
        return "has an address that cannot be read"


def _http_request(url: FileUrl, address: str, request: RangeRequest) -> httpx.Request:
    headers = {
        "Host": url.authority,
        "User-Agent": "sark-node",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if request.offset or request.end is not None:
        headers["Range"] = f"bytes={request.offset}-{'' if request.end is None else request.end - 1}"
        if request.tag:
            headers["If-Range"] = request.tag
    target = httpx.URL(scheme=url.scheme, host=address, port=url.port, raw_path=url.target.encode("ascii"))
    timeouts = {"connect": CONNECT_S, "read": STALL_S, "write": STALL_S, "pool": CONNECT_S}
    return httpx.Request(
        "GET", target, headers=headers, extensions={"sni_hostname": url.host, "timeout": timeouts}
    )


def _explain(url: FileUrl, exc: httpx.HTTPError) -> Refused | Unreachable:
    problem = _certificate_problem(exc)
    if problem:
        return Refused(f"{url.host} presents an invalid certificate: {problem}", reason=Reason.NOT_ALLOWED)
    if isinstance(exc, httpx.TimeoutException):
        return Unreachable(f"{url.shown}: no byte for a while ({type(exc).__name__})")
    return Unreachable(f"{url.shown}: {_system_error(exc) or str(exc) or type(exc).__name__}")


def _system_error(exc: BaseException) -> str:
    """The system's error text, such as `Connection refused`, from below the libraries' exceptions; empty if there is none."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
            continue
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return ""


def _certificate_problem(exc: BaseException | None) -> str:
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return exc.verify_message
        exc = exc.__cause__ or exc.__context__
    return ""


async def _close(response: httpx.Response, body: AsyncIterator[bytes]) -> None:
    """Close the link, then read the rest that is in memory: Python closes an abandoned generator at an unpredictable time."""
    await response.aclose()
    with contextlib.suppress(httpx.HTTPError):
        async for _ in body:
            pass
