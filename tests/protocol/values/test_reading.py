"""A device's sensor reading is bounded, and a value that it does not report is absent."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.errors import RemoteProtocolError
from protocol.formats.phase import Phase
from protocol.messages.work import WORK, Progress
from protocol.values.advert import Advert
from protocol.values.lease import Fence
from protocol.values.reading import DeviceReading, GpuReading, Sensor
from protocol.wire.codec import Decoder, Frame, FrameKind
from swarm.net.identity import Identity

PROGRESS = Progress(lease="l", fence=Fence(incarnation=1, number=1), seq=1, phase=Phase.RUN)
READING = DeviceReading(
    cpu=0.5,
    memory=2**30,
    temperature_c=71.5,
    power_w=45.0,
    gpus=(GpuReading(utilisation=1.0, memory=0), GpuReading()),
)


def heard(message: Progress) -> Progress:
    decoder = Decoder(WORK)
    decoder.feed(WORK.encode(Frame(FrameKind.NOTE, 0, message)))
    frame = decoder.next()
    assert frame is not None
    assert isinstance(frame.message, Progress)
    return frame.message


def test_it_travels_with_progress_and_nothing_absent_becomes_zero() -> None:
    assert heard(PROGRESS).reading is None
    came = heard(PROGRESS.model_copy(update={"reading": READING})).reading
    assert came == READING
    assert came is not None
    assert came.gpus[1].utilisation is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": 1.01},
        {"cpu": -0.1},
        {"cpu": float("nan")},
        {"memory": -1},
        {"memory": 2**54},
        {"temperature_c": 201.0},
        {"power_w": float("inf")},
        {"power_w": -1.0},
        {"age_s": -1.0},
        {"gpus": (GpuReading(),) * 9},
        {"gpus": ({"utilisation": 2.0},)},
        {"cpu": "\x1b[31m"},
    ],
)
def test_what_no_sensor_can_show_is_refused_on_receipt(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DeviceReading.model_validate(wrong)


def test_progress_with_a_reading_that_cannot_be_is_no_message() -> None:
    lie = PROGRESS.model_copy(update={"reading": DeviceReading.model_construct(cpu=1.5)})
    with pytest.raises(RemoteProtocolError, match=r"reading\.cpu"):
        heard(lie)


def test_an_advert_names_sensors_that_only_newer_versions_know() -> None:
    advert = Advert(peer=Identity.from_seed(1).peer_id, seq=1, device="d", name="n")
    assert advert.monitors is None
    for words in (tuple(map(str, Sensor)), ("fan-speed",)):
        assert Advert.model_validate({**advert.to_wire(), "monitors": words}).monitors == words
    with pytest.raises(ValidationError):
        Advert.model_validate({**advert.to_wire(), "monitors": ("\x1b[31mred",)})
