"""The file of a machine's costs: written and read back, found like profiles, and what is wrong with one."""

from __future__ import annotations

import os

import pytest

from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import (
    ASSUMED,
    LockUse,
    MachineCosts,
    find_machine,
    machine_path,
    read_machine,
    with_overrides,
    write_machine,
)
from edgeserve.config.profiles import QUANTILES, Profile, find_profiles, profile_path, write_profile
from edgeserve.errors import ProfileError

RISING = tuple(range(1, len(QUANTILES) + 1))
COSTS = MachineCosts(
    step_ns=248_137,
    event_ns=1,
    wake_ns=RISING,
    stall_every_ns=3 * 10**9,
    stall_ns=(7,) * len(QUANTILES),
    lock_factor=1.98,
    contention=1.37,
    lock={'read "it"': LockUse(0.4, RISING, "m:f 12ab")},
    circumstances={"date": "2026-11-22", "load_average": 0.4},
)


def test_costs_are_read_as_they_were_written(tmp_path):
    path = machine_path(str(tmp_path), "orin")
    for costs in (COSTS, MachineCosts(), ASSUMED):
        write_machine(path, costs)
        assert read_machine(path) == costs
    assert os.listdir(tmp_path / "orin") == ["machine.toml"]  # nothing else is left


def test_the_file_is_no_profile_of_a_model(tmp_path):
    write_machine(machine_path(str(tmp_path), device_slug()), COSTS)
    write_profile(profile_path(str(tmp_path), device_slug(), "machine"), Profile("machine", device_slug(), {}))
    assert [profile.model for profile in find_profiles(str(tmp_path))] == ["machine"]
    assert find_machine(str(tmp_path))[1] == COSTS


def test_costs_are_found_as_profiles_are(tmp_path):
    assert find_machine(str(tmp_path)) is None
    assert find_machine(str(tmp_path / "absent"), elsewhere=True) is None
    other = machine_path(str(tmp_path), "orin")
    write_machine(other, COSTS)
    assert find_machine(str(tmp_path)) is None  # another machine's: never for serving
    assert find_machine(str(tmp_path), elsewhere=True) == (other, COSTS)
    assert find_machine(str(tmp_path / "orin"), elsewhere=True) == (other, COSTS)
    write_machine(machine_path(str(tmp_path), "xavier"), COSTS)
    assert find_machine(str(tmp_path), elsewhere=True) is None  # not said which
    own = machine_path(str(tmp_path), device_slug())
    write_machine(own, MachineCosts(step_ns=5))
    assert find_machine(str(tmp_path), elsewhere=True) == (own, MachineCosts(step_ns=5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 2", "format 2, expected 1"),
        ("step = '1us'", "format None, expected 1"),
        ("format = 1\nstep = 5", r"\[machine\] step = 5: expected a duration"),
        ("format = 1\nwake = ['2us', '1us']", "expected one duration, or 15 rising ones: the quantiles 0, 0.01"),
        ("format = 1\nwaek = '1us'", "has no key 'waek'; did you mean 'wake'"),
        ("format = 1\n[lock.m]\nshare = 2", r"lock.m share = 2: expected a number from 0"),
        ("format = ", "is not TOML"),
    ],
)
def test_a_damaged_file_is_named_with_the_mend(tmp_path, text, message):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as error:
        read_machine(str(path))
    assert str(error.value).count(str(path)) == 1
    assert "measure it again with 'edgeserve profile'" in str(error.value)


def test_one_duration_is_always_that():
    found = with_overrides(COSTS, {"wake": "3us", "lock": {"m": {"share": 0.5}}})
    assert found.wake_ns == (3000,) * len(QUANTILES)
    assert found.step_ns == COSTS.step_ns
    assert set(found.lock) == {'read "it"', "m"}
    assert found.lock_of("unknown") == LockUse(1.0, COSTS.lock_wait_ns)
