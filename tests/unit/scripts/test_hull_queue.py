"""The paper's queue, which the product's is measured against, against brute force."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.hull_queue import EXPONENT_MAX, HullQueue, HullTree, Leaf, Lines, Node, above, meet_before, uphill

pytestmark = pytest.mark.nightly

EDGES, MASSES, MEAN = (10, 20, 40), (0.25, 0.75), 26.25

grid = st.tuples(st.integers(-4, 4), st.integers(-4, 4)).map(lambda point: (float(point[0]), float(point[1])))
nearly = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(  # in doubt for floats: a last bit beside the grid
    lambda point: (0.1 * point[0], 0.1 * point[1] + 0.3 * (0.1 * point[0]))
)
wide = st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
tiny = st.tuples(st.integers(1, 9).map(lambda power: 1e-29**power), st.sampled_from([0.0, 0.0, 1e-150, 5.0]))
points = st.one_of(*[st.lists(st.tuples(st.booleans(), kind), max_size=30) for kind in (grid, nearly, wide, tiny)])


def score(leaf, z):
    return Fraction(leaf.x) * Fraction(z) + Fraction(leaf.y)


def check(node):
    """The leaves below in order; every promise of a node holds, in exact arithmetic."""
    if node.left is None:
        assert isinstance(node, Leaf) and node.height == 0
        return [node]
    assert isinstance(node, Node)
    left, right = check(node.left), check(node.right)
    assert abs(node.left.height - node.right.height) <= 1
    assert node.height == 1 + max(node.left.height, node.right.height)
    assert all((leaf.x, leaf.y) < (node.x, node.y) for leaf in left)
    assert all((leaf.x, leaf.y) >= (node.x, node.y) for leaf in right)
    assert any(node.p is leaf for leaf in left) and any(node.q is leaf for leaf in right)
    px, py = Fraction(node.p.x), Fraction(node.p.y)
    dx, dy = Fraction(node.q.x) - px, Fraction(node.q.y) - py
    assert all(dx * (Fraction(leaf.y) - py) <= dy * (Fraction(leaf.x) - px) for leaf in left + right)
    return left + right


@settings(max_examples=100)
@given(points, st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=3))
def test_the_tree_keeps_its_bridges_and_finds_the_best(ops, slopes):
    tree, known = HullTree(), {}
    for deletes, (x, y) in ops:
        if deletes and known:
            point = sorted(known)[int(abs(x)) % len(known)]
            tree.delete(known.pop(point))
        else:
            leaf = tree.insert(x, y)
            assert known.setdefault((x, y), leaf) is leaf
        assert (check(tree.root) if tree.root else []) == [known[point] for point in sorted(known)]
        for z in slopes:
            first = next(tree.falling(z), None)
            assert first is None if not known else score(first, z) == max(score(leaf, z) for leaf in known.values())
    for z in slopes:
        falling = list(tree.falling(z))
        assert len(falling) == len(known) == len({id(leaf) for leaf in falling})
        at = [leaf.x * z + leaf.y for leaf in falling]
        scale = max([abs(leaf.x * z) + abs(leaf.y) for leaf in falling], default=0.0)
        assert all(one >= other - 1e-15 * scale for one, other in zip(at, at[1:]))


def test_questions_in_doubt_are_answered_exactly():
    """Points on a line but for their last bits: rounded arithmetic is wrong about a good part of them."""
    draw = random.Random("doubt")
    wrong = {"above": 0, "uphill": 0, "meet_before": 0}
    for _ in range(500):
        slope, height, x = draw.uniform(-2, 2), draw.uniform(-9, 9), draw.uniform(0.5, 0.6)
        p, q, r, s = [Leaf(at, height + slope * at) for at in sorted(draw.random() for _ in range(4))]
        (px, py), (qx, qy), (rx, ry), (sx, sy) = [(Fraction(leaf.x), Fraction(leaf.y)) for leaf in (p, q, r, s)]
        turn = (qx - px) * (ry - py) - (qy - py) * (rx - px)
        assert above(p, q, r) == (turn > 0)
        wrong["above"] += ((q.x - p.x) * (r.y - p.y) - (q.y - p.y) * (r.x - p.x) > 0) != (turn > 0)
        gain = (qx - px) * Fraction(-slope) + qy - py
        assert uphill(p, q, -slope) == (gain > 0)
        wrong["uphill"] += ((q.x - p.x) * -slope + (q.y - p.y) > 0) != (gain > 0)
        over = (py + (qy - py) / (qx - px) * (Fraction(x) - px)) - (ry + (sy - ry) / (sx - rx) * (Fraction(x) - rx))
        assert meet_before(SimpleNamespace(p=p, q=q), SimpleNamespace(p=r, q=s), x) == (over >= 0)
        rounded = (p.y + (q.y - p.y) / (q.x - p.x) * (x - p.x)) - (r.y + (s.y - r.y) / (s.x - r.x) * (x - r.x))
        wrong["meet_before"] += (rounded >= 0) != (over >= 0)
    assert min(wrong.values()) >= 10


def test_three_points_on_a_level_are_not_yet_four():
    a, b = SimpleNamespace(p=Leaf(0.0, 1.0), q=Leaf(1.0, 1.0)), SimpleNamespace(p=Leaf(3.0, 1.0), q=Leaf(4.0, 0.0))
    assert not meet_before(a, b, 2.0)
    assert meet_before(a, b, 3.0)


@given(st.sets(st.one_of(grid, wide), max_size=40))
def test_a_tree_built_in_one_go_is_one_too(drawn):
    tree = HullTree()
    tree.rebuild([Leaf(*point) for point in sorted(drawn)])
    assert [(leaf.x, leaf.y) for leaf in check(tree.root)] == sorted(drawn) if drawn else tree.root is None


def test_a_thousand_points_in_one_direction_stay_balanced():
    tree = HullTree()
    leaves = [tree.insert(float(x), -1e-3 * x * x) for x in range(1000)]  # all on the hull
    assert check(tree.root) == leaves
    assert tree.root.height <= 14  # 1.44 log2(1000)
    assert next(tree.falling(1.0)).x == 500.0
    for leaf in leaves[:990]:
        tree.delete(leaf)
    assert check(tree.root) == leaves[990:]
    with pytest.raises(KeyError, match="is not in this tree"):
        tree.delete(leaves[0])


def brute(edges, masses, mean, rate, slack):
    """The score of the specification (section 3), bin by bin."""
    return sum(
        mass
        / (high - low)
        / (rate * mean)
        * math.exp(rate * (low - slack))
        * math.expm1(rate * (min(high, slack) - low))
        for low, high, mass in zip(edges, edges[1:], masses)
        if low < slack
    )


@pytest.mark.parametrize(
    ("deadline", "pair", "milestone"),
    [(1060, (3.4353868633e-2, 0.0), 1020), (1030, (-12.904724458, 14.285714286), 1010)],
)
def test_points_and_milestones_of_the_specification(deadline, pair, milestone):
    queue = HullQueue([Lines(EDGES, MASSES, MEAN, 1e-4)], 1e-4)
    queue.add(1, 0, deadline, 1000)
    leaf = queue.pending[1].leaf
    assert (leaf.x, leaf.y) == pytest.approx(pair, rel=1e-6)
    assert queue.milestones[0][0] == milestone


ops = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove", "wait", "top"]), st.integers(0, 400)), max_size=50
)


@settings(max_examples=60)
@given(ops, st.sampled_from([1e-4, 1e-2, 0.2, 5.0]), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_queue_gives_the_best_requests_at_any_time(ops, rate, at_most, draw):
    """At a rate of 5 a wait of 60 takes a new base time, and a deadline may be 60 ahead."""
    classes = []
    for _ in range(3):
        edges = sorted(draw.sample(range(1, 50), 6))
        masses = [draw.random() * (draw.random() < 0.7) for _ in range(5)]
        classes.append((edges, [mass / (sum(masses) or 1.0) for mass in masses], draw.uniform(10, 50)))
    now, item, known = 1000, 0, {}
    queue = HullQueue([Lines(*each, rate) for each in classes], rate, now)
    for what, number in ops:
        if what == "add":
            item += 1
            known[item] = (number % 3, now + number % 60)
            queue.add(item, *known[item], now)
        elif what == "remove" and known:
            gone = sorted(known)[number % len(known)]
            del known[gone]
            queue.remove(gone)
        elif what == "wait":
            now += number if number > 300 else number % 70
        scores = {key: brute(*classes[klass], rate, due - now) for key, (klass, due) in known.items()}
        found = queue.top(now, at_most)
        assert len(found) == len(set(found)) == min(at_most, len(known))
        best = sorted(scores.values(), reverse=True)[:at_most]
        assert sorted((scores[key] for key in found), reverse=True) == pytest.approx(best, rel=1e-6, abs=1e-8)
        assert rate * (now - queue.base_ns) <= EXPONENT_MAX
        assert len(queue) == len(known)
        if known:
            check(queue.tree.root)


def test_filling_at_once_is_adding_one_by_one():
    draw = random.Random("fill")
    requests = [(item, 0, draw.randint(0, 90)) for item in range(200)]
    one, other = [HullQueue([Lines(EDGES, MASSES, MEAN, 0.01)], 0.01) for _ in range(2)]
    one.fill(requests, 0)
    for request in requests:
        other.add(*request, 0)
    due = {item: deadline for item, _, deadline in requests}
    for now in (0, 7, 30, 60):
        assert [due[item] for item in one.top(now, 16)] == [due[item] for item in other.top(now, 16)]


def test_milestones_of_requests_that_left_are_thrown_away():
    queue = HullQueue([Lines(EDGES, MASSES, MEAN, 0.01)], 0.01)
    for item in range(500):
        queue.add(item, 0, 10_000, 0)
        queue.remove(item)
    assert len(queue) == 0 and queue.tree.root is None
    assert len(queue.milestones) <= 65


def test_what_the_queue_cannot_hold_is_refused():
    queue = HullQueue([Lines(EDGES, MASSES, MEAN, 0.01)], 0.01)
    queue.add(1, 0, 100, 0)
    with pytest.raises(ValueError, match="stands in this queue already"):
        queue.add(1, 0, 100, 0)
    with pytest.raises(ValueError, match="more than 300 mean delays"):
        queue.add(2, 0, 30_001, 0)
    assert queue.top(50, 5) == [1]
