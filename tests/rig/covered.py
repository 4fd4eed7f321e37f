"""Rows of the threat table that are covered by a test elsewhere. Rows that do not concern a running swarm (builds, terminals, campaign
files, power loss) are not listed.
"""

from __future__ import annotations

from typing import Final

SIMULATED: Final = "tests/simulation/test_model.py::test_whatever_goes_wrong_every_invariant_holds"
"""Runs of the model with faults. `tests/simulation` has the faults and the invariants that are listed beside this test."""
COVERED: Final[dict[str, tuple[str, ...]]] = {
    "also: an input of 300 dimensions": (
        "tests/drivers/sandbox/test_hostile.py::test_an_input_of_hundreds_of_dimensions_is_a_broken_model",
    ),
    "N8 replay of a signed message": (
        "tests/node/capacity/test_ledger.py::test_a_key_replayed_after_its_lease_ended_never_runs_again",
        "tests/swarm/index/test_attacks.py::test_nobody_gets_an_advert_kept_that_is_not_his_own_word_of_now",
        "tests/swarm/pools/test_tokens.py::test_a_stolen_token_is_of_no_use_to_another_peer",
    ),
    "N9 clocks that are off or drift": (
        SIMULATED,
        "tests/swarm/pools/test_tokens.py::test_a_token_is_good_until_its_end_and_for_the_leeway_of_clocks",
        "tests/node/doctor/test_network.py::test_one_gate_whose_clock_is_wrong_does_not_make_ours_wrong",
    ),
    "N10 a relay reads or alters traffic": (
        "tests/swarm/relay/test_real.py::test_a_gate_neither_reads_nor_alters_what_it_carries",
    ),
    "N12 a relay as an open proxy": (
        "tests/swarm/relay/test_hop.py::test_who_does_not_speak_our_protocols_gets_nothing",
        "tests/swarm/relay/test_real.py::test_calls_from_a_gate_without_a_reservation_are_refused",
    ),
    "N13 partition, one-way loss": (SIMULATED, "tests/simulation/faults.py::cut"),
    "N14 the gate is down": (
        "tests/real/test_faults.py::test_a_campaign_survives_its_worker_and_its_gate_and_both_are_found_again",
    ),
    "N15 an address changes, a laptop sleeps": (
        (
            "tests/swarm/reach/test_reachability.py"
            "::test_an_address_that_the_provider_changed_is_no_longer_announced_once_gates_see_another"
        ),
        "tests/swarm/index/test_swarm.py::test_a_laptop_that_wakes_up_is_found_again_within_seconds",
    ),
    "N16 loss, latency": (
        SIMULATED,
        "tests/simulation/wire.py::carry",
        "tests/swarm/blobs/test_swarm_download.py::test_one_that_stalls_in_the_middle_of_a_piece_holds_nothing_up",
    ),
    "N17 SSRF by a model's URL": (
        "tests/swarm/download/test_ssrf.py::test_a_strangers_url_leads_nowhere_but_to_the_public_internet",
        "tests/swarm/download/test_ssrf.py::test_a_name_that_changes_between_check_and_connect_is_looked_up_once",
    ),
    "D8 an advert that is out of date": (
        "tests/node/capacity/test_ledger.py::test_a_commit_on_an_old_quote_gets_a_fresh_one_and_holds_nothing",
        "tests/simulation/worker_invariants.py::capacity_holds",
    ),
    "D10 churn": ("tests/swarm/index/test_swarm.py::test_the_living_are_found_after_many_died_at_once",),
    "S2 token theft, over-delegation": (
        "tests/swarm/pools/test_tokens.py::test_a_chain_of_delegations_never_allows_more_than_any_of_its_parts",
        "tests/swarm/pools/test_tokens.py::test_a_stolen_token_is_of_no_use_to_another_peer",
        "tests/gate/attacks/test_attacks.py::test_a_leaked_ticket_lets_in_as_many_as_it_was_given_for",
    ),
    "S3 double dispatch, zombie worker": (
        SIMULATED,
        "tests/simulation/scheduler_invariants.py::one_record",
        "tests/simulation/scheduler_invariants.py::no_stale_record",
        (
            "tests/real/test_chaos.py"
            "::test_a_campaign_whose_worker_run_scheduler_and_link_are_struck_ends_with_one_result_for_each_task"
        ),
    ),
    "S4 a lease ends in a pause": (
        SIMULATED,
        "tests/simulation/faults.py::pause",
        "tests/simulation/worker_invariants.py::slots_are_exclusive",
        "tests/node/capacity/test_ledger.py::test_a_lapsed_run_is_killed_when_its_grace_is_over",
    ),
    "S5 a lost answer to a commit": (
        SIMULATED,
        "tests/simulation/worker_invariants.py::one_answer",
        "tests/node/capacity/test_ledger.py::test_a_second_commit_with_the_same_key_gets_the_same_lease",
    ),
    "S7 an unfair hog": (
        "tests/node/capacity/test_ledger.py::test_the_queue_is_bounded_for_all_and_for_each",
        "tests/node/capacity/test_ledger_guests.py::test_guests_cannot_fill_the_queue_so_that_the_owner_is_shut_out",
    ),
    "S9 a result forged or swapped": (
        "tests/scheduler/run/test_receive.py::test_a_record_of_something_else_is_refused",
        "tests/scheduler/run/test_receive.py::test_a_record_that_another_key_signed_is_refused",
        "tests/scheduler/run/test_receive.py::test_bytes_that_are_not_what_the_message_says_are_refused",
    ),
    "S10 repudiation": (
        (
            "tests/results/analysis/test_verify.py"
            "::test_what_a_worker_signed_holds_and_what_nobody_signed_is_reported_as_such"
        ),
    ),
    "S11 the scheduler dies": (
        SIMULATED,
        "tests/real/test_faults.py::test_a_killed_scheduler_carries_on_and_runs_nothing_twice",
    ),
    "S13 version skew": (
        "tests/protocol/wire/test_codec.py::test_fields_of_a_newer_peer_are_ignored",
        "tests/protocol/wire/test_codec.py::test_a_word_of_another_family_is_not_spoken",
    ),
    "S14 a poison task": (
        SIMULATED,
        "tests/simulation/scheduler_invariants.py::attempts_are_bounded",
        "tests/node/serve/test_service.py::test_three_models_that_crash_on_a_device_that_works_take_no_worker_out",
    ),
    "E1 code in a model": (
        "tests/drivers/contract/test_formats.py::test_pickles_are_refused_with_what_to_do_instead",
        "tests/drivers/sandbox/test_hostile.py::test_an_operator_of_somebodys_library_is_refused",
    ),
    "E2 external data": (
        "tests/drivers/sandbox/test_hostile.py::test_weights_in_another_file_are_not_read",
        "tests/drivers/onnx/test_driver.py::test_weights_outside_the_file_are_never_read",
    ),
    "E5 native crashes": (
        "tests/drivers/launch/test_launch_ends.py::test_a_child_that_a_signal_ends_has_crashed_by_its_name",
    ),
    "E6 processes left behind": (
        "tests/drivers/launch/test_launch_left.py::test_a_process_that_left_the_group_is_found_and_ended",
        "tests/drivers/launch/test_launch_left.py::test_nothing_outlives_a_node_that_is_killed",
    ),
    "E7 data of one owner reaches the next": (
        "tests/drivers/sandbox/test_hostile.py::test_what_one_launch_leaves_in_its_folder_the_next_does_not_find",
    ),
    "E11 no sandbox to be had": (
        (
            "tests/drivers/sandbox/test_sandbox.py"
            "::test_a_poorer_system_gets_the_tier_that_holds_there_and_what_must_be_full_does_not_run"
        ),
        "tests/node/serve/test_process.py::test_strangers_are_served_in_the_full_sandbox_only_and_with_a_warning",
    ),
    "T3 the disk is full": (
        "tests/real/test_disk.py::test_a_full_disk_of_a_scheduler_is_reported_and_nothing_is_stored",
        "tests/real/test_disk.py::test_a_full_disk_of_a_worker_fails_the_task_and_with_room_again_it_runs",
    ),
    "T4 cache poisoning": (
        "tests/node/store/test_cache.py::test_a_changed_file_with_its_old_size_and_time_is_found_out",
        "tests/node/store/test_cache.py::test_content_that_is_wrong_twice_fails_and_leaves_nothing",
        "tests/swarm/blobs/test_swarm_download.py::test_a_liar_is_dropped_and_the_whole_is_right",
    ),
    "T5 names as paths": (
        "tests/node/store/test_cache.py::test_a_name_that_is_no_hash_reaches_no_path",
        "tests/drivers/onnx/test_driver.py::test_a_folder_with_a_link_or_without_a_model_is_refused",
    ),
    "T8 two nodes on one home": (
        "tests/real/test_refusals.py::test_the_folder_of_a_running_node_is_not_shared",
    ),
    "U1 a browser attacks loopback": (
        "tests/web/http/test_middleware.py::test_only_names_of_this_server_are_answered",
        "tests/web/http/test_middleware.py::test_a_page_of_another_site_is_refused",
    ),
    "U2 the API on every interface": (
        "tests/web/http/test_auth.py::test_beyond_loopback_no_server_goes_without_a_token",
    ),
    "U9 accept anyone on a weak sandbox": (
        "tests/node/serve/test_process.py::test_strangers_are_served_in_the_full_sandbox_only_and_with_a_warning",
    ),
    "C4 a model is swapped": (
        "tests/simulation/worker_invariants.py::the_signed_model_ran",
        "tests/node/store/test_cache.py::test_content_that_is_wrong_twice_fails_and_leaves_nothing",
    ),
}
"""Row → the tests, simulated faults and invariants that cover it, as file::name."""
