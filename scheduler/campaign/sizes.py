"""The sizes that a campaign gives one of its models. Pure."""

from __future__ import annotations

from protocol.formats.shapes import GivenSizes
from scheduler.campaign.model import Campaign, ModelEntry


def dims_of(campaign: Campaign, entry: ModelEntry) -> dict[str, int]:
    """Sizes by symbol or `input[axis]`; the sizes in `entry` take precedence over the sizes in `measure`."""
    return {**campaign.measure.dims, **entry.dims}


def required_dims(campaign: Campaign, entry: ModelEntry) -> frozenset[str]:
    """The sizes that the model must have: its own, and those of `measure` if the campaign has no other model to which they could apply."""
    return frozenset(entry.dims if len(campaign.models) > 1 else dims_of(campaign, entry))


def own_dims(campaign: Campaign, entry: ModelEntry) -> tuple[int, ...] | None:
    """`required_dims` as a task stores them: their positions among the sorted names of all sizes."""
    required, names = required_dims(campaign, entry), sorted(dims_of(campaign, entry))
    return tuple(place for place, name in enumerate(names) if name in required) or None


def given_sizes(campaign: Campaign, entry: ModelEntry) -> tuple[GivenSizes, ...]:
    """The sizes given to the inputs of `entry`, once for each batch."""
    dims, own = dims_of(campaign, entry), required_dims(campaign, entry)
    return tuple(
        GivenSizes(dims, entry.shapes, batch, entry.batch_dim, own) for batch in campaign.batches(entry)
    )
