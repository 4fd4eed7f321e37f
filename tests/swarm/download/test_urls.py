"""What a URL may name: texts and addresses that must not be followed, each with the reason."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Refused
from swarm.download.urls import (
    OTHERS_URL_REACH,
    OWNER_URL_REACH,
    FileUrl,
    address_problem,
    name_in,
    read_hf,
    read_url,
    redirected,
    scheme_of,
    travelling,
    without_secrets,
)

REFUSED_TO_OTHERS = [
    # schemes
    ("http://models.example.org/m.onnx", "only https"),
    ("file:///etc/passwd", "only https"),
    ("file://models.example.org/etc/passwd", "only https"),
    ("ftp://models.example.org/m.onnx", "only https"),
    ("gopher://models.example.org/_GET", "only https"),
    ("dict://models.example.org/x", "only https"),
    ("data:text/plain,x", "not a URL"),
    ("javascript:alert(1)", "not a URL"),
    ("//models.example.org/m.onnx", "not a URL"),
    ("/etc/passwd", "not a URL"),
    ("", "not a URL"),
    # this machine and its network, by name
    ("https://localhost/m", "of this network"),
    ("https://LOCALHOST/m", "of this network"),
    ("https://www.localhost/m", "of this machine"),
    ("https://printer.local/m", "of this machine"),
    ("https://metadata.google.internal/computeMetadata/v1/", "of this machine"),
    ("https://nas.home.arpa/m", "of this machine"),
    ("https://router/m", "of this network"),
    # by address
    ("https://127.0.0.1/m", "this machine itself"),
    ("https://127.255.255.254/m", "this machine itself"),
    ("https://0.0.0.0/m", "this machine itself"),
    ("https://10.1.2.3/m", "a private network"),
    ("https://172.31.255.255/m", "a private network"),
    ("https://192.168.1.1/m", "a private network"),
    ("https://100.64.0.1/m", "a provider's own network"),
    ("https://100.100.100.200/latest/meta-data", "a provider's own network"),
    ("https://169.254.169.254/latest/meta-data", "metadata"),
    ("https://168.63.129.16/machine", "a cloud's own service"),
    ("https://192.0.0.192/opc/v2", "reserved"),
    ("https://198.18.0.1/m", "benchmarks"),
    ("https://203.0.113.9/m", "documentation"),
    ("https://224.0.0.1/m", "multicast"),
    ("https://239.255.255.250/m", "multicast"),
    ("https://255.255.255.255/m", "reserved"),
    ("https://240.0.0.1/m", "reserved"),
    ("https://[::1]/m", "this machine itself"),
    ("https://[::]/m", "this machine itself"),
    ("https://[0:0:0:0:0:0:0:1]/m", "this machine itself"),
    ("https://[::ffff:127.0.0.1]/m", "an IPv4 address in IPv6"),
    ("https://[::ffff:a9fe:a9fe]/m", "an IPv4 address in IPv6"),
    ("https://[::ffff:93.184.216.34]/m", "an IPv4 address in IPv6"),
    ("https://[::127.0.0.1]/m", "an IPv4 address in IPv6"),
    ("https://[::ffff:0:127.0.0.1]/m", "translated"),
    ("https://[64:ff9b::7f00:1]/m", "translated"),
    ("https://[64:ff9b:1::a00:1]/m", "translated"),
    ("https://[2002:7f00:1::]/m", "a tunnel"),
    ("https://[2001:0:53aa:64c::1]/m", "tunnel"),
    ("https://[fc00::1]/m", "a private network"),
    ("https://[fd00:ec2::254]/latest/meta-data", "a private network"),
    ("https://[fe80::1]/m", "link-local"),
    ("https://[fec0::1]/m", "a private network"),
    ("https://[ff02::1]/m", "multicast"),
    ("https://[2001:db8::1]/m", "documentation"),
    ("https://[5f00::1]/m", "not an address of the internet"),
    # addresses in other spellings, which some parsers take for 127.0.0.1 or 169.254.169.254
    ("https://2130706433/m", "unusual spelling"),
    ("https://0x7f000001/m", "unusual spelling"),
    ("https://0x7f.1/m", "unusual spelling"),
    ("https://0177.0.0.1/m", "unusual spelling"),
    ("https://127.1/m", "unusual spelling"),
    ("https://127.0.1/m", "unusual spelling"),
    ("https://127.0.0.0x1/m", "unusual spelling"),
    ("https://169.254.43518/m", "unusual spelling"),
    ("https://0xa9fea9fe/m", "unusual spelling"),
    ("https://127.0.0.1./m", "not a valid host name"),
    ("https://①②⑦.0.0.1/m", "ASCII"),
    ("https://１２７.0.0.1/m", "ASCII"),
    ("https://127。0。0。1/m", "ASCII"),
    ("https://%31%32%37.0.0.1/m", "not a valid host name"),
    ("https://[fe80::1%25eth0]/m", "cannot be read"),
    ("https://[::1/m", "cannot be read"),
    ("https://[1::2::3]/m", "not an IPv6 address"),
    # hosts that parsers disagree about
    ("https://models.example.org@127.0.0.1/m", "before @"),
    ("https://user:secret@models.example.org/m", "before @"),
    ("https://models.example.org:443@127.0.0.1/m", "before @"),
    ("https://127.0.0.1\\@models.example.org/m", "before @"),
    ("https://models.example.org\\.evil.org/m", "not a valid host name"),
    ("https://models.example.org:443:80/m", "cannot be read"),
    ("https://:443/m", "not a valid host name"),
    ("https:///m", "not a valid host name"),
    ("https://-models.example.org/m", "not a valid host name"),
    ("https://models..example.org/m", "not a valid host name"),
    ("https://" + "a." * 130 + "org/m", "not a valid host name"),
    ("https://mödels.example.org/m", "ASCII"),
    # ports
    ("https://models.example.org:22/m", "port 22"),
    ("https://models.example.org:8443/m", "port 8443"),
    ("https://models.example.org:80/m", "port 80"),
    ("https://models.example.org:0/m", "cannot be read"),
    ("https://models.example.org:65536/m", "no port"),
    ("https://models.example.org:0443/m", "cannot be read"),
    ("https://models.example.org:-1/m", "cannot be read"),
    # characters that end a request line early
    ("https://models.example.org/m HTTP/1.1", "percent-encoded"),
    ("https://models.example.org/m\r\nHost: x", "not a URL"),
    ("https://models.example.org/m\x00", "not a URL"),
    ("https://models.example.org/m\t", "not a URL"),
    ("https://models.example.org\r\n/m", "not a URL"),
    ("https://models.example.org/" + "a" * 2048, "characters"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED_TO_OTHERS)
def test_what_leads_elsewhere_than_to_the_internet_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(Refused) as caught:
        read_url(text, OTHERS_URL_REACH)
    assert why in caught.value.what
    assert "secret" not in caught.value.what


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("https://models.example.org/m.onnx", FileUrl("https", "models.example.org", 443, "/m.onnx")),
        ("HTTPS://Models.Example.ORG", FileUrl("https", "models.example.org", 443, "/")),
        ("https://models.example.org:443?id=5#top", FileUrl("https", "models.example.org", 443, "/?id=5")),
        ("https://93.184.216.34/a%20b", FileUrl("https", "93.184.216.34", 443, "/a%20b")),
        ("https://[2606:2800:220:1::1]/m", FileUrl("https", "2606:2800:220:1::1", 443, "/m")),
        ("https://xn--mdels-jua.example.org/m", FileUrl("https", "xn--mdels-jua.example.org", 443, "/m")),
    ],
)
def test_what_lies_on_the_internet_is_taken_apart(text: str, place: FileUrl) -> None:
    assert read_url(text, OTHERS_URL_REACH) == place


def test_the_owner_may_name_servers_of_its_own_network_and_other_ports() -> None:
    assert read_url("http://nas:8080/m.onnx", OWNER_URL_REACH).authority == "nas:8080"
    assert read_url("http://192.168.1.5/m", OWNER_URL_REACH).port == 80
    assert read_url("https://[fd00::1]:8443/m", OWNER_URL_REACH).url == "https://[fd00::1]:8443/m"


@pytest.mark.parametrize("text", ["ftp://nas/m", "http://user@nas/m", "http://0x7f.1/m", "http://nas/a b"])
def test_the_owner_is_refused_what_nobody_can_read_in_one_way(text: str) -> None:
    with pytest.raises(Refused):
        read_url(text, OWNER_URL_REACH)


def test_a_key_in_the_query_is_not_shown() -> None:
    assert read_url("https://a.org/m?key=secret", OTHERS_URL_REACH).shown == "https://a.org/m"


@pytest.mark.parametrize(
    ("location", "to"),
    [
        ("/other", "https://a.org/other"),
        ("other", "https://a.org/x/other"),
        ("?v=2", "https://a.org/x/m?v=2"),
        ("//cdn.example.org/m", "https://cdn.example.org/m"),
        ("https://cdn.example.org/m?sign=1", "https://cdn.example.org/m?sign=1"),
    ],
)
def test_a_redirect_leads_where_its_location_says(location: str, to: str) -> None:
    assert redirected(read_url("https://a.org/x/m", OTHERS_URL_REACH), location, OTHERS_URL_REACH).url == to


@pytest.mark.parametrize(
    "location",
    [
        "http://cdn.example.org/m",
        "https://127.0.0.1/m",
        "//127.0.0.1/m",
        "//169.254.169.254/latest",
        "https://[::1]/m",
        "https://0x7f.1/m",
        "file:///etc/passwd",
        "https://user:pw@cdn.example.org/m",
        "https://cdn.example.org:22/m",
        "//[::1",
        "",
        "\\\\127.0.0.1\\m",
        "https:\\\\127.0.0.1",
        "x" * 3000,
    ],
)
def test_a_redirect_is_looked_at_as_closely_as_the_first_url(location: str) -> None:
    with pytest.raises(Refused):
        redirected(read_url("https://a.org/x/m", OTHERS_URL_REACH), location, OTHERS_URL_REACH)


def test_not_even_the_owner_is_led_from_https_to_http() -> None:
    with pytest.raises(Refused, match="from https to http"):
        redirected(read_url("https://a.org/m", OWNER_URL_REACH), "http://a.org/m", OWNER_URL_REACH)


@given(st.ip_addresses())
def test_an_address_that_python_calls_private_or_multicast_is_never_taken_for_public(address: object) -> None:
    there = ip_address(str(address))
    if not there.is_global or there.is_multicast or there.is_link_local or there.is_reserved:
        assert address_problem(there)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for given_text in (text, f"https://{text}", f"https://a.org/{text}"):
        try:
            place = read_url(given_text, OTHERS_URL_REACH)
        except Refused:
            continue
        assert read_url(place.url, OTHERS_URL_REACH) == place


def test_a_file_at_hugging_face_is_named_with_its_repository_and_revision() -> None:
    result = read_hf("hf://onnx-community/mobilenet/onnx/model.onnx@refs/pr/1")
    assert (result.repo, result.file, result.revision) == (
        "onnx-community/mobilenet",
        "onnx/model.onnx",
        "refs/pr/1",
    )
    assert (
        result.url == "https://huggingface.co/onnx-community/mobilenet/resolve/refs%2Fpr%2F1/onnx/model.onnx"
    )
    assert read_hf("hf://a/b/m.onnx").url == "https://huggingface.co/a/b/resolve/main/m.onnx"
    assert read_url(result.url, OTHERS_URL_REACH).host == "huggingface.co"


@pytest.mark.parametrize(
    "text",
    [
        "hf://a/b",
        "hf://a/b/",
        "hf://a/b/../c",
        "hf://a/b/c@",
        "hf:a/b/c",
        "hf://a/b//c",
        "hf://../b/c",
        "hf://a/b/c d",
    ],
)
def test_what_is_no_file_at_hugging_face_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="hf://ORG/REPO"):
        read_hf(text)


def test_only_what_others_can_read_travels() -> None:
    assert travelling("https://a.org/m") == "https://a.org/m"
    assert travelling("hf://a/b/m.onnx@v1") == "https://huggingface.co/a/b/resolve/v1/m.onnx"
    assert travelling("file:///home/me/m.onnx") is None
    assert travelling("models/m.onnx") is None


def test_a_model_is_called_as_the_last_part_of_its_url() -> None:
    assert name_in("https://a.org/x/my%20model.onnx?download=1#top") == "my model.onnx"
    assert name_in("hf://a/b/onnx/model.onnx@main") == "model.onnx"
    assert name_in("https://a.org") == ""


@pytest.mark.parametrize(
    "text",
    ["https://u:s3cret@a.org/m", "https://s3cret@a.org", "https://a.org/m?key=s3cret", "//x:s3cret@a@b/m"],
)
def test_a_url_is_shown_without_what_may_be_a_password(text: str) -> None:
    assert "s3cret" not in without_secrets(text)


def test_a_drive_is_no_scheme() -> None:
    assert scheme_of("C:\\models\\m.onnx") == ""
    assert scheme_of("HTTPS://a.org") == "https"
