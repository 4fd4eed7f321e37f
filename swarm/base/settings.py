"""Settings, in increasing priority: defaults, the file, environment variables, flags. Frozen after start.

The file is `config.toml` in the home's config folder: shared keys are at the top, a role's own keys in its section.

    gates = ["/ip4/192.0.2.7/tcp/4001/p2p/12D3Koo…"]
    [worker]
    name = "lab-3"
    labels = {site = "lab"}

An error names the source of the wrong value (file, variable or flag), so the sources are read separately here.
"""

from __future__ import annotations

import errno
import re
import tomllib
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from protocol.errors import ResourceError, SettingsError

T = TypeVar("T", bound=BaseModel)

SECTIONS = ("worker", "gate", "scheduler")


_FLAGS = {
    "gates": "gate",
    "labels": "label",
    "operators": "operator",
    "owners": "owner",
    "pools": "pool",
    "teams": "only-team",
}
"""Flags that may be repeated have names in the singular."""


_FORMS = {
    "tuple_type": 'write a list: ["…"], even for one value',
    "dict_type": 'write names with values: {site = "lab"}',
    "string_type": "write it in quotes",
    "string_pattern_mismatch": "letters, digits, space and . _ -, at most 64, beginning with a letter or digit",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
}
"""Hints by pydantic's type of error, where pydantic's own messages refer to Python."""


def load_settings(
    cls: type[T],
    config_file: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    section: str,
    foreign: Collection[str] = (),
) -> T:
    """Load the settings of any model. `foreign`: names in the file that other programs use. Raises `SettingsError`, `ResourceError`."""
    from_file = _read_file(config_file, section, frozenset(cls.model_fields), frozenset(foreign))
    from_env = {
        name: _plural(field.annotation, environment[f"SARK_{name.upper()}"])
        for name, field in cls.model_fields.items()
        if environment.get(f"SARK_{name.upper()}")
    }
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return cls.model_validate({**from_file, **from_env, **given}, strict=False)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        if name in given:
            source = f"--{_FLAGS.get(name, name).replace('_', '-')}"
        elif name in from_env:
            source = f"SARK_{name.upper()}"
        else:
            source = str(config_file)
        what = f"{source}: {name} cannot be {_shown(first['input'])!r}"
        hint = _FORMS.get(first["type"]) or str(first["msg"]).removeprefix("Value error, ")
        if name in ("listen", "announce") and first["type"] != "value_error":
            hint = "an address looks like /ip4/192.0.2.7/tcp/4101"
        raise SettingsError(what, hint=hint) from None


def _shown(value: object) -> str:
    """A wrong value, shortened, without the name and password that a URL may contain."""
    text = re.sub(r"(\S*?//)?\S*@", r"\1…@", str(value))
    return re.sub(r"(?i)(pass\w*=)[^&\s]*", r"\1…", text)[:80]


def _plural(annotation: Any, text: str) -> Any:
    """Environment variables hold lists as `a,b` and maps as `a=b,c=d`."""
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    match typing.get_origin(annotation):
        case origin if origin is tuple:
            return items
        case origin if origin is dict:
            return {name: value for name, _, value in (item.partition("=") for item in items)}
        case _:
            return text


def _read_file(
    path: Path, section: str, own_names: frozenset[str], foreign: frozenset[str]
) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ResourceError(
            f"cannot read {path}: {exc.strerror}",
            hint=f"make it readable: chmod 600 {path}" if exc.errno == errno.EACCES else "use another --home",
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise SettingsError(f"{path}: {exc}", hint="the file must be TOML") from None
    shared = {name: value for name, value in content.items() if name not in SECTIONS}
    own = content.get(section, {})
    if not isinstance(own, dict):
        raise SettingsError(
            f"{path}: {section} must be a section", hint=f"write [{section}] on a line of its own"
        )
    for where, names in (("", shared), (f" in [{section}]", own)):
        for name in names:
            if name not in own_names | foreign:
                raise SettingsError(
                    f"{path}: unknown setting {name!r}{where}",
                    hint=f"known: {', '.join(sorted(own_names | foreign))}",
                )
    return {name: value for name, value in {**shared, **own}.items() if name in own_names}
