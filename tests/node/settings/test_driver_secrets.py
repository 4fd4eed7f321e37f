"""Secrets that a device's owner gives to single drivers: from settings and the environment to that driver's children, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.settings.settings import DriverSecrets, WorkerSettings, driver_secrets
from protocol.errors import SettingsError

SECRET = "sk-never-to-be-seen-3141592653"


def settings(tmp_path: Path, environment: dict[str, str]) -> WorkerSettings:
    """Settings as `join` would load them."""
    return WorkerSettings.load(tmp_path / "config.toml", environment, {})


def test_a_key_without_an_endpoint_goes_to_nobody(tmp_path: Path) -> None:
    environment = {"SARK_API_KEY": SECRET}
    assert driver_secrets(settings(tmp_path, environment), environment) == {}


def test_the_endpoint_its_name_and_its_key_go_to_one_driver(tmp_path: Path) -> None:
    environment = {
        "SARK_API": "http://127.0.0.1:8000/v1,vllm",
        "SARK_API_WATCH": "true",
        "SARK_API_KEY": SECRET,
        "SSL_CERT_FILE": "/ca.pem",
        "AWS_SECRET": "x",
    }
    assert driver_secrets(settings(tmp_path, environment), environment) == {
        "api": {
            "SARK_API_URL": "http://127.0.0.1:8000/v1",
            "SARK_API_NAME": "vllm",
            "SARK_API_WATCH": "1",
            "SARK_API_KEY": SECRET,
            "SSL_CERT_FILE": "/ca.pem",
        }
    }


def test_settings_and_what_is_given_never_show_the_key(tmp_path: Path) -> None:
    environment = {"SARK_API": "http://127.0.0.1:8000/v1", "SARK_API_KEY": SECRET}
    loaded = settings(tmp_path, environment)
    given = driver_secrets(loaded, environment)
    assert repr(given) == str(given) == "DriverSecrets(api)"
    assert SECRET not in repr(loaded)
    assert SECRET not in loaded.model_dump_json()
    assert repr(DriverSecrets()) == "DriverSecrets()"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (f"http://user:{SECRET}@127.0.0.1/v1", "set SARK_API_KEY instead"),
        (f"ftp://user:{SECRET}@127.0.0.1", "must look like http"),
        ("127.0.0.1:8000", "must look like http"),
    ],
)
def test_an_endpoint_that_is_none_is_refused_without_its_password(
    tmp_path: Path, value: str, why: str
) -> None:
    with pytest.raises(SettingsError) as error:
        settings(tmp_path, {"SARK_API": value})
    assert why in str(error.value.hint)
    assert SECRET not in f"{error.value} {error.value.hint}"
