"""Where a campaign's results are also written: an fsspec URL, such as `s3://bucket/prefix`. Pure.

The URL names a place and holds no secret, since it appears in rows, reports and the store. Keys come from the environment, where the
storage's library looks for them.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

from scheduler.campaign.wrong import campaign_value_error

MAX_URL: Final = 1024
FORM: Final = "such as s3://bucket/prefix, gs://bucket/prefix or file:///srv/results"
KEYS: Final = (
    "keys belong in the environment (AWS_ACCESS_KEY_ID, …) or the library's own file (~/.aws/credentials)"
)
READ_ONLY: Final = frozenset({"http", "https", "data", "hf"})
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]{0,19})://([^/?#\\]*)((?:/[^?#\\]*)?)")


def results_of_spec(spec: str) -> str | None:
    """Where the results of a stored campaign, which was checked when it was stored, are also written."""
    url = json.loads(spec).get("results") if '"results"' in spec else None
    return url if isinstance(url, str) else None


def check_destination(text: str) -> str:
    """The URL without a slash at its end. Raises `PydanticCustomError`."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise campaign_value_error("a results URL must be printable ASCII without spaces", FORM)
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise campaign_value_error(
            "a results URL must not contain a user name or password", f"write s3://bucket/prefix; {KEYS}"
        )
    if "?" in text or "#" in text:
        raise campaign_value_error(
            "a results URL must not have a query, which may contain a key", f"{FORM}; {KEYS}"
        )
    match = _URL.fullmatch(text)
    if match is None or "::" in text:
        raise campaign_value_error("this is not the URL of a place for results", FORM)
    scheme, place, path = match.groups()
    if scheme in READ_ONLY:
        raise campaign_value_error(f"results cannot be written to {scheme}: URLs", FORM)
    if ".." in path.split("/"):
        raise campaign_value_error("a results URL must not have .. in its path", FORM)
    if not place and scheme not in ("file", "memory"):
        raise campaign_value_error(f"{scheme}:// names no bucket", FORM)
    if scheme == "file" and (place or not path.strip("/")):
        raise campaign_value_error(
            "a file: URL needs three slashes and a path", "such as file:///srv/results"
        )
    return text.rstrip("/")


ResultsUrl = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(check_destination)
]


def folder_of(url: str, campaign: str) -> str:
    """Where the results of one campaign are: `s3://bucket/prefix/c-ab23cd45`."""
    return f"{url}/{campaign}"
