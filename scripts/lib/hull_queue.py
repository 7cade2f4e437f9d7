"""Orloj's own queue (section 4.2 and appendix A of the paper): a dynamic convex hull. For comparison only.

Every request is a point (alpha, beta) with the score ``alpha z + beta``, ``z = e^(b (t - t0))``; the best one lies
where a line of slope ``-z`` touches the upper hull. :class:`HullTree` is the tree of Overmars and van Leeuwen (1981):
points at the leaves, and at each inner node the *bridge*, the edge of the node's hull that joins its children's hulls.
An update costs O(log^2 n), the best point O(log n). :class:`HullQueue` adds what a queue of requests needs: a new point
at each milestone, and a new base time ``t0`` before the exponentials leave the range of a float.

The product uses :func:`edgeserve.sched.policies.published.orloj.slack.top` instead; ``scripts/bench/queues.py``
measures why.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from fractions import Fraction
from itertools import count
from math import exp, floor
from typing import Any, Dict, Iterator, List, Sequence, Tuple

EXPONENT_MAX = 300.0
"""b times the longest time between two base times, and between now and a deadline: e^-600 is still a full float."""


class Leaf:
    """A point and the items that share it, as ``(deadline_ns, item)`` in rising order."""

    __slots__ = ("x", "y", "members", "height", "left")

    def __init__(self, x: float, y: float) -> None:
        self.x, self.y = x, y
        self.members: List[Tuple[int, int]] = []
        self.height = 0
        self.left = None  # tells a leaf from a node


class Node:
    """An inner node: points before ``(x, y)`` are left, the others right; ``p`` and ``q`` are its bridge's ends."""

    __slots__ = ("x", "y", "left", "right", "height", "p", "q")

    def __init__(self, left: Any, right: Any, x: float, y: float) -> None:
        self.left, self.right, self.x, self.y = left, right, x, y
        self.update()

    def update(self) -> None:
        """Height and bridge from the children. O(log n)."""
        self.height = 1 + max(self.left.height, self.right.height)
        self.p, self.q = bridge(self.left, self.right, self.x)


def bridge(left: Any, right: Any, x: float) -> Tuple[Leaf, Leaf]:
    """The edge that joins two upper hulls on either side of ``x``: every point of both lies on or below its line.

    Each step compares the bridges inside the two subtrees and rules out one half of a subtree, in which the end of the
    bridge that is looked for cannot lie. Equal abscissae need no case of their own: points are in order of (x, y), so
    a vertical edge goes upwards, and what is "above" it is what is left of it.
    """
    while True:
        if left.left is None:
            if right.left is None:
                return left, right
            right = right.right if above(right.p, right.q, left) else right.left
        elif right.left is None:
            left = left.left if above(left.p, left.q, right) else left.right
        elif above(left.p, left.q, right.p):
            left = left.left
        elif above(right.p, right.q, left.q):
            right = right.right
        elif meet_before(left, right, x):
            left = left.right
        else:
            right = right.left


# Three questions about floats, answered exactly: rounded first, with a bound of the error, and with fractions where
# the bound leaves a doubt (Shewchuk 1997). A wrong answer would lead a search into the wrong subtree.


def above(p: Leaf, q: Leaf, r: Leaf) -> bool:
    """Whether ``r`` lies strictly left of the line from ``p`` to ``q``."""
    one, two = (q.x - p.x) * (r.y - p.y), (q.y - p.y) * (r.x - p.x)
    turn, doubt = one - two, 4e-16 * (abs(one) + abs(two)) + 1e-300
    if turn > doubt:
        return True
    if turn < -doubt or p.y == q.y == r.y:  # safe requests all have beta = 0
        return False
    px, py = Fraction(p.x), Fraction(p.y)
    return (Fraction(q.x) - px) * (Fraction(r.y) - py) > (Fraction(q.y) - py) * (Fraction(r.x) - px)


def meet_before(a: Node, b: Node, x: float) -> bool:
    """Whether the line of a's bridge is at or above that of b's at ``x``, so that they meet at or before it. Asked when
    neither bridge rises over the other's line: a's is the steeper one, and if b's is vertical, so is a's."""
    p, q, r, s = a.p, a.q, b.p, b.q
    if p.x == q.x:
        return True
    rise, fall = (q.y - p.y) / (q.x - p.x) * (x - q.x), (s.y - r.y) / (s.x - r.x) * (r.x - x)
    over, doubt = (q.y + rise) - (r.y - fall), 2e-15 * (abs(q.y) + abs(rise) + abs(r.y) + abs(fall)) + 1e-300
    if over > doubt or p.y == q.y == r.y == s.y:
        return True
    return not over < -doubt and at_x(p, q, x) >= at_x(r, s, x)


def at_x(p: Leaf, q: Leaf, x: float) -> Fraction:
    """The height of the line through two points at ``x``."""
    return Fraction(p.y) + (Fraction(q.y) - Fraction(p.y)) / (Fraction(q.x) - Fraction(p.x)) * (
        Fraction(x) - Fraction(p.x)
    )


def uphill(p: Leaf, q: Leaf, z: float) -> bool:
    """Whether ``x z + y`` is larger at ``q`` than at ``p``."""
    one, two = (q.x - p.x) * z, q.y - p.y
    gain, doubt = one + two, 4e-16 * (abs(one) + abs(two)) + 1e-300
    if abs(gain) > doubt:
        return gain > 0
    return (Fraction(q.x) - Fraction(p.x)) * Fraction(z) + Fraction(q.y) - Fraction(p.y) > 0


class HullTree:
    """Points in a height-balanced tree with bridges."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: Any = None

    def rebuild(self, leaves: Sequence[Leaf]) -> None:
        """Replace all by these leaves, given in rising order of (x, y). O(n log n)."""

        def build(low: int, high: int) -> Any:
            if high - low == 1:
                return leaves[low]
            middle = (low + high) // 2
            return Node(build(low, middle), build(middle, high), leaves[middle].x, leaves[middle].y)

        self.root = build(0, len(leaves)) if leaves else None

    def insert(self, x: float, y: float) -> Leaf:
        """The leaf of a point, made if there is none. O(log^2 n)."""
        path, found = self._descend(x, y)
        if found is None:
            self.root = Leaf(x, y)
            return self.root
        if found.x == x and found.y == y:
            return found
        leaf = Leaf(x, y)
        before = x < found.x or x == found.x and y < found.y
        made = Node(leaf, found, found.x, found.y) if before else Node(found, leaf, x, y)
        old, new = found, made
        covered = False  # the new point is on the hull of no node further up
        while path:
            node = path.pop()
            relink(node, old, new)
            old, new = node, node
            if abs(node.left.height - node.right.height) > 1:
                new = rotate(node)
            else:
                node.height = 1 + max(node.left.height, node.right.height)
                if not covered:
                    if above(node.p, node.q, leaf):
                        node.p, node.q = bridge(node.left, node.right, node.x)
                    else:
                        covered = node.p.x < x < node.q.x
        self.root = new
        return leaf

    def delete(self, leaf: Leaf) -> None:
        """Take a leaf out. O(log^2 n)."""
        path, found = self._descend(leaf.x, leaf.y)
        if found is not leaf:
            raise KeyError(f"the point ({leaf.x}, {leaf.y}) is not in this tree")
        if not path:
            self.root = None
            return
        old = path.pop()
        new = old.right if old.left is leaf else old.left
        while path:
            node = path.pop()
            relink(node, old, new)
            old, new = node, node
            if abs(node.left.height - node.right.height) > 1:
                new = rotate(node)
            else:
                node.height = 1 + max(node.left.height, node.right.height)
                if node.p is leaf or node.q is leaf:
                    node.p, node.q = bridge(node.left, node.right, node.x)
        self.root = new

    def falling(self, z: float) -> Iterator[Leaf]:
        """The leaves by falling ``x z + y``. O(log n) for the first, O(log^2 n) for each further one.

        When a leaf was given out, the tree without it is the subtrees beside the way to it: the best of each is found
        by its bridges, as the first one was, and waits in a heap. Nothing is deleted.
        """
        if self.root is None:
            return
        order = count()
        heap: List[Tuple[float, int, Leaf, Any]] = []

        def enter(node: Any) -> None:
            best = node
            while best.left is not None:
                best = best.right if uphill(best.p, best.q, z) else best.left
            heapq.heappush(heap, (-(best.x * z + best.y), next(order), best, node))

        enter(self.root)
        while heap:
            _, _, leaf, node = heapq.heappop(heap)
            yield leaf
            while node is not leaf:
                goes_left = leaf.x < node.x or leaf.x == node.x and leaf.y < node.y
                enter(node.right if goes_left else node.left)
                node = node.left if goes_left else node.right

    def _descend(self, x: float, y: float) -> Tuple[List[Node], Any]:
        """The nodes on the way to where a point is or would be, and the leaf there."""
        path: List[Node] = []
        node = self.root
        while node is not None and node.left is not None:
            path.append(node)
            node = node.left if x < node.x or x == node.x and y < node.y else node.right
        return path, node


def relink(parent: Node, old: Any, new: Any) -> None:
    """Put ``new`` where ``old`` hangs."""
    if parent.left is old:
        parent.left = new
    else:
        parent.right = new


def rotate(node: Node) -> Node:
    """The balanced subtree in place of one whose sides differ by two in height."""
    if node.left.height > node.right.height:
        low = node.left
        if low.left.height < low.right.height:
            low = node.left = turn_left(low)
        return turn_right(node)
    high = node.right
    if high.right.height < high.left.height:
        node.right = turn_right(high)
    return turn_left(node)


def turn_left(node: Node) -> Node:
    """The right child becomes the parent."""
    top = node.right
    node.right, top.left = top.left, node
    node.update()
    top.update()
    return top


def turn_right(node: Node) -> Node:
    """The left child becomes the parent."""
    top = node.left
    node.left, top.right = top.right, node
    node.update()
    top.update()
    return top


class Lines:
    """The score of one class as ``alpha e^(-b x) + beta`` of the slack x, a pair for each region between two edges."""

    __slots__ = ("edges", "pairs")

    def __init__(
        self, edges_ns: Sequence[float], masses: Sequence[float], mean_ns: float, rate_per_ns: float, cost: float = 1.0
    ) -> None:
        self.edges = list(edges_ns)
        self.pairs = [(0.0, 0.0)]
        passed = 0.0  # the sum over the bins that lie wholly below the slack
        for low, high, mass in zip(self.edges, self.edges[1:], masses):
            a = mass / (high - low) * cost / (rate_per_ns * mean_ns)
            self.pairs.append((passed - a * exp(rate_per_ns * low), a))
            passed += a * (exp(rate_per_ns * high) - exp(rate_per_ns * low))
        self.pairs.append((passed, 0.0))

    def region(self, slack_ns: float) -> int:
        """0 up to the first edge, then counted by edges passed."""
        return bisect_left(self.edges, slack_ns)


class Pending:
    """A request in the queue."""

    __slots__ = ("item", "lines", "deadline_ns", "leaf")

    def __init__(self, item: int, lines: Lines, deadline_ns: int) -> None:
        self.item, self.lines, self.deadline_ns = item, lines, deadline_ns
        self.leaf: Any = None


class HullQueue:
    """Requests (integers) of several classes, by the score of one batch size. Time must not go back."""

    def __init__(self, classes: Sequence[Lines], rate_per_ns: float, now_ns: int = 0) -> None:
        self.classes, self.rate, self.base_ns = classes, rate_per_ns, now_ns
        self.tree = HullTree()
        self.pending: Dict[int, Pending] = {}
        self.milestones: List[Tuple[int, int, Pending]] = []  # heap of (time, tie, request); one of each request
        self._ties = count()

    def __len__(self) -> int:
        return len(self.pending)

    def fill(self, requests: Sequence[Tuple[int, int, int]], now_ns: int) -> None:
        """Add many ``(item, class, deadline_ns)`` at once; the tree is built in one go."""
        for item, klass, deadline_ns in requests:
            self._check(item, deadline_ns, now_ns)
            self.pending[item] = Pending(item, self.classes[klass], deadline_ns)
        self._rebase(now_ns)

    def add(self, item: int, klass: int, deadline_ns: int, now_ns: int) -> None:
        """Add a request."""
        self._advance(now_ns)
        self._check(item, deadline_ns, now_ns)
        request = self.pending[item] = Pending(item, self.classes[klass], deadline_ns)
        self._place(request, now_ns)

    def remove(self, item: int) -> None:
        """Take a request out. Its milestone stays until it is due or such ones are half of all."""
        request = self.pending.pop(item)
        self._lift(request)
        if len(self.milestones) > 2 * len(self.pending) + 64:
            self.milestones = [entry for entry in self.milestones if entry[2].leaf is not None]
            heapq.heapify(self.milestones)

    def top(self, now_ns: int, at_most: int) -> List[int]:
        """The requests of highest score; those of one point by deadline."""
        self._advance(now_ns)
        found: List[int] = []
        for leaf in self.tree.falling(exp(self.rate * (now_ns - self.base_ns))):
            found += [item for _, item in leaf.members[: at_most - len(found)]]
            if len(found) == at_most:
                break
        return found

    def _check(self, item: int, deadline_ns: int, now_ns: int) -> None:
        if item in self.pending:
            raise ValueError(f"request {item} stands in this queue already")
        if self.rate * (deadline_ns - now_ns) > EXPONENT_MAX:
            raise ValueError(
                f"request {item} is due in {deadline_ns - now_ns} ns, more than {EXPONENT_MAX:g} mean "
                f"delays of {1 / self.rate:g} ns: its score is no full float; take a smaller rate"
            )

    def _advance(self, now_ns: int) -> None:
        if self.rate * (now_ns - self.base_ns) > EXPONENT_MAX:
            self._rebase(now_ns)
        while self.milestones and self.milestones[0][0] <= now_ns:
            request = heapq.heappop(self.milestones)[2]
            if request.leaf is not None:
                self._lift(request)
                self._place(request, now_ns)

    def _point(self, request: Pending, now_ns: int) -> Tuple[float, float]:
        """The point of a request from now on; its next milestone is noted."""
        lines = request.lines
        region = lines.region(request.deadline_ns - now_ns)
        if not region:  # surely late, for how long ever: there is nothing to scale
            return 0.0, 0.0
        due_ns = request.deadline_ns - floor(lines.edges[region - 1])
        heapq.heappush(self.milestones, (due_ns, next(self._ties), request))
        alpha, beta = lines.pairs[region]
        return alpha * exp(-self.rate * (request.deadline_ns - self.base_ns)), beta

    def _place(self, request: Pending, now_ns: int) -> None:
        request.leaf = self.tree.insert(*self._point(request, now_ns))
        insort(request.leaf.members, (request.deadline_ns, request.item))

    def _lift(self, request: Pending) -> None:
        leaf, request.leaf = request.leaf, None
        members = leaf.members
        del members[bisect_left(members, (request.deadline_ns, request.item))]
        if not members:
            self.tree.delete(leaf)

    def _rebase(self, now_ns: int) -> None:
        """Take now as the base time: every point and milestone anew. O(n log n), once in 300 mean delays."""
        self.base_ns = now_ns
        self.milestones = []
        leaves: Dict[Tuple[float, float], Leaf] = {}
        for request in self.pending.values():
            point = self._point(request, now_ns)
            request.leaf = leaves.setdefault(point, Leaf(*point))
            request.leaf.members.append((request.deadline_ns, request.item))
        for leaf in leaves.values():
            leaf.members.sort()
        self.tree.rebuild([leaves[point] for point in sorted(leaves)])
