"""The words and numbers of a campaign file as types: durations, percentages, clauses, URLs, units. Each is checked, and shown as
written.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NoReturn
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from protocol.errors import CampaignError, Refused
from protocol.formats.frameworks import FORMATS
from protocol.formats.shapes import MAX_SIZE
from protocol.formats.spread import MAX_OVER_S, MIN_OVER_S
from protocol.formats.sustain import MAX_SUSTAIN_S, MIN_SUSTAIN_S
from protocol.values.requirement import parse_clause
from protocol.values.task import DimName, InputShape, InputSize
from protocol.wire.base import PeerName
from protocol.words import Reason
from scheduler.campaign.wrong import campaign_value_error
from swarm.base import units
from swarm.base.text import did_you_mean, is_safe, safe_text
from swarm.download.urls import MAX_URL, OWNER_URL_REACH, read_hf, read_url, scheme_of, without_secrets
from swarm.net.identity import peer_id_bytes

UNITS: Final = (
    "CPU (ONNX)",
    "GPU (ONNX)",
    "DirectML (ONNX)",
    "TensorRT (ONNX)",
    "OpenVINO CPU (ONNX)",
    "OpenVINO GPU (ONNX)",
    "OpenVINO NPU (ONNX)",
    "CoreML (ONNX)",
    "NPU (ONNX)",
    "GPU (CoreML)",
    "Neural Engine (CoreML)",
    "CPU (CoreML)",
    "CPU (Torch)",
    "GPU (Torch)",
    "CPU (LiteRT)",
    "GPU (LiteRT)",
    "CPU (OpenVINO)",
    "GPU (OpenVINO)",
    "NPU (OpenVINO)",
    "CPU (llama.cpp)",
    "GPU (llama.cpp)",
    "CPU (ExecuTorch)",
    "CPU (Transformers)",
    "GPU (Transformers)",
    "CPU (MLX)",
    "GPU (MLX)",
    "GPU (TensorRT)",
    "API (OpenAI)",
    "Fake (Simulation)",
)
"""The compute units that sark-node knows; third-party drivers add others (`scheduler.campaign.reach`)."""

MAX_TRUSTED: Final = 256
"""Most peer ids that one campaign names."""
URL_SCHEMES: Final = frozenset({"https", "http", "file", "hf"})
_INPUT: Final = re.compile(r"[a-z][a-z0-9]{1,15}\[(?:\w{1,50}(?:, ?\w{1,50}){0,7})?\]", re.ASCII)
MAX_DURATION_S: Final = 30 * 86400.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_duration(value: Any) -> float:
    """Seconds in `500ms`, `90s`, `10m`, `2h`, `1d`. Raises `PydanticCustomError`."""
    if _is_number(value):
        raise campaign_value_error(
            f"the duration {value} has no unit", f"write it with its unit, such as {value}s"
        )
    try:
        return units.parse_duration(str(value), units="ms s m h d", max_s=MAX_DURATION_S)
    except units.DurationError as exc:
        raise campaign_value_error(safe_text(exc.what), exc.hint) from None


def read_sustained(value: Any) -> float:
    """Seconds for which a device is measured without a break. Raises `PydanticCustomError`."""
    return _duration_within(value, "sustain", MIN_SUSTAIN_S, MAX_SUSTAIN_S, "10m")


def read_spread(value: Any) -> float:
    """Seconds over which launches are spread. Raises `PydanticCustomError`."""
    return _duration_within(value, "over", MIN_OVER_S, MAX_OVER_S, "2m")


def _duration_within(value: Any, name: str, least_s: float, most_s: float, example: str) -> float:
    seconds = parse_duration(value)
    if not least_s <= seconds <= most_s:
        limits = f"between {units.show_duration(least_s)} and {units.show_duration(most_s)}"
        raise campaign_value_error(
            f"{name} {safe_text(str(value), 20)} is out of range", f"{limits}, such as {example}"
        )
    return seconds


def _check_format(name: str) -> str:
    if name not in FORMATS:
        hint = "  ".join(filter(None, [did_you_mean(name, FORMATS), f"formats: {', '.join(FORMATS)}"]))
        raise campaign_value_error(f"unknown format {safe_text(name, 40)!r}", hint)
    return name


_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def parse_time(value: Any) -> float:
    """Seconds after midnight for `03:00`. Raises `PydanticCustomError`."""
    result = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if not result:
        raise campaign_value_error(
            f"{safe_text(repr(value), 60)} is not a time of day", "write it as 03:00 or 23:30, in UTC"
        )
    return 3600.0 * int(result[1]) + 60.0 * int(result[2])


def show_time_of_day(seconds: float) -> str:
    """The inverse of `parse_time`."""
    return f"{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}"


def check_webhook(text: str) -> str:
    """A URL to which a webhook may be sent. Raises `PydanticCustomError`."""
    try:
        place = read_url(text, OWNER_URL_REACH)
    except Refused as exc:
        raise campaign_value_error(f"the webhook cannot be used: {exc.what}", exc.hint) from None
    if place.scheme != "https" and place.host not in _LOOPBACK:
        raise campaign_value_error(
            "a webhook URL must use https, or point to this machine", "such as https://example.org/hook"
        )
    return text


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)\s*%")
FINEST: Final = 0.001
COARSEST: Final = 0.5


def parse_percent(value: Any) -> float:
    """The share in `2%` or `0.5 %`. Raises `PydanticCustomError`."""
    hint = "write it with a percent sign: 2%, 0.5%"
    if _is_number(value):
        raise campaign_value_error(f"the precision {value} has no percent sign", hint)
    result = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if not result:
        raise campaign_value_error(f"{safe_text(repr(value), 60)} is not a percentage", hint)
    share = float(result[1]) / 100
    if not FINEST <= share <= COARSEST:
        raise campaign_value_error(
            f"the precision {safe_text(result[0])} is out of range",
            f"between {FINEST:.1%} and {COARSEST:.0%}",
        )
    return share


def show_percent(share: float) -> str:
    """The inverse of `parse_percent`."""
    return f"{100 * share:.6f}".rstrip("0").rstrip(".") + "%"


def read_step(value: Any) -> Any:
    """Treat keys other than `step` and `of` as the step's options."""
    if isinstance(value, str):
        return {"step": value}
    if not isinstance(value, dict) or "options" in value:
        return value
    own = {key: value[key] for key in value if key in ("step", "of")}
    return {**own, "options": {key: value[key] for key in value if key not in own}}


def _check_clause(text: str) -> str:
    try:
        parse_clause(text)
    except CampaignError as exc:
        raise campaign_value_error(exc.what, exc.hint) from exc
    except ValueError as exc:  # a value longer than a clause may carry
        raise campaign_value_error(
            f'cannot read clause "{safe_text(text, 60)}"', "the value is too long"
        ) from exc
    return text


def check_visible(text: str) -> str:
    if not is_safe(text):
        raise campaign_value_error(
            "the name contains invisible characters", "use letters, digits and punctuation"
        )
    return text


def read_input(value: Any) -> Any:
    """A shape, or a type and shape as text. Raises `PydanticCustomError`."""
    if isinstance(value, str) and _INPUT.fullmatch(value):
        return value
    shape = isinstance(value, list | tuple) and len(value) <= 64
    if shape and all(type(size) is int and 0 <= size <= MAX_SIZE for size in value):
        return tuple(value)
    raise campaign_value_error(
        f"{safe_text(repr(value), 60)} is not the shape of an input",
        "such as x: [1, 3, 224, 224]; for TorchScript with its type: x: float32[1, 3, 224, 224]",
    )


def path_is_enough(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"url" if scheme_of(value) in URL_SCHEMES or "://" in value else "path": value}


_AGAINST: Final = "such as against: fp32, against: CPU (ONNX), or against: {model: fp32, unit: CPU (ONNX)}"


def read_against(value: Any) -> Any:
    """Read a single word as a model, or as the unit of this name if no model has it. Raises `PydanticCustomError`."""
    if isinstance(value, str):
        return {"model": value}
    if not isinstance(value, dict):
        return value if hasattr(value, "unit") else _no_against(value)
    if not value.keys() & {"model", "unit"}:
        _no_against(value)
    return value


def _no_against(value: Any) -> NoReturn:
    raise campaign_value_error(f"measure.against cannot be {safe_text(repr(value), 60)}", _AGAINST)


def _check_url(text: str) -> str:
    """Check that the URL can be parsed; nothing is fetched."""
    scheme = scheme_of(text)
    try:
        if scheme == "hf":
            read_hf(text)
        elif scheme in ("https", "http"):
            read_url(text, OWNER_URL_REACH)
        elif scheme == "file":
            file_of(text)
        else:
            raise campaign_value_error(
                f"{safe_text(without_secrets(text), 60)!r} is not a URL that can be fetched",
                "write https://… or hf://ORG/REPO/FILE; for a file on this machine, or an uploaded file, use path:",
            )
    except Refused as exc:
        raise campaign_value_error(
            f"the URL {safe_text(without_secrets(text), 60)!r} cannot be used: {exc.what}", exc.hint
        ) from None
    return text


_TRUST: Final = "write trust: mine, trust: anyone, or the peer ids in a list: trust: [12D3Koo…]"


def read_trust(value: Any) -> Any:
    """`mine`, `anyone` or a tuple of peer ids. Raises `PydanticCustomError`."""
    if value in ("mine", "anyone"):
        return value
    if isinstance(value, str):
        raise campaign_value_error(f"devices.trust cannot be {safe_text(repr(value), 60)}", _TRUST)
    if not isinstance(value, (list, tuple)) or not value:
        raise campaign_value_error(f"devices.trust cannot be {safe_text(repr(value), 40)}", _TRUST)
    if len(value) > MAX_TRUSTED:
        what = f"devices.trust names {len(value)} peer ids; at most {MAX_TRUSTED} are allowed"
        raise campaign_value_error(what, "trust them for all campaigns: sark-node trust PEER_ID")
    for item in value:
        try:
            peer_id_bytes(item if isinstance(item, str) else repr(item))
        except ValueError:
            what = f"devices.trust: {safe_text(repr(item), 70)} is not a peer id"
            raise campaign_value_error(
                what, "peer ids look like 12D3Koo…; sark-node peers --json lists them"
            ) from None
    return tuple(dict.fromkeys(value))


def check_place(text: str) -> str:
    """A path, or a URL that can be parsed. Raises `PydanticCustomError`."""
    return _check_url(text) if scheme_of(text) else text


def file_of(url: str) -> str:
    """The path in a `file:` URL. Raises `Refused` for a URL of another machine."""
    parts = urlsplit(url)
    path = url2pathname(parts.path) if parts.path else ""
    if parts.netloc not in ("", "localhost") or not path or "\x00" in unquote(path):
        raise Refused(
            "it does not name a file on this machine",
            reason=Reason.BAD_REQUEST,
            hint="write file:///the/path",
        )
    return path


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(units.duration_text),
    _schema(r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*$", "500ms", "90s", "10m"),
]
Sustained = Annotated[
    float,
    BeforeValidator(read_sustained),
    PlainSerializer(units.duration_text),
    _schema(r"^\s*[0-9]+(\.[0-9]+)?\s*(s|m|h)\s*$", "10m", "90s"),
]
Spread = Annotated[
    float,
    BeforeValidator(read_spread),
    PlainSerializer(units.duration_text),
    _schema(r"^\s*[0-9]+(\.[0-9]+)?\s*(s|m|h)\s*$", "2m", "30s"),
]
Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(show_percent),
    _schema(r"^\s*[0-9]{1,2}(\.[0-9]{1,6})?\s*%\s*$", "2%", "0.5%"),
]
TimeOfDay = Annotated[
    float,
    BeforeValidator(parse_time),
    PlainSerializer(show_time_of_day),
    _schema(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "03:00"),
]
Webhook = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(check_webhook)]
UrlText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(_check_url)]
ClauseText = Annotated[str, StringConstraints(max_length=300), AfterValidator(_check_clause)]
UnitName = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~](?:[ -~]{0,98}[!-~])?$"),
    WithJsonSchema({"type": "string", "anyOf": [{"enum": list(UNITS)}, {"pattern": r"^[ -~]{1,100}$"}]}),
]
FormatName = Annotated[
    str, AfterValidator(_check_format), WithJsonSchema({"type": "string", "enum": list(FORMATS)})
]
Dims = Annotated[dict[DimName, InputSize], Field(max_length=64)]
Bytes = Annotated[int, Field(ge=1, le=2**53)]
InputText = Annotated[str | InputShape, BeforeValidator(read_input)]
Runs = Annotated[int, Field(ge=1, le=1_000_000)]
StepOption = str | bool | int | float | Annotated[tuple[int | float, ...], Field(max_length=64, strict=False)]
EvaluateOption = (
    str | bool | int | float | Annotated[tuple[str | int | float, ...], Field(max_length=1000, strict=False)]
)
Batches = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**20)], ...], Field(min_length=1, max_length=64, strict=False)
]
TrustText = Annotated[
    Literal["mine", "anyone"] | tuple[PeerName, ...],
    BeforeValidator(read_trust),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["mine", "anyone"]},
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": r"^[1-9A-HJ-NP-Za-km-z]{32,64}$"},
                    "minItems": 1,
                    "maxItems": MAX_TRUSTED,
                },
            ],
        }
    ),
]
Threads = Literal["physical"] | Annotated[int, Field(ge=1, le=8192)]
