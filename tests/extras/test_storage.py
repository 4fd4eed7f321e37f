"""Results sent to S3 by the real s3fs, against moto's server in a separate process, found through AWS_ENDPOINT_URL."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from scheduler.store.rows import NewCampaign
from scheduler.store.store import Store
from swarm.base.home import Home
from tests.real.lab import Done, a_lab, campaign, free_port, script, until

BUCKET = "results"
OWNER = "owner"
URL = f"s3://{BUCKET}/nightly"
NAMES = {"index.json", "raw.json", "report.html", "results.csv"}
RIGHTS = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": "*"}],
}
"""The rights that the how-to asks for."""


@dataclass
class S3Server:
    """Moto's server. It loses its buckets when it stops, and checks keys once `guard` was called."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._answers, "the S3 server answers")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=60):  # noqa: S310  (of this host)
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self, service: str = "s3") -> Any:
        given = {"endpoint_url": self.endpoint, "region_name": "us-east-1"}
        return botocore.session.Session().create_client(
            service, aws_access_key_id=OWNER, aws_secret_access_key=OWNER, **given
        )

    def guard(self) -> dict[str, str]:
        """Check every request from now on. Returns the environment of a user with the rights from the how-to."""
        iam = self.client("iam")
        iam.create_user(UserName="sark")
        iam.put_user_policy(UserName="sark", PolicyName="results", PolicyDocument=json.dumps(RIGHTS))
        key = iam.create_access_key(UserName="sark")["AccessKey"]
        checked = urllib.request.Request(  # noqa: S310  (of this host)
            f"{self.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(checked):  # noqa: S310
            return self.environment(key["AccessKeyId"], key["SecretAccessKey"])

    def environment(self, key: str = OWNER, secret: str = OWNER) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def files(self, prefix: str) -> dict[str, bytes]:
        """Names and contents of all objects of a campaign."""
        s3, found = self.client(), dict[str, bytes]()
        for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", ()):
            body = s3.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
            found[one["Key"].rpartition("/")[2]] = body
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    made = S3Server(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a campaign that has ended."""
    made = Home.at(tmp_path / "home")
    made.store.parent.mkdir(parents=True)
    with Store(made.store) as store:
        store.campaigns.create(NewCampaign("c-one", "t", "me", "{}"), [], [])
        store.campaigns.end("c-one")
    return made


def send(home: Home, environment: Mapping[str, str], url: str = URL) -> Done:
    """Send the results as the scheduler does, in a separate process."""
    command = [sys.executable, "-P", "-m", "sark", "--home", str(home.data.parent)]
    command += ["results", "c-one", "--send", url]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=600
    )
    return Done(done.returncode, done.stdout, done.stderr)


def said(done: Done) -> str:
    """The one line of the error message."""
    assert done.code == 6, done
    assert "Traceback" not in done.err, done
    (line,) = (line for line in done.err.splitlines() if line.startswith("sark-node: "))
    return line.removeprefix("sark-node: ")


def whole(files: Mapping[str, bytes]) -> bool:
    """Whether all files match the index, which is written last."""
    if "index.json" not in files:
        return False
    assert files.keys() == NAMES
    for name, known in json.loads(files["index.json"])["files"].items():
        assert known == {"sha256": hashlib.sha256(files[name]).hexdigest(), "size": len(files[name])}
    return True


def test_results_need_no_more_rights_than_to_write(server: S3Server, home: Home) -> None:
    server.client().create_bucket(Bucket=BUCKET)
    may = server.guard()
    done = send(home, may)
    assert (done.code, done.err) == (0, f"wrote the results of c-one to {URL}/c-one\n")
    assert send(home, may).code == 0, "again"


def test_who_may_not_gets_one_line_without_a_secret(server: S3Server, home: Home) -> None:
    server.client().create_bucket(Bucket=BUCKET)
    may = server.guard()
    refused = f"results of c-one cannot be written to {URL}/c-one: "
    unknown = send(home, server.environment("AKIAUNKNOWN", "s3cret"))
    assert said(unknown).startswith(f"{refused}The AWS Access Key Id you provided does not exist")
    assert "AWS_ACCESS_KEY_ID" in unknown.err
    wrong = send(home, may | {"AWS_SECRET_ACCESS_KEY": "s3cret"})
    assert said(wrong).startswith(f"{refused}The request signature we calculated does not match")
    assert "s3cret" not in unknown.err + wrong.err
    none = send(home, {**server.environment("", ""), "AWS_EC2_METADATA_DISABLED": "true"})
    assert said(none) == f"{refused}Unable to locate credentials"


def test_a_bucket_that_is_not_there_is_not_made(server: S3Server, home: Home) -> None:
    missing = send(home, server.environment())
    assert (
        said(missing)
        == f"results of c-one cannot be written to {URL}/c-one: The specified bucket does not exist"
    )
    assert server.client().list_buckets()["Buckets"] == []


def test_a_campaign_waits_for_a_server_that_is_down_and_loses_nothing(
    server: S3Server, tmp_path: Path
) -> None:
    """Gate, worker and scheduler are real processes."""
    server.client().create_bucket(Bucket=BUCKET)
    with a_lab(tmp_path / "lab", ("ada",), workers=("one",), settings=server.environment()) as lab:
        model = script(tmp_path, "m.json", latencies_ms=[2.0])
        first = lab.submit("ada", campaign(tmp_path, "first", [model], results=URL))
        assert first.code == 0, first
        name = first.json()["campaign"]
        files = until(lambda: whole(found := server.files(f"nightly/{name}")) and found, "all is there")
        assert f"{URL}/{name}".encode() in files["results.csv"]
        server.stop()
        second = lab.submit("ada", campaign(tmp_path, "second", [model], results=URL))
        assert second.code == 0, "it ends as ever"
        name = second.json()["campaign"]
        question = "SELECT tries, why, sent FROM sendings WHERE campaign = ?"
        tried = until(lambda: [row for row in lab.ask("ada", question, name) if row[0]], "it was tried")
        ((_, why, sent),) = tried
        assert sent is None
        assert why.startswith(
            f"results of {name} cannot be written to {URL}/{name}: Could not connect to the endpoint"
        )
        assert lab.run("ada", "results", name, "--json").json()["results"], "they are kept here"
        server.start()
        server.client().create_bucket(Bucket=BUCKET)
        until(lambda: whole(server.files(f"nightly/{name}")), "the next try has it")
        until(lambda: lab.ask("ada", question, name)[0][1:] != (why, None), "it is noted")
        ((_, why, sent),) = lab.ask("ada", question, name)
        assert (why, sent is None) == ("", False)
        events = lab.run("ada", "events", name).out
        assert "results.not-sent" in events
        assert "results.sent" in events
