"""Strangers that only other strangers have named are probed last and a few at a time, while known workers are probed as usual."""

from __future__ import annotations

from collections.abc import Callable

from protocol.values.trust import OWN, STRANGER, Trust, TrustScope
from scheduler.core.allocator import MAX_HEARSAY, MAX_PROBING
from scheduler.core.commands import ProbeWorker
from swarm.net.identity import Identity
from tests.scheduler.core_parts import PEERS, Story, advert, of, quote

INVENTED = [Identity.from_seed(f"invented {n}").peer_id for n in range(100)]


def a_story(
    trust_of: Callable[[str], Trust] = lambda peer: STRANGER,
    hearsay: Callable[[str], bool] = lambda peer: peer in INVENTED,
) -> Story:
    story = Story(tasks=20, workers=0, trust_of=trust_of, trust=TrustScope(anyone=True))
    story.core.state.hearsay = hearsay
    return story


def probed(story: Story, *peers: str) -> list[str]:
    """The peers that are probed when the index names these."""
    adverts = [advert(0).model_copy(update={"peer": peer, "device": f"d-{peer}"}) for peer in peers]
    orders = story.tell(story.core.workers.add_adverts(story.group, adverts, story.now))
    return [each.peer for each in of(orders, ProbeWorker)]


def test_invented_devices_are_probed_after_a_device_that_is_present_and_a_few_at_a_time() -> None:
    first, *others = probed(a_story(), *INVENTED[:60], PEERS[0], *INVENTED[60:])
    assert first == PEERS[0]
    assert len(others) == MAX_HEARSAY


def test_an_own_device_comes_first_whoever_speaks_of_it() -> None:
    story = a_story(lambda peer: OWN if peer == PEERS[0] else STRANGER, hearsay=lambda peer: True)
    first, *others = probed(story, *INVENTED, PEERS[0])
    assert first == PEERS[0]
    assert len(others) == MAX_HEARSAY


def test_where_nothing_else_is_known_hearsay_has_all_probes() -> None:
    assert len(probed(a_story(), *INVENTED)) == MAX_PROBING


def test_probes_of_silent_inventions_take_none_from_devices_that_are_known() -> None:
    """Invented workers never answer their probes, while more and more of them are named."""
    story = a_story()
    assert len(probed(story, *INVENTED[:50])) == MAX_PROBING
    assert sorted(probed(story, *INVENTED[50:], *PEERS[:4])) == sorted(PEERS[:4])


def test_who_has_answered_once_is_no_hearsay_any_more() -> None:
    story = a_story()
    probed(story, INVENTED[0])
    story.tell(story.core.workers.add_quote(INVENTED[0], quote(), story.now))
    orders = story.tell(story.core.workers.close_link(INVENTED[0]))
    assert [each.peer for each in of(orders, ProbeWorker)] == INVENTED[:1]
    assert len(probed(story, *INVENTED[1:])) == MAX_HEARSAY
