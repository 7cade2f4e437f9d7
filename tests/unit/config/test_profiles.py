"""Profiles: written whole or not at all, read back equal, refused with the file's name."""

from __future__ import annotations

import os

import pytest

from edgeserve.config.machine import device_slug
from edgeserve.config.machine_costs import MachineCosts, write_machine
from edgeserve.config.profiles import (
    QUANTILES,
    LaneProfile,
    Profile,
    Timing,
    paths_of_mode,
    profile_path,
    read_profile,
    read_profiles,
    read_profiles_here,
    write_profile,
)
from edgeserve.errors import ProfileError

TIMING = Timing(100, 5_000, 7_000, 5_100, 300, tuple(range(4_900, 4_900 + 150 * len(QUANTILES), 150)), 0.01)
PROFILE = Profile(
    "yolo",
    "orin",
    {"gpu0": LaneProfile({1: TIMING, 16: TIMING}, 4_000, 1_000, 0.04, 90_000)},
    10_000,
    2_000,
    {"date": "2026-11-21", "versions": {"onnxruntime": "1.16"}},
)


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    path = profile_path(str(tmp_path), "orin", "yolo")
    assert path == str(tmp_path / "orin" / "yolo.json")
    write_profile(path, PROFILE)
    assert read_profile(path) == PROFILE
    assert os.listdir(tmp_path / "orin") == ["yolo.json"]


def test_all_profiles_below_a_directory_in_path_order(tmp_path):
    for model in ("b", "a"):
        write_profile(profile_path(str(tmp_path), "orin", model), Profile(model, "orin", {}))
    (tmp_path / "notes.txt").write_text("not a profile", encoding="utf-8")
    assert [profile.model for profile in read_profiles(str(tmp_path))] == ["a", "b"]
    assert read_profiles(str(tmp_path / "absent")) == []


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "model": "m", "lanes": 3}'])
def test_what_is_no_profile_is_refused_with_its_name_and_the_mend(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=r"m\.json: .*measure it again with 'edgeserve profile'"):
        read_profile(str(path))


def test_a_server_reads_the_files_of_this_machine_that_it_can_and_hears_of_the_others(tmp_path):
    here = os.path.join(str(tmp_path), device_slug())
    write_profile(os.path.join(here, "a.json"), Profile("a", "here", {}))
    write_profile(profile_path(str(tmp_path), "another-device", "b"), Profile("b", "another-device", {}))
    with open(os.path.join(here, "old.json"), "w", encoding="utf-8") as file:
        file.write('{"format": 1}')
    with open(os.path.join(here, "torn.json"), "w", encoding="utf-8") as file:
        file.write("{")
    profiles, errors = read_profiles_here(str(tmp_path))
    assert [profile.model for profile in profiles] == ["a"]
    assert len(errors) == 2
    assert "old.json: format 1, expected 2; measure it again with 'edgeserve profile'" in str(errors[0])
    assert "torn.json: is not a profile" in str(errors[1])
    assert read_profiles_here(str(tmp_path / "absent")) == ([], [])


def test_an_absent_file_says_how_to_make_it(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read .* measure it with 'edgeserve profile'"):
        read_profile(str(tmp_path / "m.json"))


def test_a_model_may_be_called_like_the_folder_of_a_power_mode(tmp_path):
    for model, mode in (("mode-x", ""), ("m", "15W")):
        write_profile(profile_path(str(tmp_path), "orin", model, mode), Profile(model, "orin", {}))
    assert [os.path.basename(path) for path in paths_of_mode(str(tmp_path / "orin"), "")] == ["mode-x.json"]
    assert [os.path.basename(path) for path in paths_of_mode(str(tmp_path / "orin"), "15W")] == [
        "m.json",
        "mode-x.json",
    ]


@pytest.mark.parametrize("write", [write_profile, lambda path, _: write_machine(path, MachineCosts())])
def test_a_folder_in_the_place_of_a_profile_is_a_sentence(tmp_path, write):
    (tmp_path / "m.json").mkdir()
    with pytest.raises(ProfileError, match="m.json: cannot be written .Is a directory.; expected a file or nothing"):
        write(str(tmp_path / "m.json"), PROFILE)
    with pytest.raises(ProfileError, match=r"m.json: cannot be read .*measure it"):
        read_profile(str(tmp_path / "m.json"))
    assert os.listdir(tmp_path) == ["m.json"]
