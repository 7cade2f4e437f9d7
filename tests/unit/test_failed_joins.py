"""A join that may do without some of its predecessors, and got none because they failed, has failed itself."""

from __future__ import annotations

from hand_world import Driver, ended

BOTH = [{"name": "look", "after": []}, {"name": "left", "after": ["look"]}, {"name": "right", "after": ["look"]},
        {"name": "either", "after": ["left", "right"], "join": 1}, {"name": "other", "after": ["look"]}]


def world(*last):
    nodes = [*BOTH, *last]
    names = [node["name"] for node in nodes]
    driver = Driver({name: {1: 1, "lanes": [name]} for name in names}, {"app": nodes}, policy="fifo",
                    lane={name: {} for name in names})
    driver.arrive("app")
    driver.finish("look", at=1, status="done")
    return driver


def test_what_needs_all_fails_with_it():
    driver = world({"name": "end", "after": ["either", "other"]})
    driver.finish("other", at=2)
    assert driver.finish("left", at=3, status="failed", reason="no light") == []  # the other branch may still come
    assert driver.finish("right", at=4, status="failed", reason="dark") == [ended(1, "failed", "dark")]
    driver.over()


def test_what_can_do_without_it_goes_on():
    driver = world({"name": "end", "after": ["either", "other"], "join": 1})
    driver.finish("left", at=2, status="failed", reason="no light")
    assert driver.finish("right", at=3, status="failed", reason="dark") == []
    driver.finish("other", at=4)
    assert driver.finish("end", at=5)[:1] == [ended(1, "completed")]
    driver.over()


def test_a_join_that_ends_the_app_takes_it_with_it_although_another_end_was_reached():
    driver = world()
    driver.finish("other", at=2)
    driver.finish("left", at=3, status="failed", reason="no light")
    assert driver.finish("right", at=4, status="failed", reason="dark") == [ended(1, "failed", "dark")]
    driver.over()


def test_one_good_branch_is_enough():
    driver = world({"name": "end", "after": ["either", "other"]})
    driver.finish("left", at=2, status="failed", reason="no light")
    driver.finish("right", at=3)
    driver.finish("other", at=4)
    driver.finish("either", at=5)
    assert driver.finish("end", at=6)[:1] == [ended(1, "completed")]
    driver.over()
