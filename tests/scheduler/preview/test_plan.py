"""The plan over the live swarm: what it says about each cell, what its hash covers, and what counts as a change."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from rich.console import Console

import sark
from protocol.errors import CampaignError
from protocol.messages.pool import ManifestMessage
from protocol.messages.work import WORK, CredentialsReply, Denied, Probe, Quote, ShapeQuote, ShowCredentials
from protocol.values.advert import Advert, SignedAdvert, UnitOffer
from protocol.values.match import match
from protocol.values.requirement import Requirement, parse_clause
from protocol.values.task import Model, Task
from protocol.values.trust import MINE, TrustScope
from protocol.wire.base import Message
from protocol.words import ProtocolId, Reason, Right, WorkerState
from scheduler.campaign.load import parse_campaign
from scheduler.campaign.model import Campaign
from scheduler.models.files import CampaignFile
from scheduler.planning.tasks import derive_cells
from scheduler.preview.plan import LivePlan, PlanCell, make_plan, plan_changes
from scheduler.preview.plan_table import load_plan, plan_lines, plan_table, save_plan, uncovered_lines
from scheduler.preview.survey import (
    DeviceAnswer,
    SwarmVisit,
    ask_devices,
    find_devices,
    kind_of,
    visitor_token,
)
from scheduler.trust.book import TrustBook
from scheduler.trust.search import disputed_by
from swarm.base.home import Home
from swarm.index.query import QueryResult, Sighting
from swarm.memory.network import MemorySwarm
from swarm.net.identity import Identity
from swarm.net.link import Link
from swarm.net.links import serve_links
from swarm.pools.tokens import prove

GIB = 1024**3
SCHEDULER = Identity.from_seed("scheduler")
BASE = "campaign: t\nmodels: [a.onnx, b.onnx]\nunits: [CPU (ONNX)]\n"
ANY = BASE + "devices: {spread: any}\n"


def campaign(text: str = BASE) -> Campaign:
    return parse_campaign(text.encode(), "c.yaml")


def device(name: str, *units: str, ram: int = 8) -> Advert:
    return Advert(
        peer=Identity.from_seed(name).peer_id,
        seq=1,
        device=f"d-{name}",
        name=name,
        os="Linux 6",
        arch="x86_64",
        soc="Chip",
        ram=ram * GIB,
        units=tuple(UnitOffer(unit=unit, runtime="r") for unit in units or ("CPU (ONNX)",)),
    )


def models(plan: Campaign, salt: int = 0) -> dict[str, CampaignFile]:
    return {
        entry.label: CampaignFile(Path(), Model(name=entry.label, sha256=f"{salt + n:064x}", size=20_000_000))
        for n, entry in enumerate(plan.models)
    }


def quote(**values: object) -> Quote:
    facts: dict[str, object] = {
        "incarnation": 1,
        "ledger": 1,
        "state": WorkerState.ACTIVE,
        "free": 1,
        "queue": 0,
    }
    return Quote.model_validate(facts | values)


def planned(
    adverts: list[Advert],
    *,
    text: str = ANY,
    says: dict[str, Quote | str] | None = None,
    shape: ShapeQuote | None = None,
    history: list[tuple[str, float]] | None = None,
    salt: int = 0,
    complete: bool = True,
) -> LivePlan:
    """A plan over devices. Each device answers with the entry of `says` for its name, or that it is idle."""
    plan = campaign(text)
    described = models(plan, salt)
    cells = derive_cells(plan, described, campaign_id="c-plan", scheduler=SCHEDULER.peer_id, devices=adverts)
    tasks = [task for _, some in cells for task in some]
    values_found: dict[str, DeviceAnswer] = {}
    for advert in adverts:
        result = (says or {}).get(advert.name, quote())
        if isinstance(result, str):
            values_found[advert.peer] = DeviceAnswer(None, result)
        else:
            shapes = {kind_of(task): shape or ShapeQuote(fits=True) for task in tasks}
            values_found[advert.peer] = DeviceAnswer(result, "", shapes)
    before: list[tuple[Task, float]] = [
        (task, seconds) for name, seconds in history or [] for task in tasks if task.model.name == name
    ]
    return make_plan(plan, described, cells, SwarmVisit(tuple(adverts), values_found, complete), before)


def test_a_cell_says_who_fits_who_serves_when_how_long_and_what_is_to_be_fetched() -> None:
    plan = planned(
        [device("one"), device("two"), device("gpu", "GPU (ONNX)")],
        says={"one": quote(free=0, start_s=40.0, run_s=3.0), "two": quote(free=0, start_s=90.0, run_s=5.0)},
    )
    cell = plan.cells[0]
    assert (cell.model, cell.unit, cell.tasks) == ("a.onnx", "CPU (ONNX)", 1)
    assert (cell.fit, cell.serve, cell.covered) == (("d-one", "d-two"), ("d-one", "d-two"), True)
    assert (cell.start_s, cell.run_s, cell.run_from) == (40.0, 4.0, "what the devices ran lately")
    assert cell.fetch == 20_000_000
    assert (plan.covered, plan.tasks, plan.fetch, plan.seen) == (2, 2, 40_000_000, 3)
    assert plan.total_s == pytest.approx(40 + 2 * (4 + 1), abs=1)
    assert plan.whole


def test_earlier_results_of_the_same_model_unit_and_measure_tell_the_time_better_than_the_device() -> None:
    plan = planned(
        [device("one")], says={"one": quote(run_s=99.0)}, history=[("a.onnx", 2.0), ("a.onnx", 4.0)]
    )
    assert [(cell.run_s, cell.run_from) for cell in plan.cells] == [
        (3.0, "results of this home"),
        (99.0, "what the devices ran lately"),
    ]


def test_launches_that_are_spread_take_as_long_as_was_asked_besides_what_devices_ran_lately() -> None:
    plan = planned([device("one")], text=ANY + "measure: {over: 10m}\n", says={"one": quote(run_s=3.0)})
    assert [cell.run_s for cell in plan.cells] == [603.0, 603.0]
    assert plan.total_s == pytest.approx(2 * 603.0, abs=5)


def test_a_time_that_nobody_knows_is_not_made_up() -> None:
    plan = planned([device("one")])
    assert (plan.cells[0].run_s, plan.total_s) == (None, None)
    assert "time in all not known" in "\n".join(plan_lines(plan))
    busy = planned([device("one")], says={"one": quote(free=0, run_s=1.0)})
    assert (busy.cells[0].start_s, busy.total_s) == (None, None), "nor is a wait that it does not tell"


def test_a_campaign_too_large_for_a_manifest_says_that_no_other_machine_can_adopt_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = planned([device("one")])
    assert "Another machine can adopt it once" in "\n".join(plan_lines(small))
    monkeypatch.setattr("protocol.values.campaign_manifest.MAX_MANIFEST", 1100)
    large = planned([device("one")])
    assert "No other machine can adopt it: it is too large" in "\n".join(plan_lines(large))
    assert large.plan == small.plan, "a plan that was kept still counts"


def test_a_model_that_is_there_is_not_fetched_and_one_fetch_serves_all_tasks_of_a_device() -> None:
    warm = planned([device("one")], shape=ShapeQuote(fits=True, warm=True))
    assert warm.fetch == 0
    cold = planned([device("one")], text=BASE + "measure: {threads: [1, 2]}\n")
    assert cold.fetch == 40_000_000


def test_the_model_beside_is_fetched_too_unless_the_device_has_it() -> None:
    text = ANY + "measure: {against: a.onnx}\n"
    one = device("one")
    assert planned([one], text=text).fetch == 40_000_000
    (base, _) = (file.model.sha256 for file in models(campaign(text)).values())
    assert planned([one.model_copy(update={"models": (base,)})], text=text).fetch == 20_000_000
    three = text.replace("b.onnx", "b.onnx, c.onnx")
    assert planned([one], text=three).fetch == 60_000_000, "once for both comparisons"


def test_who_would_give_way_is_named_by_device_and_described() -> None:
    shape = ShapeQuote(fits=True, start_s=1.0, preempts="a run of priority 20")
    plan = planned([device("one")], says={"one": quote(free=0)}, shape=shape)
    assert [cell.preempts for cell in plan.cells] == [("d-one",), ()], "the second waits for our own first"
    assert "Would give way: one: a run of priority 20" in plan_lines(plan)


def test_a_cell_that_nobody_fits_says_which_clause_and_what_would_do() -> None:
    text = BASE + "devices: {where: [ram >= 64 GiB]}\n"
    plan = planned([device("one", ram=48), device("two")], text=text)
    assert not plan.cells[0].covered
    assert plan.covered == 0
    assert uncovered_lines(plan.cells) == [
        "a.onnx × CPU (ONNX), b.onnx × CPU (ONNX):",
        "  0 of 2 devices fit",
        "    units has CPU (ONNX)  2 meet it, 2 left",
        "    ram >= 64 GiB         0 meet it, 0 left   nearest: one has 48 GiB",
        "  Smallest change: ram >= 48 GiB → 1 device",
    ]


def test_a_cell_whose_devices_do_not_serve_says_what_each_of_them_says() -> None:
    says: dict[str, Quote | str] = {
        "one": "not-allowed: ask its owner\x1b[2J; its owner can: sark-node join --allow VISITOR",
        "two": quote(state=WorkerState.FAULTY),
        "six": quote(why="quiet hours until 07:00"),
    }
    plan = planned([device("one"), device("two"), device("six")], says=says)
    assert (plan.covered, plan.cells[0].serve) == (0, ())
    assert plan.cells[0].why.splitlines() == [
        "3 devices fit, none takes it now:",
        "  one: not-allowed: ask its owner[2J",
        "  two: is faulty",
        "  six: quiet hours until 07:00",
        f"Their owners can: sark-node join --allow {SCHEDULER.peer_id}",
    ]


def test_a_worker_that_says_the_task_does_not_fit_does_not_serve_it() -> None:
    plan = planned([device("one")], shape=ShapeQuote(fits=False, unmet=("too little memory free",)))
    assert "one: too little memory free" in plan.cells[0].why


def test_replicas_that_lack_a_device_are_not_covered_and_say_so() -> None:
    text = BASE + "replicas: 2\n"
    whole = planned([device("one"), device("two")], text=text)
    assert (whole.covered, whole.cells[0].tasks) == (2, 2)
    missing = planned([device("one")], text=text)
    assert missing.covered == 0
    assert missing.cells[0].why.startswith("2 devices of one class are needed, but only 1 is there\n")


def test_the_hash_is_over_the_substance_and_not_over_the_load() -> None:
    adverts = [device("one"), device("two")]
    plan = planned(adverts)
    busy = planned(adverts, says={"one": quote(free=0, queue=9, start_s=500.0, run_s=2.0)})
    assert (plan.plan, len(plan.plan)) == (busy.plan, 12)
    assert plan_changes(plan, busy) == []
    others = {
        planned(adverts, salt=7).plan,
        planned(adverts[:1]).plan,
        planned(adverts, text=ANY + "priority: 60\n").plan,
        planned(adverts, says={"one": "not-allowed"}).plan,
    }
    assert len({plan.plan, *others}) == 5
    assert planned(adverts, text="# a comment\n" + ANY).plan == plan.plan


def test_changes_are_shown_as_lines() -> None:
    adverts = [device("one"), device("two")]
    plan = planned(adverts)
    assert plan_changes(plan, planned(adverts, salt=7)) == [
        "the model a.onnx is another file now",
        "the model b.onnx is another file now",
    ]
    assert plan_changes(plan, planned(adverts, text=ANY + "priority: 60\n")) == [
        "the campaign file was edited"
    ]
    assert plan_changes(plan, planned(adverts[1:])) == [
        "one (d-one) is gone or does not serve any more: 2 cells"
    ]
    nobody = plan_changes(plan, planned(adverts, says={"one": "gone", "two": "gone"}))
    assert nobody[0] == "a.onnx × CPU (ONNX) is no longer covered: 2 devices fit, none takes it now:"
    assert len(nobody) == 4
    shape = ShapeQuote(fits=True, start_s=1.0, preempts="a run of priority 20")
    pushing = planned(adverts, says={n: quote(free=0) for n in ("one", "two")}, shape=shape)
    assert any("give way now: one: a run of priority 20" in line for line in plan_changes(plan, pushing))
    assert plan_changes(pushing, pushing) == []
    spread = BASE + "devices: {spread: device}\n"
    assert "a.onnx × CPU (ONNX) makes 2 tasks now, 1 before" in plan_changes(
        planned(adverts[:1], text=spread), planned(adverts, text=spread)
    )


def test_a_device_on_top_is_no_change_for_tasks_that_any_may_run() -> None:
    assert plan_changes(planned([device("one")]), planned([device("one"), device("two")])) == []


def test_cells_that_are_alike_but_for_their_device_are_compared_one_by_one() -> None:
    """The plain form can request the same model on the same unit of several devices, each by its name."""

    def cell(device: str, why: str = "") -> PlanCell:
        here = () if why else (device,)
        return PlanCell(
            model="m",
            unit="CPU (ONNX)",
            threads=None,
            tasks=1,
            fit=here,
            serve=here,
            covered=not why,
            start_s=0.0,
            run_s=1.0,
            run_from="",
            fetch=0,
            preempts=(),
            gives_way=(),
            why=why,
        )

    plan = planned([device("one"), device("two")])
    stored = plan.model_copy(update={"cells": (cell("d-one"), cell("d-two"))})
    now = plan.model_copy(update={"cells": (cell("d-one", "0 of 1 devices fit"), cell("d-two"))})
    assert plan_changes(stored, now) == [
        "m × CPU (ONNX) is no longer covered: 0 of 1 devices fit",
        "one (d-one) is gone or does not serve any more: 1 cell",
    ]
    assert plan_changes(now, stored) == []


def test_with_more_devices_than_can_be_seen_only_what_is_not_covered_any_more_is_a_change() -> None:
    adverts = [device(f"n{n}") for n in range(6)]
    stored, now = planned(adverts[:4], complete=False), planned(adverts[2:], complete=False)
    assert plan_changes(stored, now) == []
    assert stored.plan == now.plan, "which of them were seen is chance"
    assert any("more devices than can be looked up" in line for line in plan_lines(now))
    nobody = planned(adverts[:2], complete=False, says={"n0": "gone", "n1": "gone"})
    assert [line.partition(":")[0] for line in plan_changes(stored, nobody)] == [
        "a.onnx × CPU (ONNX) is no longer covered",
        "b.onnx × CPU (ONNX) is no longer covered",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_with_every_number_whole(width: int) -> None:
    text = BASE.replace("a.onnx", "a-model-with-a-very-long-name-indeed-that-goes-on.onnx")
    plan = planned([device("one")], text=text + "replicas: 2\nmeasure: {threads: [1, physical]}\n")
    out = io.StringIO()
    Console(file=out, width=width).print(plan_table(plan, width))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert "serve" in lines[0]
    assert "fetch" in lines[0]
    assert "19.1 MiB" in out.getvalue()
    assert "physical" in out.getvalue()


def test_a_plan_is_kept_under_its_hash_and_the_oldest_go(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    plan = planned([device("one")])
    save_plan(home, plan)
    assert load_plan(home, plan.plan) == plan
    for number in range(60):
        save_plan(home, plan.model_copy(update={"plan": f"{number:012x}"}))
    assert len(list((home.folder("scheduler") / "plans").iterdir())) == 50
    with pytest.raises(CampaignError, match="no plan abcdefabcdef was made"):
        load_plan(home, "abcdefabcdef")
    with pytest.raises(CampaignError, match="not the hash of a plan"):
        load_plan(home, "../../etc/passwd")


# -- the visit ----------------------------------------------------------------------------------------------------------------------


def test_a_visitor_shows_a_token_of_a_minute_with_the_right_to_ask_and_no_other() -> None:
    visitor = Identity.from_seed("visitor")
    shown = visitor_token(SCHEDULER, visitor.peer_id, now=1000.0)
    proof = prove(shown.token, SCHEDULER.peer_id, visitor.peer_id, now=1000.0)
    assert proof.grant.rights == {Right.STATUS}
    assert proof.expires <= 1061.0


class Crowd:
    """An index with so many devices that each answer names only some of them."""

    def __init__(self, adverts: list[Advert]) -> None:
        self._adverts = adverts

    async def everybody(self, limit: int = 256) -> QueryResult:
        return self._found(self._adverts, limit)

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        return self._found([a for a in self._adverts if match(requirement, a).fits], want)

    @staticmethod
    def _found(adverts: list[Advert], limit: int) -> QueryResult:
        signed = SignedAdvert(body=b"", signature=b"s" * 64)
        some = tuple(Sighting(advert, signed, 0.0) for advert in adverts[:limit])
        return QueryResult(some, (), len(adverts), len(adverts) <= limit, {})


async def test_the_few_devices_that_fit_are_found_in_a_crowd_of_others() -> None:
    crowd = [device(f"n{n}") for n in range(300)]
    rare = device("rare", "GPU (ONNX)")
    gpu, cpu = (Requirement(clauses=(parse_clause(f"units has {unit} (ONNX)"),)) for unit in ("GPU", "CPU"))
    observed, complete = await find_devices(Crowd([*crowd, rare]), [gpu])
    assert rare in observed
    assert complete, "there is no other that fits"
    observed, complete = await find_devices(Crowd([*crowd, rare]), [gpu, cpu])
    assert rare in observed
    assert not complete
    assert await find_devices(Crowd(crowd[:9]), [gpu]) == (tuple(crowd[:9]), True)


async def test_a_device_that_a_campaign_names_and_two_admitted_keys_claim_is_found() -> None:
    one = device("one")
    other = device("other").model_copy(update={"device": one.device})
    crowd = Crowd([one, other, device("third")])
    need = Requirement(clauses=(parse_clause(f"device == {one.device}"),))
    mine = TrustBook("me", listed=frozenset({one.peer, other.peer}))
    found = await disputed_by(crowd, [need], MINE, mine)
    assert found is not None
    assert {found.one, found.other} == {one.peer, other.peer}
    assert await disputed_by(crowd, [Requirement()], MINE, mine) is None
    wary = TrustBook("me", listed=frozenset({one.peer}))
    assert await disputed_by(crowd, [need], MINE, wary) is None, "a stranger's word counts for nothing"
    assert await disputed_by(crowd, [need], TrustScope(anyone=True), TrustBook("me")) is not None


async def test_each_worker_is_shown_who_asks_and_asked_once_about_what_it_fits() -> None:
    received: dict[str, list[str]] = {}
    async with MemorySwarm(random.Random(1), latency_s=0.001) as swarm:

        def worker(name: str, *, allows: bool, behind: bool = False) -> Advert:
            identity = Identity.from_seed(name)
            network = swarm.node(identity)
            received[name] = []

            async def answer(link: Link, message: Message) -> Message:
                received[name].append(type(message).__name__)
                match message:
                    case ShowCredentials() if behind and "ManifestMessage" not in received[name]:
                        return Denied(reason=Reason.NOT_ALLOWED)
                    case ShowCredentials() | ManifestMessage():
                        return CredentialsReply(principal=link.peer, rights=(Right.STATUS,), priority=100)
                    case Probe() if allows:
                        return quote(shapes=tuple(ShapeQuote(fits=True) for _ in message.shapes))
                    case _:
                        return Denied(reason=Reason.NOT_ALLOWED, detail="not you")

            serve_links(network, ProtocolId.WORK, WORK, answer)
            facts = device(name).model_dump() | {"addresses": network.addresses, "pools": ("lab",)}
            return Advert.model_validate(facts)

        adverts = [
            worker("one", allows=True),
            worker("two", allows=False),
            worker("three", allows=True, behind=True),
            device("gone"),
            device("other", "GPU (ONNX)"),
        ]
        plan = campaign(BASE.replace("[a.onnx, b.onnx]", str([f"m{n}" for n in range(20)])))
        cells = derive_cells(plan, models(plan), campaign_id="c-plan", scheduler=SCHEDULER.peer_id)
        tasks = [task for _, some in cells for task in some]
        visitor = Identity.from_seed("visitor")
        token = visitor_token(SCHEDULER, visitor.peer_id, now=0.0)
        manifests = [("lab", ManifestMessage(body=b"m", signature=bytes(64))), ("other", None)]
        devices = await ask_devices(swarm.node(visitor), adverts, tasks, token, manifests, priority=50)
    one, two, gone = (devices[Identity.from_seed(name).peer_id] for name in ("one", "two", "gone"))
    assert len(one.shapes) == 20
    assert received["one"] == ["ShowCredentials", "Probe", "Probe"], "20 kinds of task are two questions"
    assert (two.quote, two.why) == (None, "not-allowed: not you")
    assert gone.quote is None
    assert gone.why
    assert received["three"][:4] == ["ShowCredentials", "ManifestMessage", "ShowCredentials", "Probe"]
    assert len(devices) == 4


# -- the command --------------------------------------------------------------------------------------------------------------------


def run(home: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        sark.main(["--home", str(home), *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_says_bad_input_and_a_swarm_that_is_not_there_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("campaign: t\nmodels: [m.json]\nunits: [Fake (Simulation)]\n")
    assert run(tmp_path / "home", "plan", str(file)) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "m.json").write_text("{}")
    assert run(tmp_path / "home", "plan", str(file)) == 4
    assert "no gate is known here" in capsys.readouterr().err
