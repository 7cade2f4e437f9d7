"""The tests that a change needs."""

from __future__ import annotations

import pytest
from dev.changed_tests import ROOT, asked_by


@pytest.mark.parametrize(
    ("changed", "named", "left"),
    [
        ("edgeserve/fronts/mqtt.py", "tests/live/test_mqtt.py", "tests/live/test_wyoming.py"),
        ("edgeserve/sched/core/admission.py", "tests/golden/test_golden.py", "tests/unit/fronts/"),
        ("edgeserve/sched/core/admission.py", "tests/sim/test_soak.py", "tests/unit/engines/"),
        ("edgeserve/units.py", "tests/unit/test_units.py", "tests/unit/commands/fit/"),
        ("tests/lib/mqtt_broker.py", "tests/live/test_mqtt.py", "tests/unit/"),
        ("tests/golden/trace.jsonl", "tests/golden/test_golden.py", "tests/sim/"),
        ("scripts/dev/mutants.py", "tests/unit/scripts/test_mutants.py", "tests/sim/"),
        ("jetson/setup.sh", "tests/jetson/test_setup.py", "tests/unit/"),
        ("docs/guide/security.md", "tests/test_docs.py", "tests/unit/"),
        ("tests/unit/test_cli.py", "tests/unit/test_cli.py", "tests/sim/"),
    ],
)
def test_a_change_asks_for_the_tests_of_its_room_and_no_others(changed: str, named: str, left: str) -> None:
    found = asked_by([changed])
    assert named in found and not [path for path in found if path.startswith(left)]


def test_every_room_has_tests_that_a_change_to_it_asks_for() -> None:
    always = len(asked_by([]))
    for room in sorted((ROOT / "edgeserve").rglob("__init__.py")):
        if room.parent != ROOT / "edgeserve":
            path = room.relative_to(ROOT).as_posix()
            assert len(asked_by([path])) > always, f"{path}: no test file imports anything of it"
