"""Decides which URLs and addresses may be fetched from. Pure checks of text and addresses; `download.py` does the fetching.

    text ──▶ read_url ──▶ FileUrl ─▶ addresses of its host ──▶ address_problem ──▶ connect to the very address that was checked
                            ▲                                                          │
                            └──────────────── redirected (each target again) ◀─────────┘

The owner of a device may name any http or https server that the device reaches. Everybody else may only name https on port 443 of the
public internet, never anything behind this device (its loopback, its LAN, a cloud's metadata service).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urljoin

from protocol.errors import Refused
from protocol.words import Reason

MAX_URL: Final = 2048
PORTS: Final = {"https": 443, "http": 80}
HF_HOST: Final = "huggingface.co"

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class UrlReach:
    """Where a URL may lead."""

    schemes: frozenset[str]
    ports: frozenset[int] | None
    """None: any."""
    inside: bool
    """Addresses outside the public internet are allowed too."""
    proxies: bool
    """Use the proxies that the environment names."""


OWNER_URL_REACH: Final = UrlReach(frozenset({"https", "http"}), None, inside=True, proxies=True)
OTHERS_URL_REACH: Final = UrlReach(frozenset({"https"}), frozenset({443}), inside=False, proxies=False)


@dataclass(frozen=True, slots=True)
class FileUrl:
    """A parsed URL. No library parses it again: host, port and target are used separately."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without its brackets."""
    port: int
    target: str
    """Path and query, as sent in the request."""

    @property
    def authority(self) -> str:
        """The `Host` header; the port is included only if it is not the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def shown(self) -> str:
        """The URL for users and logs: without the query, which may contain a secret."""
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"

    @property
    def address(self) -> Ip | None:
        """The host, if it is an IP address."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?:#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(?P<port>[1-9][0-9]{0,4}))?")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""With a last label like this, many systems read the whole host as an IP address in another notation."""
_TARGET: Final = re.compile(r"[!#-;=?-\[\]_a-z~]*")
"""Printable ASCII without space, quotes, angle brackets, backslash, ^, `, { | }."""
_HERE: Final = [
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "home.arpa",
    "corp",
    "onion",
]


def read_url(text: str, reach: UrlReach) -> FileUrl:
    """Parse a URL. Raises `Refused` with a one-line reason."""
    if len(text) > MAX_URL:
        raise _no(f"the URL has {len(text)} characters; at most {MAX_URL} are allowed")
    if not text.isascii():
        raise _no(
            "the URL has characters other than ASCII; write the host in its xn-- form and percent-encode the rest"
        )
    match = _URL.fullmatch(text)
    if match is None or not text.isprintable():
        raise _no("this is not a URL; a URL looks like https://host/path/model.onnx")
    scheme = match["scheme"].lower()
    if scheme not in reach.schemes:
        raise _no(f"{scheme}: URLs are not fetched here; only {' and '.join(sorted(reach.schemes))} are")
    host, port = _host_and_port(match["authority"], scheme)
    if reach.ports is not None and port not in reach.ports:
        raise _no(
            f"nothing is fetched from port {port}, only from {', '.join(map(str, sorted(reach.ports)))}"
        )
    target = match["target"]
    if not _TARGET.fullmatch(target):
        raise _no("the URL has a character that must be percent-encoded")
    url = FileUrl(scheme, host, port, target if target.startswith("/") else f"/{target}")
    if not reach.inside:
        why = address_problem(url.address) if url.address is not None else _name_problem(host)
        if why:
            raise _no(f"{host} {why}")
    return url


def _host_and_port(authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise _no("the URL has a name or a password before @; remove them")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _no("the URL's host or port cannot be read")
    host, port = match["host"].lower(), int(match["port"] or PORTS[scheme])
    if port > 65535:
        raise _no(f"there is no port {port}")
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), port
        except ValueError:
            raise _no(f"{host} is not an IPv6 address") from None
    try:
        return str(ipaddress.IPv4Address(host)), port  # four plain decimal numbers, nothing else
    except ValueError:
        pass
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise _no("the URL's host is not a valid host name")
    if _NUMBER.fullmatch(labels[-1]):
        raise _no("the URL's host is an address in an unusual spelling; write four decimal numbers")
    return host, port


def _name_problem(host: str) -> str:
    if "." not in host:
        return "is a name of this network, not of the internet"
    if any(host.endswith(f".{own}") for own in _HERE):
        return "is a name of this machine or its network, not of the internet"
    return ""


def redirected(url: FileUrl, location: str, reach: UrlReach) -> FileUrl:
    """The target of a redirect from `url`. Raises `Refused` as `read_url` does, and for a redirect from https to http."""
    if not location or len(location) > MAX_URL:
        raise _no("a redirect to nowhere")
    try:
        target = urljoin(url.url, location)
    except ValueError:
        raise _no("a redirect to a URL that cannot be read") from None
    after = read_url(target, reach)
    if url.scheme == "https" and after.scheme != "https":
        raise _no("a redirect from https to http")
    return after


# -- addresses -----------------------------------------------------------------------------------------------------------

_INSIDE: Final = {
    "this machine itself": "0.0.0.0/8 127.0.0.0/8",
    "a private network": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    "a provider's own network": "100.64.0.0/10",
    "a cloud's own service": "168.63.129.16/32",
    "link-local, where clouds keep their metadata": "169.254.0.0/16",
    "reserved": "192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 240.0.0.0/4 2620:4f:8000::/48",
    "for documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "a way to translated addresses": "192.88.99.0/24",
    "for network benchmarks": "198.18.0.0/15",
    "multicast": "224.0.0.0/4 ff00::/8",
    "this machine itself, or an IPv4 address in IPv6": "::/96",
    "an IPv4 address in IPv6": "::ffff:0:0/96",
    "a translated IPv4 address": "::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48",
    "reserved, or a tunnel": "2001::/23",
    "a tunnel to an IPv4 address": "2002::/16",
    "link-local": "fe80::/10",
}
"""Listed explicitly, since `is_global` differs between versions of Python."""
_NETWORKS: Final = tuple(
    (ipaddress.ip_network(text), what) for what, texts in _INSIDE.items() for text in texts.split()
)
_PUBLIC_V6: Final = ipaddress.ip_network("2000::/3")


def address_problem(address: Ip) -> str:
    """Why this address is not on the public internet, such as `is a private network`; empty if it is."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return "is link-local"
    for network, what in _NETWORKS:
        if address.version == network.version and address in network:
            return f"is {what}"
    if address.version == 6 and address not in _PUBLIC_V6:
        return "is not an address of the internet"
    return ""


# -- models at Hugging Face ----------------------------------------------------------------------------------------------

_HF: Final = re.compile(
    r"hf://(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})/(?P<file>[^@\s?#\\]+)(?:@(?P<revision>[\w.-]+(?:/[\w.-]+)*))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HfFile:
    """A file of a repository on Hugging Face."""

    repo: str
    file: str
    revision: str

    @property
    def url(self) -> str:
        """The URL of a public file, which can be fetched without Hugging Face's library."""
        revision = quote(self.revision, safe="")
        return f"https://{HF_HOST}/{self.repo}/resolve/{revision}/{quote(self.file)}"


def read_hf(text: str) -> HfFile:
    """The file in `hf://ORG/REPO/FILE[@REVISION]`; the revision is `main` if left out. Raises `Refused`."""
    match = _HF.fullmatch(text)
    parts = (*match["file"].split("/"), *(match["revision"] or "main").split("/")) if match else ()
    if match is None or {"", ".", ".."}.intersection(parts):
        raise _no(
            "this is not a file on Hugging Face; such a URL looks like hf://ORG/REPO/path/model.onnx@REVISION"
        )
    return HfFile(match["repo"], match["file"], match["revision"] or "main")


# -- text of URLs --------------------------------------------------------------------------------------------------------


def scheme_of(text: str) -> str:
    """`https`, `file`, `hf`, …; empty for a path. At least two letters, since `C:` is a drive."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    return match[1].lower() if match else ""


def travelling(text: str) -> str | None:
    """The URL that is sent to workers with a model's hash; None if it only makes sense on the submitting machine."""
    match scheme_of(text):
        case "https" | "http":
            return text
        case "hf":
            return read_hf(text).url
        case _:
            return None


def without_secrets(text: str) -> str:
    """A URL as written, for users, without a name and password before @ and without the query, which may contain a secret."""
    return re.sub(r"(?<=//)[^/?#]*@", "…@", text.partition("#")[0].partition("?")[0])


def name_in(text: str) -> str:
    """The last part of a URL's path, for users."""
    path = text.partition("#")[0].partition("?")[0]
    if scheme_of(text) == "hf":
        path = path.rpartition("@")[0] or path
    return unquote(path.partition("://")[2].partition("/")[2].rstrip("/").rpartition("/")[2])


def _no(why: str) -> Refused:
    return Refused(why, reason=Reason.NOT_ALLOWED)
