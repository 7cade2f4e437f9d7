"""The mutants that ``scripts/dev/mutants.py`` draws, and the copy of the project that their tests run against."""

from __future__ import annotations

import pytest
from dev import mutants


@pytest.mark.nightly
def test_every_equivalent_mutant_still_exists_and_has_a_reason():
    possible = {mutant.key[:4] for mutant in mutants.all_mutants()}
    listed = mutants.read_equivalent()
    assert [key for key in listed if key not in possible] == []
    assert all(len(why) > 15 for why in listed.values())
