"""The JSON Schema of a campaign file, made from the models, for editors that complete and check while one types.

The file beside this module is what is shipped; a test compares. After a change of the models: `python -m scheduler.campaign.schema`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from scheduler.campaign.compat import PlainCampaign
from scheduler.campaign.model import Campaign

SCHEMA_FILE: Final = Path(__file__).with_name("campaign.schema.json")


def campaign_schema() -> dict[str, Any]:
    """Either of the two forms of a campaign."""
    references, shared = models_json_schema([(Campaign, "validation"), (PlainCampaign, "validation")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sark campaign",
        "description": "Which models to measure, on which compute units, on which devices. sark-node validate checks more than this.",
        "anyOf": [references[Campaign, "validation"], references[PlainCampaign, "validation"]],
        "$defs": shared["$defs"],
    }


def schema_text() -> str:
    """As it stands in `SCHEMA_FILE`."""
    return json.dumps(campaign_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
