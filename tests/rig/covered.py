"""Rows of the threat table that a test elsewhere shows. Rows that are no matter of a running swarm (builds, terminals, files of campaigns,
power loss) are not listed.
"""

from __future__ import annotations

from typing import Final

COVERED: Final[dict[str, str]] = {
    "also: an input of 300 dimensions": "tests/drivers/sandbox/test_hostile.py",
    "N8 replay of a signed message": "tests/node/capacity/test_ledger.py tests/swarm/index/test_attacks.py",
    "N9 clock skew": "tests/simulation/kernel.py tests/node/capacity/test_run_time.py",
    "N10 a relay reads or alters traffic": "tests/swarm/relay/test_real.py",
    "N12 a relay as an open proxy": "tests/swarm/relay/test_hop.py",
    "N13 partition, one-way loss": "tests/simulation/faults.py tests/real/relay.py",
    "N14 the gate is down": "tests/real/test_faults.py tests/real/test_two_gates.py",
    "N15 NAT rebinding": "tests/nat/test_behind.py",
    "N16 loss, latency, bandwidth": "tests/simulation/wire.py tests/swarm/blobs/test_swarm_download.py",
    "N17 SSRF by a model's URL": "tests/swarm/download/test_ssrf.py",
    "D8 an advert that is out of date": "tests/node/capacity/test_ledger.py",
    "D10 churn": "tests/swarm/index/test_swarm.py",
    "S2 token theft, over-delegation": "tests/swarm/pools/test_tokens.py tests/gate/attacks/test_attacks.py",
    "S3 double dispatch, zombie worker": "tests/simulation/scheduler_invariants.py tests/real/test_chaos.py",
    "S4 a lease ends in a pause": "tests/simulation/worker_invariants.py",
    "S5 a lost answer to a commit": "tests/simulation/test_model.py",
    "S7 an unfair hog": "tests/scheduler/core/test_many_schedulers.py tests/node/capacity/test_ledger_guests.py",
    "S9 a result forged or swapped": "tests/scheduler/run/test_receive.py",
    "S10 repudiation": "tests/scheduler/store/test_store.py",
    "S11 the scheduler dies": "tests/real/test_faults.py tests/real/test_chaos.py",
    "S13 version skew": "tests/protocol/wire/test_codec.py",
    "S14 a poison task": "tests/real/test_bad_models.py",
    "E1 code in a model": "tests/real/test_bad_models.py",
    "E2 external data": "tests/drivers/onnx/test_driver.py",
    "E5 native crashes": "tests/drivers/launch/test_launch_ends.py",
    "E6 processes left behind": "tests/drivers/launch/test_launch_left.py",
    "E7 data of one owner reaches the next": "tests/drivers/sandbox/test_hostile.py",
    "E11 no sandbox to be had": "tests/drivers/sandbox/test_sandbox.py",
    "T3 the disk is full": "tests/real/test_disk.py",
    "T4 cache poisoning": "tests/node/store/test_cache.py tests/swarm/blobs/test_swarm_download.py",
    "T5 names as paths": "tests/node/store/test_model_files.py",
    "T8 two nodes on one home": "tests/real/test_refusals.py",
    "U1 a browser attacks loopback": "tests/web/http/test_middleware.py",
    "U2 the API on every interface": "tests/web/http/test_auth.py",
    "U9 accept anyone on a weak sandbox": "tests/node/serve/test_process.py",
    "C4 a model is swapped": "tests/simulation/worker_invariants.py tests/swarm/blobs/test_client.py",
}
"""Row → where it is shown."""
