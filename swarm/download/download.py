"""One file by URL into a sink: the hops by hand, each looked up, checked and connected to at the very address that was checked.

    await download(url, FOR_OTHERS, sink=file.write, size=model.size)      the rest of a file: offset=…, tag=… of its first part

Nothing of this machine goes along: no cookies, no credentials, for others than the owner no proxy either. The bytes are taken as they
are (`identity`): what comes compressed is refused, so nothing can grow here. What is stored, shown or trusted is the taker's to say:
it hashes what the sink got.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx
import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.words import Reason
from swarm.download.response import FileChanged, RangeRequest, ResponseHead, read_answer
from swarm.download.urls import FileUrl, UrlReach, address_problem, read_url, redirected

CONNECT_S: Final = 10.0
HEAD_S: Final = 30.0
"""To connect, and for the whole head of an answer."""
STALL_S: Final = 20.0
"""A server that sends no byte for so long is given up."""
PACE_S: Final = 60.0
PACE: Final = 64 * 1024
"""Bytes that must come in each `PACE_S`: one that drips is given up, too."""
MAX_HOPS: Final = 5
MAX_TRIED: Final = 4
"""Addresses of one host."""
MAX_SIZE: Final = 64 * 1024**3
BLOCK: Final = 1024**2
"""Bytes handed to the sink at once."""

Sink = Callable[[bytearray], object]
"""Stores the next bytes, in order. Called in a worker thread; what it raises goes to the caller."""
Progress = Callable[[int, int], None]
"""(bytes so far, bytes in all; 0 where nobody knows)"""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Transport = Callable[[str | None], httpx.AsyncBaseTransport]
"""A fresh one, through a proxy if it is given."""

log = structlog.get_logger("sark.urls")


async def look_up(host: str, port: int) -> Sequence[str]:
    """The host's addresses by this system. Raises `OSError`."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def transport(proxy: str | None) -> httpx.AsyncBaseTransport:
    """The real one. It reads no setting of the environment but where the certificates of authorities lie."""
    return httpx.AsyncHTTPTransport(verify=httpx.create_ssl_context(), trust_env=False, proxy=proxy)


def proxy_for(
    place: FileUrl,
    proxies: Callable[[], Mapping[str, str]] = getproxies,
    bypass: Callable[[str], object] = proxy_bypass,
) -> str | None:
    """The proxy that this machine's environment names for a place, if it is one that speaks HTTP."""
    named = proxies().get(place.scheme, "")
    proxy = named if "://" in named or not named else f"http://{named}"
    return proxy if proxy.startswith(("http://", "https://")) and not bypass(place.host) else None


@dataclass(frozen=True, slots=True)
class Edge:
    """The network beyond: names, connections, the environment's proxies."""

    resolve: Resolve = look_up
    transport: Transport = transport
    proxy_for: Callable[[FileUrl], str | None] = proxy_for


EDGE: Final = Edge()


@dataclass(slots=True)
class _Want:
    """One request's side of it."""

    offset: int
    end: int | None
    tag: str
    size: int | None
    limit: int
    sink: Sink
    progress: Progress | None
    on_head: Callable[[ResponseHead], object] | None
    done: int = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.offset


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
    """Bring the file at `url` from byte `offset` on into `sink`, all of it or up to byte `end`.

    `tag`: what an earlier `ResponseHead` had, so that versions never mix; `size`: what the whole must have; `limit`: what it may
    have at most; `on_head` hears of the answer before the first byte, and what it raises ends the download.

    Raises `Refused` (a URL or a redirect that is not allowed, no such file, too large; `FileChanged` where it is not the file it was) and
    `Unreachable` where trying again, from where the sink is, may help. The caller says how long all of it may take.
    """
    want = _Want(offset, end, tag, size, limit, sink, progress, on_head)
    place = read_url(url, reach)
    for _ in range(MAX_HOPS + 1):
        addresses, proxy = await _way(place, reach, edge)
        if addresses and not any(map(_inside, addresses)):
            reach = replace(reach, inside=False)  # from the internet no redirect leads back in
        async with _asked(place, addresses, proxy, want, edge) as response:
            location = response.headers.get("location", "")
            if response.status_code not in (301, 302, 303, 307, 308):
                return await _take(place, response, want)
        place = _next(place, location, reach)
    raise Refused(f"{place.shown}: more than {MAX_HOPS} redirects", reason=Reason.NOT_ALLOWED)


def _next(place: FileUrl, location: str, reach: UrlReach) -> FileUrl:
    try:
        return redirected(place, location, reach)
    except Refused as exc:
        raise Refused(
            f"{place.shown} redirects where nobody is followed: {exc.what}", reason=exc.reason
        ) from None


# -- the way there -------------------------------------------------------------------------------------------------------


async def _way(place: FileUrl, reach: UrlReach, edge: Edge) -> tuple[Sequence[str], str | None]:
    """The checked addresses to connect to, or the proxy that does it all. Raises as `download`."""
    proxy = edge.proxy_for(place) if reach.proxies else None
    if proxy is not None:
        return (), proxy
    if place.address is not None:
        addresses: Sequence[str] = [place.host]
    else:
        try:
            with trio.fail_after(CONNECT_S):
                addresses = list(dict.fromkeys(await edge.resolve(place.host, place.port)))
        except (OSError, UnicodeError) as exc:
            why = getattr(exc, "strerror", None) or str(exc)
            raise Unreachable(f"{place.host} cannot be looked up: {why}") from None
        except trio.TooSlowError:
            raise Unreachable(f"{place.host} cannot be looked up: no answer in {CONNECT_S:g} s") from None
    if not addresses:
        raise Unreachable(f"{place.host} has no address")
    if not reach.inside:
        for address in addresses:  # one that leads inside spoils them all: who mixes them has a reason
            if why := _problem(address):
                raise Refused(f"{place.host} {why}", reason=Reason.NOT_ALLOWED)
    return addresses[:MAX_TRIED], None


def _problem(address: str) -> str:
    try:
        return address_problem(ip_address(address))
    except ValueError:
        return "has an address that cannot be read"


def _inside(address: str) -> bool:
    return bool(_problem(address))


@contextlib.asynccontextmanager
async def _asked(
    place: FileUrl, addresses: Sequence[str], proxy: str | None, want: _Want, edge: Edge
) -> AsyncIterator[httpx.Response]:
    """The answer's head from the first address that lets us connect; its body may be read in the block."""
    opened = await trio.to_thread.run_sync(edge.transport, proxy)  # it reads the authorities' certificates
    try:
        response = await _answer(place, addresses or [place.host], opened, want)
        try:
            yield response
        except httpx.HTTPError as exc:
            raise _failed(place, exc) from None
        finally:
            with trio.CancelScope(shield=True):
                await response.aclose()
    finally:
        with trio.CancelScope(shield=True):
            await opened.aclose()


async def _answer(
    place: FileUrl, addresses: Sequence[str], opened: httpx.AsyncBaseTransport, want: _Want
) -> httpx.Response:
    *others, last = addresses
    for address in others:
        try:
            return await _ask(place, address, opened, want)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            if _certificate(exc) is not None:
                raise _failed(place, exc) from None
        except httpx.HTTPError as exc:
            raise _failed(place, exc) from None
    try:
        return await _ask(place, last, opened, want)
    except httpx.HTTPError as exc:
        raise _failed(place, exc) from None


async def _ask(place: FileUrl, address: str, opened: httpx.AsyncBaseTransport, want: _Want) -> httpx.Response:
    try:
        with trio.fail_after(HEAD_S):
            return await opened.handle_async_request(_request(place, address, want))
    except trio.TooSlowError:
        raise Unreachable(f"{place.shown}: no answer in {HEAD_S:g} s") from None


def _request(place: FileUrl, address: str, want: _Want) -> httpx.Request:
    headers = {
        "Host": place.authority,
        "User-Agent": "sark-node",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    if want.done or want.end is not None:
        headers["Range"] = f"bytes={want.done}-{'' if want.end is None else want.end - 1}"
        if want.tag:
            headers["If-Range"] = want.tag
    target = httpx.URL(
        scheme=place.scheme, host=address, port=place.port, raw_path=place.target.encode("ascii")
    )
    limits = {"connect": CONNECT_S, "read": STALL_S, "write": STALL_S, "pool": CONNECT_S}
    return httpx.Request(
        "GET", target, headers=headers, extensions={"sni_hostname": place.host, "timeout": limits}
    )


def _failed(place: FileUrl, exc: httpx.HTTPError) -> Refused | Unreachable:
    wrong = _certificate(exc)
    if wrong is not None:
        return Refused(
            f"{place.host} shows a certificate that is not good: {wrong}", reason=Reason.NOT_ALLOWED
        )
    if isinstance(exc, httpx.TimeoutException):
        return Unreachable(f"{place.shown}: no byte for a while ({type(exc).__name__})")
    return Unreachable(f"{place.shown}: {_system_says(exc) or str(exc) or type(exc).__name__}")


def _system_says(exc: BaseException) -> str:
    """What the system said, such as `Connection refused`, below what libraries made of it; empty: it said nothing."""
    below: BaseException | None = exc
    while below is not None:
        if isinstance(below, BaseExceptionGroup):
            below = below.exceptions[0]
            continue
        if isinstance(below, OSError) and below.errno is not None and below.errno > 0:
            return os.strerror(below.errno)
        below = below.__cause__ or below.__context__
    return ""


def _certificate(exc: BaseException | None) -> str | None:
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return exc.verify_message
        exc = exc.__cause__ or exc.__context__
    return None


# -- the body ------------------------------------------------------------------------------------------------------------


async def _take(place: FileUrl, response: httpx.Response, want: _Want) -> ResponseHead:
    """Check the answer and pass its body on."""
    asked = RangeRequest(want.done, want.tag, want.size, want.limit, want.end)
    answer = read_answer(place, response.status_code, response.headers, asked)
    if want.on_head is not None:
        want.on_head(answer.head)
    await _pour(place, response, want, skip=want.done - answer.begins, total=answer.head.total)
    aim = want.end if want.end is not None else want.size
    if aim is not None and want.done != aim:
        if not answer.counted or want.end is not None:
            raise Unreachable(f"{place.shown}: the link ended at byte {want.done:,}")
        raise FileChanged(f"{place.shown} holds {want.done:,} bytes now, not the {aim:,} of the model")
    return answer.head if want.end is not None else replace(answer.head, total=want.done)


async def _pour(
    place: FileUrl, response: httpx.Response, want: _Want, *, skip: int, total: int | None
) -> None:
    """The body into the sink, less its first `skip` bytes, in blocks; never more than was announced or allowed."""
    most = min(each for each in (want.limit, total, want.size, want.end) if each is not None)
    block = bytearray()
    pace_from, came = trio.current_time(), 0

    async def store() -> None:
        nonlocal block
        if block:
            await trio.to_thread.run_sync(want.sink, block)
            want.done += len(block)
            block = bytearray()
            if want.progress is not None:
                want.progress(want.done, total or want.size or 0)

    body = response.aiter_raw()
    try:
        async for data in body:
            now = trio.current_time()
            came += len(data)
            if now - pace_from > PACE_S:
                if came < PACE:
                    raise Unreachable(
                        f"{place.shown}: {came:,} bytes in {now - pace_from:.0f} s are too slow"
                    )
                pace_from, came = now, 0
            fresh = data[skip:]
            skip = max(0, skip - len(data))
            if want.done + len(block) + len(fresh) > most:
                what = f"{place.shown} sends more than {most:,} bytes"
                raise Refused(what, reason=Reason.DISK_FULL) if want.size is None else FileChanged(what)
            block += fresh
            if len(block) >= BLOCK:
                await store()
    except (httpx.HTTPError, Unreachable):
        await store()  # what came is good: the rest goes on from here
        raise
    finally:
        with trio.CancelScope(shield=True):
            await _end(response, body)
    await store()


async def _end(response: httpx.Response, body: AsyncIterator[bytes]) -> None:
    """Close the link, then read to its end what stands in memory: generators left in their middle end at no certain time."""
    await response.aclose()
    with contextlib.suppress(httpx.HTTPError):
        async for _ in body:
            pass
