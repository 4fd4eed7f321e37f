"""What a stranger's URL may make this device do: names are really looked up and sockets really connected, and none leads to an internal
address.

Each case is a URL, the addresses of the names in it, and the redirects of the public server. Any server that is reached would give the
model, so a case that slipped through would be noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import structlog

from protocol.errors import Refused, Unreachable
from swarm.download.download import MAX_REDIRECTS, download
from swarm.download.urls import OTHERS_URL_REACH, read_hf, read_url, travelling
from tests.swarm.ssrf_parts import Answers, World
from tests.swarm.web_parts import PUBLIC, Papers, Web, papers, reply, web

HOST = "models.example.org"
SECRET = "s3cret"
DATA = b"what lies inside" * 100
NAMES: Mapping[str, Answers] = {HOST: [[PUBLIC]], "cdn.example.org": [["93.184.216.35"]]}


@dataclass(frozen=True)
class Case:
    """`why`: the reason for the refusal. `redirects`: one after the other. `hops`: the number of requests that the public server
    receives.
    """

    url: str
    why: str
    names: Mapping[str, Answers] = field(default_factory=dict)
    redirects: Sequence[str] = ()

    @property
    def hops(self) -> int:
        return len(self.redirects)


def inside(*addresses: str) -> Mapping[str, Answers]:
    """A public name whose owner gives it internal addresses."""
    return {"evil.example.org": [addresses]}


def by_name(why: str, *addresses: str) -> Case:
    return Case("https://evil.example.org/m", why, inside(*addresses))


def by_redirect(location: str, why: str, **names: Answers) -> Case:
    return Case(f"https://{HOST}/0", why, inside("127.0.0.1"), (location,))


HERE = "this machine itself"
ODD = "unusual spelling"
NO_NAME = "not a valid host name"
OWN = "a name of this machine"

CASES: Mapping[str, Case] = {
    # addresses in plain spelling
    "loopback": Case("https://127.0.0.1/m", HERE),
    "loopback's other end": Case("https://127.255.255.254/m", HERE),
    "this host": Case("https://0.0.0.0/m", HERE),
    "private 10": Case("https://10.0.0.1/m", "private network"),
    "private 172": Case("https://172.16.0.1/m", "private network"),
    "private 192": Case("https://192.168.0.1/m", "private network"),
    "a provider's": Case("https://100.64.0.1/m", "provider's own"),
    "metadata": Case("https://169.254.169.254/latest/meta-data", "metadata"),
    "azure": Case("https://168.63.129.16/machine", "cloud's own"),
    "multicast": Case("https://224.0.0.1/m", "multicast"),
    "broadcast": Case("https://255.255.255.255/m", "reserved"),
    "loopback 6": Case("https://[::1]/m", HERE),
    "this host 6": Case("https://[::]/m", HERE),
    "mapped": Case("https://[::ffff:127.0.0.1]/m", "IPv4 address in IPv6"),
    "mapped, in hex": Case("https://[::ffff:a9fe:a9fe]/m", "IPv4 address in IPv6"),
    "compatible": Case("https://[::127.0.0.1]/m", "IPv4 address in IPv6"),
    "link-local 6": Case("https://[fe80::1]/m", "link-local"),
    "link-local with its link": Case("https://[fe80::1%25eth0]/m", "cannot be read"),
    "unique local": Case("https://[fc00::1]/m", "private network"),
    "metadata 6": Case("https://[fd00:ec2::254]/latest/meta-data", "private network"),
    "site-local": Case("https://[fec0::1]/m", "private network"),
    "6to4 of loopback": Case("https://[2002:7f00:1::]/m", "tunnel"),
    "NAT64 of metadata": Case("https://[64:ff9b::a9fe:a9fe]/m", "translated"),
    "NAT64 of one's own": Case("https://[64:ff9b:1::a00:1]/m", "translated"),
    "Teredo": Case("https://[2001:0:5ef5:79fb::80ff:fffe]/m", "tunnel"),
    # the same addresses in other spellings
    "decimal": Case("https://2130706433/m", ODD),
    "octal": Case("https://0177.0.0.1/m", ODD),
    "hex": Case("https://0x7f000001/m", ODD),
    "hex in parts": Case("https://0x7f.0.0.0x1/m", ODD),
    "three parts": Case("https://127.0.1/m", ODD),
    "two parts": Case("https://127.1/m", ODD),
    "nothing": Case("https://0/m", ODD),
    "a dot at the end": Case("https://127.0.0.1./m", NO_NAME),
    "percent signs": Case("https://%31%32%37.0.0.1/m", NO_NAME),
    "circled digits": Case("https://①②⑦.⓪.⓪.①/m", "ASCII"),
    "wide digits": Case("https://１２７.0.0.1/m", "ASCII"),
    "ideographic dots": Case("https://127。0。0。1/m", "ASCII"),
    "circled letters": Case("https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/m", "ASCII"),
    # names that do not belong to the internet, whatever they resolve to
    "localhost": Case("https://localhost/m", "of this network", {"localhost": [["127.0.0.1"]]}),
    "LOCALHOST": Case("https://LOCALHOST/m", "of this network"),
    "localhost.": Case("https://localhost./m", NO_NAME),
    "under localhost": Case("https://x.localhost/m", OWN, {"x.localhost": [["127.0.0.1"]]}),
    "localdomain": Case("https://localhost.localdomain/m", OWN, {"localhost.localdomain": [["127.0.0.1"]]}),
    "metadata by name": Case("https://metadata.google.internal/computeMetadata/v1/", OWN),
    "metadata by name.": Case("https://metadata.google.internal./computeMetadata/v1/", NO_NAME),
    "metadata by one word": Case("https://metadata/computeMetadata/v1/", "of this network"),
    "a cluster's": Case("https://kubernetes.default.svc.cluster.local/m", OWN),
    "a home's": Case("https://router.home.arpa/m", OWN),
    "a neighbour's": Case("https://printer.local/m", OWN),
    # public names that resolve to internal addresses
    "to loopback": by_name(HERE, "127.0.0.1"),
    "to metadata": by_name("metadata", "169.254.169.254"),
    "to a private network": by_name("private network", "192.168.1.1"),
    "to a provider's": by_name("provider's own", "100.127.255.255"),
    "to loopback 6": by_name(HERE, "::1"),
    "to unique local": by_name("private network", "fd12::1"),
    "to mapped": by_name("IPv4 address in IPv6", "::ffff:10.0.0.1"),
    "to 6to4": by_name("tunnel", "2002:a9fe:a9fe::1"),
    "to NAT64": by_name("translated", "64:ff9b::7f00:1"),
    "to a link-local with its link": by_name("link-local", "fe80::1%eth0"),
    "public, then private": by_name("private network", PUBLIC, "10.0.0.1"),
    "private, then public": by_name("private network", "10.0.0.1", PUBLIC),
    "one of five": by_name(HERE, PUBLIC, *(f"93.184.216.{n}" for n in (1, 2, 3)), "127.0.0.1"),
    "public 4, private 6": by_name(HERE, PUBLIC, "::1"),
    # a name whose address changes
    "rebound between two hops": Case(
        "https://turn.example.org/0", HERE, {"turn.example.org": [[PUBLIC], ["127.0.0.1"]]}, ("/m",)
    ),
    # redirects
    "redirect to loopback": by_redirect("https://127.0.0.1/m", HERE),
    "redirect to metadata": by_redirect("//169.254.169.254/latest/meta-data", "metadata"),
    "redirect to loopback 6": by_redirect("https://[::1]/m", HERE),
    "redirect to mapped": by_redirect("https://[::ffff:127.0.0.1]/m", "IPv4 address in IPv6"),
    "redirect to decimal": by_redirect("https://2130706433/m", ODD),
    "redirect to localhost": by_redirect("https://localhost/m", "of this network"),
    "redirect to a name that leads inside": by_redirect("https://evil.example.org/m", HERE),
    "redirect to http": by_redirect(f"http://{HOST}/m", "only https"),
    "redirect to file": by_redirect("file:///etc/passwd", "only https"),
    "redirect to ftp": by_redirect("ftp://127.0.0.1/m", "only https"),
    "redirect to gopher": by_redirect("gopher://127.0.0.1:6379/_SET", "only https"),
    "redirect to data": by_redirect("data:text/plain,x", "not a URL"),
    "redirect to hf": by_redirect("hf://a/b/m.onnx", "only https"),
    "redirect to another port": by_redirect(f"https://{HOST}:8443/m", "port 8443"),
    "redirect with a password": by_redirect(f"https://root:{SECRET}@{HOST}/m", "before @"),
    "redirect behind @": by_redirect(f"https://{HOST}@127.0.0.1/m", "before @"),
    "redirect with backslashes": by_redirect(
        "https:\\\\127.0.0.1\\m", "not a URL|not a valid host name|percent-encoded"
    ),
    "redirect with a tab": by_redirect("https://127.0.0.1\t/m", HERE + "|not a URL|not a valid host name"),
    "redirect to a host in unicode": by_redirect("https://１２７.0.0.1/m", "ASCII"),
    "redirect to nowhere": by_redirect("", "nowhere"),
    "the last redirect that is followed": Case(
        f"https://{HOST}/0", HERE, {}, (*(f"/{n + 1}" for n in range(MAX_REDIRECTS)), "https://127.0.0.1/m")
    ),
    "one redirect too many": Case(
        f"https://{HOST}/0", "more than 5 redirects", {}, tuple(f"/{n + 1}" for n in range(MAX_REDIRECTS + 1))
    ),
    # ports, names and passwords, schemes
    "ssh": Case(f"https://{HOST}:22/m", "port 22"),
    "another https": Case(f"https://{HOST}:8443/m", "port 8443"),
    "port 0": Case(f"https://{HOST}:0/m", "cannot be read"),
    "a port that wraps round": Case(f"https://{HOST}:65979/m", "no port"),
    "two ports": Case(f"https://{HOST}:443:80/m", "cannot be read"),
    "a password": Case(f"https://user:{SECRET}@{HOST}/m", "before @"),
    "a host before @": Case(f"https://{HOST}@127.0.0.1/m", "before @"),
    "a port before @": Case(f"https://{HOST}:443@127.0.0.1/m", "before @"),
    "a backslash before @": Case(f"https://127.0.0.1\\@{HOST}/m", "before @"),
    "# before @": Case("https://127.0.0.1#@models.example.org/m", HERE),
    "http": Case(f"http://{HOST}/m", "only https"),
    "http on 443": Case(f"http://{HOST}:443/m", "only https"),
    "a file": Case("file:///etc/passwd", "only https"),
    "a file of a host": Case(f"file://{HOST}/etc/passwd", "only https"),
    "gopher": Case("gopher://127.0.0.1:6379/_SET", "only https"),
    "hf": Case("hf://a/b/m.onnx", "only https"),
    "hf with a host": Case("hf://127.0.0.1/latest/meta-data", "only https"),
    "a second request": Case(f"https://{HOST}/m HTTP/1.1\r\nHost: 127.0.0.1", "not a URL"),
    "a second request behind a space": Case(f"https://{HOST}/m HTTP/1.1", "percent-encoded"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates for every host that a case may reach."""
    names = [HOST, "cdn.example.org", "evil.example.org", "turn.example.org", "localhost", "x.localhost"]
    return papers(tmp_path_factory.mktemp("tls"), *names, "127.0.0.1", "::1", "169.254.169.254", "10.0.0.1")


@asynccontextmanager
async def world(names: Mapping[str, Answers], papers: Papers) -> AsyncIterator[tuple[World, Web]]:
    async with web(papers.server) as site:
        made = World({**NAMES, **names}, site.port, papers)
        made.begin()
        yield made, site


def test_there_are_at_least_forty_of_them() -> None:
    assert len(CASES) >= 40
    assert len({(case.url, str(case.names), case.redirects) for case in CASES.values()}) == len(CASES)


@pytest.mark.parametrize("name", CASES)
async def test_a_strangers_url_leads_nowhere_but_to_the_public_internet(
    name: str, good: Papers, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    async with world(case.names, good) as (outside, site):
        for target in ("/m", "/latest/meta-data"):
            site.file(target, DATA)
        for hop, location in enumerate(case.redirects):
            site.pages[f"/{hop}?key={SECRET}"] = reply(302, location=location)
            site.pages[f"/{hop}"] = reply(302, location=location)
        got = bytearray()
        url = case.url.replace(f"https://{HOST}/0", f"https://{HOST}/0?key={SECRET}")
        with structlog.testing.capture_logs() as logs, pytest.raises((Refused, Unreachable)) as error:
            await download(url, OTHERS_URL_REACH, sink=got.extend, edge=outside.edge())
        assert isinstance(error.value, Refused)
        assert not got
        error.match(case.why)
        assert {address for address, _ in outside.connected} == ({PUBLIC} if case.hops else set())
        assert len(site.asked) == case.hops
        assert SECRET not in f"{error.value} {error.value.hint} {logs} {capsys.readouterr()}"


async def test_a_name_that_changes_between_check_and_connect_is_looked_up_once(good: Papers) -> None:
    """The second answer would lead inside; the connection goes to the address that was checked."""
    async with world({"turn.example.org": [[PUBLIC], ["127.0.0.1"]]}, good) as (outside, site):
        site.file("/m", DATA)
        got = bytearray()
        await download("https://turn.example.org/m", OTHERS_URL_REACH, sink=got.extend, edge=outside.edge())
        assert got == DATA
        assert outside.looked_up == ["turn.example.org"]
        assert outside.connected == [(PUBLIC, 443)]


async def test_what_lies_on_the_internet_comes_through_the_same_edge(good: Papers) -> None:
    async with world({}, good) as (outside, site):
        site.pages["/0"] = reply(302, location="https://cdn.example.org/m")
        site.file("/m", DATA)
        got = bytearray()
        await download(f"https://{HOST}/0", OTHERS_URL_REACH, sink=got.extend, edge=outside.edge())
        assert got == DATA
        assert outside.connected == [(PUBLIC, 443), ("93.184.216.35", 443)]


@pytest.mark.parametrize(
    "text",
    [
        "hf://a/b/m.onnx",
        "hf://a/b/..%2f..%2fm",
        "hf://a/b/%2e%2e/m",
        "hf://127.0.0.1/b/m",
        "hf://a/b/m@refs/pr/1",
    ],
)
def test_what_can_be_read_after_hf_leads_to_hugging_face_alone(text: str) -> None:
    file = read_hf(text)
    place = read_url(travelling(text) or "", OTHERS_URL_REACH)
    assert (place.host, place.port) == ("huggingface.co", 443)
    assert place.target.startswith(f"/{file.repo}/resolve/")
    assert not {"..", "."} & set(place.target.split("/"))


@pytest.mark.parametrize(
    "text",
    [
        "hf://a/b/m@..",
        "hf://a/b/m@.",
        "hf://a/b/m@../../../evil",
        "hf://a/b/m@x/../..",
        "hf://a/b/m@//127.0.0.1",
        "hf://a/b/./m",
        "hf://127.0.0.1:80/b/m",
        f"hf://user:{SECRET}@a/b/m",
        "hf://a@127.0.0.1/b/m",
        "hf://a/b/m?x=@127.0.0.1",
        "hf://a/b/m#@127.0.0.1",
        "hf://a/b\\@127.0.0.1/m",
        "hf://../../m",
        "hf:////127.0.0.1/b/m",
    ],
)
def test_what_would_lead_elsewhere_after_hf_is_refused(text: str) -> None:
    with pytest.raises(Refused) as error:
        read_hf(text)
    assert SECRET not in error.value.what
