"""`bench --on`: the meaning of its values, and the campaign that it creates."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import CampaignError, NothingFits
from protocol.values.advert import Advert, UnitOffer
from scheduler.campaign.model import AgainstEntry
from scheduler.local.everywhere import campaign_on, clauses_on, offered_units, read_places
from scheduler.planning.tasks import cells
from swarm.net.identity import Identity


def device(name: str, *units: str, pools: tuple[str, ...] = (), **labels: str) -> Advert:
    offers = tuple(UnitOffer(unit=unit, runtime="r") for unit in units or ("CPU (ONNX)",))
    peer = Identity.from_seed(name).peer_id
    return Advert(peer=peer, seq=1, device=f"d-{name}", name=name, units=offers, pools=pools, labels=labels)


FLEET = (
    device("mini-7", "CPU (ONNX)", "GPU (CoreML)", pools=("team",)),
    device("board", "CPU (ONNX)", "GPU (ONNX)", site="lab"),
    device("lab-2", site="lab", owner="team"),
)


def meant(*values: str) -> list[str]:
    return list(map(str, clauses_on(read_places(values), FLEET)))


def test_all_is_no_clause_and_a_word_is_what_the_devices_are_called() -> None:
    assert read_places(["all"]).everywhere
    assert meant("all") == []
    assert meant("lab") == ["label.site == lab"]
    assert meant("mini-7") == ["name == mini-7"]
    assert meant("d-board") == ["device == d-board"]
    assert meant(FLEET[1].peer) == [f"peer == {FLEET[1].peer}"]
    assert meant("ram >= 8 GiB", "lab") == ["ram >= 8 GiB", "label.site == lab"]


def test_several_names_are_several_devices() -> None:
    assert meant("mini-7", "board", "cores>=2") == ["cores >= 2", "name in mini-7, board"]
    assert meant("d-mini-7", "d-board") == ["device in d-mini-7, d-board"]
    assert meant(FLEET[0].peer, "lab", FLEET[1].peer) == [
        "label.site == lab",
        f"peer in {FLEET[0].peer}, {FLEET[1].peer}",
    ]


def test_devices_are_named_in_one_way() -> None:
    with pytest.raises(CampaignError, match="--on names devices by name and by peer") as caught:
        meant("mini-7", FLEET[1].peer)
    assert caught.value.hint == "name all by name, or all by id"
    many = [device(f"m{number}") for number in range(33)]
    with pytest.raises(CampaignError, match="--on names 33 devices; at most 32 can be named"):
        clauses_on(read_places([advert.name for advert in many]), many)


def test_workers_that_are_named_count_apart() -> None:
    assert read_places(["mini-7", "board"]).spread(FLEET) == "worker"
    assert {read_places(list(values)).spread(FLEET) for values in (["all"], ["lab"], ["mini-7", "lab"])} == {
        "device"
    }
    assert campaign_on(["m.onnx"], (), (), {}, FLEET, "worker").devices.spread == "worker"


def test_a_word_that_nobody_bears_names_what_there_is() -> None:
    with pytest.raises(NothingFits, match="no device, pool or label is called 'mini-8'") as caught:
        meant("mini-8")
    assert caught.value.hint == "did you mean 'mini-7'?  known: board, lab, lab-2, mini-7, team"
    with pytest.raises(NothingFits) as caught:
        clauses_on(read_places(["lab"]), ())
    assert "no device that may run it is in the swarm now" in caught.value.hint


def test_a_word_with_two_meanings_is_not_guessed() -> None:
    with pytest.raises(CampaignError, match="--on team means several things") as caught:
        meant("team")
    assert caught.value.hint == "write --on 'pools has team' or --on 'label.owner == team'"


@pytest.mark.parametrize(
    ("value", "words"), [("", "--on needs a value"), ("ram >= lots", "'lots' is not a size")]
)
def test_what_cannot_be_read_is_said_before_anything_is_asked(value: str, words: str) -> None:
    with pytest.raises(CampaignError, match=words):
        read_places([value])


def test_the_campaign_is_what_bench_measures_on_each_device() -> None:
    options = {
        "runs": 40,
        "threads": 2,
        "batch": 8,
        "check": False,
        "shapes": {"x": (1, 3)},
        "dims": {"n": 4},
    }
    made = campaign_on(["old/net.onnx", "new/net.onnx"], (), read_places(["ram >= 8.3 GiB"]).clauses, options)
    assert (made.campaign, made.units, made.devices.spread) == ("net and 1 more", ("CPU (ONNX)",), "device")
    assert [entry.label for entry in made.models] == ["old-net.onnx", "new-net.onnx"]
    assert made.models[0].path == str(Path("old/net.onnx").absolute())
    assert made.models[0].shapes == {"x": (1, 3)}
    measure = made.measure
    assert (measure.runs, measure.loads, measure.threads, measure.batch) == (40, 6, (2,), (8,))
    assert (measure.check, measure.dims) == ("none", {})
    assert [entry.dims for entry in made.models] == [{"n": 4}, {"n": 4}]
    assert made.devices.clauses() == read_places(["ram >= 8.3 GiB"]).clauses
    precise = campaign_on(["m.pt", "hf://o/r/n.pt@1"], (), (), {"precision": 0.025})
    assert (precise.measure.precision, precise.units) == (0.025, ("CPU (Torch)",))
    assert [(entry.label, entry.url) for entry in precise.models] == [
        ("m.pt", None),
        ("n.pt", "hf://o/r/n.pt@1"),
    ]


def test_two_models_take_turns_on_each_device() -> None:
    pair = campaign_on(["old/net.onnx", "new/net.onnx"], (), (), {"against": True, "threads": 1})
    assert pair.measure.against == AgainstEntry(model="old-net.onnx")
    other = campaign_on(["a.onnx", "b.onnx"], (), (), {"against": True})
    assert other.measure.against == AgainstEntry(model="a.onnx")
    assert campaign_on(["a.onnx"], (), (), {"sustain_s": 600.0}).measure.sustain == 600
    assert campaign_on(["a.onnx"], (), (), {"over_s": 120.0}).measure.over == 120


def test_two_units_take_turns_on_each_device() -> None:
    units = ("CPU (ONNX)", "CPU (OpenVINO)")
    alone = campaign_on(["m.onnx", "m.onnx"], units, (), {"against": True})
    (cell,) = cells(alone)
    assert (cell.model.label, cell.unit, cell.against) == ("m.onnx", units[1], units[0])
    units = ("CPU (ONNX)", "CPU (Torch)")
    (cell,) = cells(campaign_on(["a.onnx", "b.pt2"], units, (), {"against": True}))
    assert (cell.model.label, cell.unit, cell.against) == ("b.pt2", units[1], "a.onnx on CPU (ONNX)")
    (cell,) = cells(campaign_on(["a.onnx", "b.onnx"], units[:1] * 2, (), {"against": True}))
    assert (cell.model.label, cell.unit, cell.against) == ("b.onnx", units[0], "a.onnx")
    with pytest.raises(CampaignError, match="needs two models or two units"):
        campaign_on(["m.onnx", "m.onnx"], units[:1] * 2, (), {"against": True})


def test_models_of_two_formats_are_not_crossed() -> None:
    with pytest.raises(CampaignError, match=r"a\.onnx runs on CPU \(ONNX\), but b\.pt on CPU \(Torch\)"):
        campaign_on(["a.onnx", "b.pt"], (), (), {})
    assert campaign_on(["a.onnx", "b.pt"], ("CPU (ONNX)",), (), {}).units == ("CPU (ONNX)",)


def test_all_units_are_those_of_the_format_that_some_device_has() -> None:
    assert offered_units(["m.onnx"], FLEET) == ("CPU (ONNX)", "GPU (ONNX)")
    with pytest.raises(CampaignError, match="no device in reach has a unit called"):
        campaign_on(["m.onnx"], ("CPU (ONNN)",), (), {}, FLEET)
    mine = device("own", "NPU (Mine)")
    assert campaign_on(["m.onnx"], ("NPU (Mine)",), (), {}, (mine,)).units == ("NPU (Mine)",)
    assert offered_units(["m.onnx"], (mine,)) == ("NPU (Mine)",), "it does not say what it runs"
    offer = UnitOffer(unit="NPU (Mine)", runtime="r", formats=("mine",))
    assert offered_units(["m.onnx"], (mine.model_copy(update={"units": (offer,)}),)) == ()
