"""`calibrate` and `doctor`, and what `info` shows of both."""

from __future__ import annotations

import json

from node.device.calibration import REMEASURED_LATER_NOTE, Calibration, MicroFigures, figure_of_round
from node.device.calibration_file import calibration_file, write_calibration
from swarm.base.home import Home
from tests.cli.conftest import Typed


def test_a_ticket_is_sent_to_where_it_belongs(typed: Typed) -> None:
    for command in ("calibrate", "enroll"):
        done = typed(command, "sark1abcdef")
        assert (done.code, done.out) == (2, "")
        assert "sark-node pool join TICKET" in done.err


def test_the_predecessors_words_lead_to_what_they_mean(typed: Typed) -> None:
    for word, command in (("start", "join"), ("test", "doctor")):
        shown, meant = typed(word, "--help"), typed(command, "--help")
        assert shown.code == 0
        assert shown.out.replace(f"sark-node {word}", f"sark-node {command}").split() == meant.out.split()


def test_doctor_goes_on_where_the_key_is_damaged_and_says_so(typed: Typed) -> None:
    key = Home.at(typed.home).key("worker")
    key.parent.mkdir(parents=True)
    key.write_text("?")
    key.chmod(0o600)
    done = typed("doctor", "--json")
    assert done.code == 6
    lines = {line["subject"]: line for line in json.loads(done.out)}
    assert lines["key"]["state"] == "bad"
    assert str(key) in lines["key"]["what"]
    assert lines["key"]["todo"]
    assert "disk" in lines


def test_a_calibrated_device_is_not_measured_again_and_info_and_doctor_show_it(typed: Typed) -> None:
    before = json.loads(typed("info", "--json").out)
    assert before["calibration"] is None
    calibration = Calibration(
        fingerprint=before["fingerprint"],
        at=1.0,
        timer_ns=41,
        floors={"CPU (ONNX)": figure_of_round(9, True, 1.0)},
        micro=(
            MicroFigures(
                device="a processor",
                backend="numpy",
                threads=2,
                seconds=1.0,
                figures={
                    "fp32_gflops_max": figure_of_round(123.0, True, 1.0),
                    "copy_gb_s_1_mib": figure_of_round(45.0, True, 1.0),
                },
            ),
        ),
    )
    write_calibration(calibration_file(before["fingerprint"]), calibration)
    shown = typed("calibrate")
    assert (shown.code, shown.err) == (0, "")
    assert "a processor: 123 GFLOPS fp32 in one quiet round; warm after 9 (CPU (ONNX))" in shown.out
    assert "1 mib: 45" in shown.out
    assert "123 GFLOPS fp32" in typed("info").out
    lines = json.loads(typed("doctor", "--json").out)
    assert {line["state"] for line in lines} <= {"ok", "note", "bad"}
    (line,) = [line for line in lines if line["subject"] == "calibration"]
    assert line["state"] == "ok"
    assert "123 GFLOPS" in line["what"]
    write_calibration(
        calibration_file(before["fingerprint"]), calibration.model_copy(update={"quiet": False})
    )
    lines = json.loads(typed("doctor", "--json").out)
    (line,) = [line for line in lines if line["subject"] == "calibration"]
    assert (line["state"], line["todo"]) == ("note", "sark-node calibrate --force --wait 10m")
    assert REMEASURED_LATER_NOTE in line["what"]


def test_how_long_to_wait_is_a_duration(typed: Typed) -> None:
    done = typed("calibrate", "--wait", "soon")
    assert (done.code, done.out) == (2, "")
    assert "--wait soon: 'soon' is not a duration" in done.err
