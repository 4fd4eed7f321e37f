"""Writes a campaign's results to an fsspec URL: object storage, or a folder that other machines see. Blocking.

    URL/CAMPAIGN/results.csv, report.html, raw.json (samples and signed records), and last index.json with the sha256 of each

Each file appears whole or not at all, and whoever sees index.json sees all of them. Repeating the call writes the same files again.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from protocol.errors import ResourceError
from results.export.csv import csv_lines
from results.export.raw import ResultSource, json_lines, write_lines
from results.row.form import utc
from scheduler.campaign.destination import KEYS, folder_of
from scheduler.output.render import ReportFormat, make_report, render
from scheduler.store.readers import campaign_rows, raw_results
from scheduler.store.store import Store
from swarm.base.text import safe_text

INDEX: Final = "index.json"
OBJECT_STORAGE: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos"}
)
"""Schemes of object storage. It has no folders, and making one would create a missing bucket."""
INSTALL: Final = "python -m pip install 'sark-node[storage]'"
_QUERY: Final = re.compile(r"\?\S+")


def check_storage(url: str) -> None:
    """Check, without connecting, whether this machine can write to such URLs at all. Raises `ResourceError`."""
    scheme = url.partition("://")[0]
    try:
        fsspec: Any = import_module("fsspec")
        fsspec.get_filesystem_class(scheme)
    except ImportError as exc:
        if exc.name == "fsspec" or scheme in ("s3", "s3a"):
            raise ResourceError(f"results: {scheme}:// needs the extra [storage]", hint=INSTALL) from None
        hint = safe_text(str(exc), 200)  # names the package
        raise ResourceError(
            f"results: {scheme}:// needs a package that is not installed", hint=hint
        ) from None
    except ValueError:
        raise ResourceError(
            f"results: no installed package writes to {scheme}://", hint="such as s3://bucket/prefix"
        ) from None


def send_results(store: Store, campaign: str, url: str, wall: Callable[[], float] = time.time) -> str:
    """Write the results of an ended campaign below `url`; returns the URL of its folder. Raises `ResourceError` with one line."""
    check_storage(url)
    target = folder_of(url, campaign)
    with tempfile.TemporaryDirectory(prefix="sark-results-") as folder:
        made = Path(folder)
        _make_files(store, campaign, made, wall())
        fsspec: Any = import_module("fsspec")
        try:
            fs, root = fsspec.core.url_to_fs(target)
            if url.partition("://")[0] not in OBJECT_STORAGE:
                fs.makedirs(root, exist_ok=True)
            for path in (*sorted(each for each in made.iterdir() if each.name != INDEX), made / INDEX):
                _put(fs, path, f"{root}/{path.name}")
        except failures() as exc:
            raise ResourceError(
                f"results of {campaign} cannot be written to {target}: {_line(exc)}",
                hint=f"the results are kept here; try again: sark-node results {campaign} --send {url}\n{KEYS}",
            ) from None
    return target


def failures() -> tuple[type[Exception], ...]:
    """Exceptions of storage libraries; those of S3 have a base class of their own."""
    found: list[type[Exception]] = [OSError, ValueError, ImportError, RuntimeError]
    try:
        botocore: Any = import_module("botocore.exceptions")
        found += [botocore.BotoCoreError, botocore.ClientError]
    except ImportError:
        pass
    return tuple(found)


def _put(fs: Any, path: Path, target: str) -> None:
    """Write a file atomically: an object appears whole; a local file is written beside its target and renamed."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "file" not in protocols:
        fs.put_file(str(path), target)
        return
    part = Path(f"{target}.part")
    fs.put_file(str(path), str(part))
    part.replace(target)


def _make_files(store: Store, campaign: str, folder: Path, now: float) -> None:
    stored = store.results.rows(campaign)
    results = tuple(raw_results(stored, store.campaigns.evaluations(campaign)))
    write_lines(folder / "results.csv", csv_lines(campaign_rows(stored)))
    write_lines(folder / "raw.json", json_lines(campaign, results))
    source = ResultSource(campaign, campaign, results, whole=results)
    report = render(make_report(source, store.campaigns.summary(campaign), now), ReportFormat.HTML)
    write_lines(folder / "report.html", [report])
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as reader:
            digest = hashlib.file_digest(reader, "sha256").hexdigest()
        files[path.name] = {"sha256": digest, "size": path.stat().st_size}
    index = {"campaign": campaign, "written": utc(now), "files": files}
    write_lines(folder / INDEX, [json.dumps(index, indent=1), "\n"])


def _line(error: Exception) -> str:
    """The error's first line without URL queries, which may contain signatures."""
    text = str(error).strip().splitlines()
    return safe_text(_QUERY.sub("?…", text[0]) if text else type(error).__name__, 300)
