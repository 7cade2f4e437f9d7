"""PARD's state planner: what each module knows of itself and of the modules behind it, renewed once a period.

A *module* is a model that this policy's apps use, with the lanes that may run it. It publishes how long requests wait
in its queues (a window of seconds, newest heaviest), how long its batches take, and how its load compares with what it
can do. From that the planner sums up, for every node, what still lies before a request when it leaves the node: the
longest path that it may take (``branches.py``).

The load factor ``mu`` is what came in over what the lanes can do in full batches; ``eps`` is how much the rate jumps.
Above ``1 + eps`` the requests with the most time left go first (HBF), below ``1 - eps`` the ones with the least (LBF),
in between the order stays. All whole numbers, rates in milli-requests per second. Knows no queue and no board.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, Mapping, Sequence, Tuple

from edgeserve.sched.published.pard.branches import Branches, Routes
from edgeserve.sched.published.pard.waits import Waits, forget_before, weighted_mean_ns
from edgeserve.sched.requests.graph import App, Node
from edgeserve.sched.requests.states import Job
from edgeserve.units import PPM

SMOOTHED_OVER = 5
"""Periods over which the arrival rate is averaged to see how much it jumps (section 3.4: 5 s)."""

JUMPS_OVER = 10
"""Periods whose jumps make ``eps``."""

BUCKET_MIN = 50
"""Arrivals that a bucket of the rate should hold: by chance alone, fewer jump more than any threshold allows."""

BUCKET_PERIODS_MAX = 10
"""A bucket is closed after so many periods, however few arrived."""

SAMPLES_MAX = 20_000
"""Waits and latencies remembered per module at most."""

PATHS_MAX = 64
"""Downstream paths looked at per node; of a graph with more, the longest alone."""

FORETOLD_MAX = 1024
"""Combinations of declared branches whose rest is kept until the next sum; a graph with more works some out again."""

NOTHING: Mapping[Node, int] = {}

MRPS = 10**12
"""Arrivals times this, over nanoseconds, are milli-requests per second."""


class LoadFactor:
    """True if the requests with the most time left go first: ``high``. One per module."""

    __slots__ = ("high", "_hbf_from_ppm", "_lbf_from_ppm", "_instant", "_rates", "_jumps")

    def __init__(self, hbf_from: float = 1.0, lbf_from: float = 1.0, instant: bool = False) -> None:
        self.high = False
        self._hbf_from_ppm = round(hbf_from * PPM)
        self._lbf_from_ppm = round(lbf_from * PPM)
        self._instant = instant
        self._rates: Deque[int] = deque(maxlen=SMOOTHED_OVER)
        self._jumps: Deque[Tuple[int, int]] = deque(maxlen=JUMPS_OVER)  # (rate, how far from the mean of the last)

    def observe(self, rate: int, capacity: int) -> None:
        """The rate of the bucket that just closed, and what the lanes can do, in milli-requests per second."""
        self._rates.append(rate)
        self._jumps.append((rate, abs(rate - sum(self._rates) // len(self._rates))))
        if rate == 0:
            self.high = False
            return
        mu_ppm = rate * PPM // max(1, capacity)
        eps_ppm = self.eps_ppm()
        if mu_ppm > self._hbf_from_ppm + eps_ppm:
            self.high = True
        elif mu_ppm < self._lbf_from_ppm - eps_ppm:
            self.high = False

    def eps_ppm(self) -> int:
        """The jumps of the rate, relative to itself."""
        total = sum([rate for rate, _ in self._jumps])
        return 0 if self._instant or not total else sum([jump for _, jump in self._jumps]) * PPM // total


class Module:
    """One model as the planner sees it. ``times_ns`` is that of a full batch per lane; ``time_ns`` the mean over the
    lanes, or over the batches that ran (``took_ns``); ``queue_ns`` is the published waiting time."""

    __slots__ = (
        "model",
        "place",
        "sizes",
        "times_ns",
        "time_ns",
        "each_ns",
        "took_ns",
        "queue_ns",
        "capacity",
        "load",
        "arrived",
        "bucket_since_ns",
        "period_ns",
        "period_count",
        "overloaded",
        "_delays",
        "_tested",
        "_took",
    )

    def __init__(self, model: str, place: int, load: LoadFactor) -> None:
        self.model = model
        self.place = place  # in topological order, over all apps
        self.load = load
        self.sizes: Dict[str, int] = {}  # lane -> batch size
        self.times_ns: Dict[str, int] = {}
        self.time_ns = 0
        self.each_ns = 0  # what a job adds to a full batch: the part of its time that grows
        self.took_ns = 0  # the mean batch of the window, where the policy reports what ran
        self.queue_ns = 0
        self.capacity = 0
        self.arrived = 0
        self.bucket_since_ns = 0
        self.period_ns = 0  # waiting of this period's requests
        self.period_count = 0
        self.overloaded = False
        self._delays: Deque[Tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._tested: Deque[Tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._took: Deque[Tuple[int, int]] = deque(maxlen=SAMPLES_MAX)

    def set_times(
        self,
        times_ns: Mapping[str, int],
        up: Sequence[str],
        alone_ns: Mapping[str, int] | None = None,
        fixed_ns: Mapping[str, int] | None = None,
        counted_ppm: Mapping[str, int] | None = None,
    ) -> None:
        """The time that a full batch takes on each lane, ``fixed_ns`` of it for any inputs, and which lanes are up.
        Where batches count as they ran, ``alone_ns`` are the times of the smallest, which stand in while none
        has: a module that drops everything must be tried again."""
        fixed_ns, counted_ppm = fixed_ns or {}, counted_ppm or {}
        self.times_ns = dict(times_ns)
        stated = times_ns if alone_ns is None else alone_ns
        known = [stated[lane] for lane in up] or list(stated.values())
        self.time_ns = (self.took_ns if alone_ns is not None else 0) or sum(known) // len(known)
        each = [
            max(0, times_ns[lane] - fixed_ns.get(lane, 0)) * counted_ppm.get(lane, PPM) // PPM // self.sizes[lane]
            for lane in up or times_ns
        ]
        self.each_ns = sum(each) // len(each)
        self.capacity = sum([self.sizes[lane] * MRPS // times_ns[lane] for lane in up])

    def admitted(self, now_ns: int, delay_ns: int) -> None:
        """A request joined a batch after so long in the queue."""
        self._delays.append((now_ns, delay_ns))
        self.period_ns += delay_ns
        self.period_count += 1

    def tested(self, now_ns: int, local_ns: int) -> None:
        """A request, kept or dropped, would leave the module so long after it came."""
        self._tested.append((now_ns, local_ns))

    def ran(self, now_ns: int, took_ns: int) -> None:
        """Note the time ``took_ns`` of a batch of any size."""
        self._took.append((now_ns, took_ns))

    def worst_ns(self) -> int:
        """The longest time in the module of all that were tested in the window; a batch's time before any was."""
        return max([local_ns for _, local_ns in self._tested], default=self.time_ns)

    def close_period(self, now_ns: int, length_ns: int, window_ns: int, threshold_ns: int) -> None:
        """A period is over: publish the waiting time, judge the load."""
        forget_before(self._delays, now_ns - window_ns)
        forget_before(self._tested, now_ns - window_ns)
        forget_before(self._took, now_ns - window_ns)
        self.took_ns = weighted_mean_ns(self._took, now_ns, window_ns)
        self.time_ns = self.took_ns or self.time_ns
        self.queue_ns = weighted_mean_ns(self._delays, now_ns, window_ns)
        self.overloaded = self.period_count > 0 and self.period_ns > threshold_ns * self.period_count
        self.period_ns = self.period_count = 0
        age_ns = now_ns - self.bucket_since_ns
        if self.arrived == 0 or self.arrived >= BUCKET_MIN or age_ns >= BUCKET_PERIODS_MAX * length_ns:
            self.load.observe(self.arrived * MRPS // max(1, age_ns), self.capacity)
            self.arrived = 0
            self.bucket_since_ns = now_ns


class Planner:
    """All modules of a policy, and what lies behind each node. ``rest`` names the sum: ``none``, ``d`` (batch times),
    ``qd`` (and queues), ``qdw`` (and a low quantile of the batch waits), ``qdd`` (and the longest batch waits). Of a
    fork that chooses one branch the longest counts, or with ``expected`` their mean, by how often each was chosen."""

    def __init__(
        self,
        apps: Sequence[App],
        load: Mapping[str, LoadFactor],
        waits: Waits,
        rest: str,
        *,
        period_ns: int,
        window_ns: int,
        threshold_ns: int,
        worst: bool,
        expected: bool = False,
    ) -> None:
        self.modules = {model: Module(model, place, load[model]) for place, model in enumerate(models_of(apps))}
        self.waits = waits
        self.branches = Branches(apps)
        self.rest_ns: Dict[Node, int] = {}  # from the end of a node's batch to the end of the request
        self.batches_ns: Dict[Node, int] = {}  # the same, of batch times alone
        self.share: Dict[Node, Tuple[int, int]] = {}  # a node's part of the time along the longest path
        self.due_ns = 0
        self._apps = tuple(apps)
        self._rest = rest
        self._worst = worst
        self._expected = expected
        self._has_hints: Dict[Tuple[Node, Routes], int] = {}
        self._period_ns, self._window_ns, self._threshold_ns = period_ns, window_ns, threshold_ns
        self._paths = paths_behind(apps)

    def begin(self, now_ns: int) -> None:
        """The first period begins."""
        for module in self.modules.values():
            module.bucket_since_ns = now_ns
        self.due_ns = now_ns + self._period_ns
        self.renew()

    def sync(self, now_ns: int) -> None:
        """A period is over: every module publishes, and every node's rest is summed up anew."""
        for module in self.modules.values():
            module.close_period(now_ns, self._period_ns, self._window_ns, self._threshold_ns)
        self.due_ns = now_ns + self._period_ns
        self.renew()

    def renew(self) -> None:
        """Sum up what lies behind each node from what the modules publish now."""
        self._has_hints.clear()
        for app in self._apps:
            for node in reversed(app.nodes):  # successors first
                self.batches_ns[node] = max(
                    [self.batches_ns[succ] + self.modules[succ.model].time_ns for succ in node.succs], default=0
                )
                self.rest_ns[node] = self._rest_of(node)
            self._set_shares(app)

    def rest_of(self, job: Job, extra_ns: Mapping[Node, int] | None = None) -> int:
        """From the end of a job's batch to the end of its request, on the branches that the request declares.
        ``extra_ns`` is how much longer than usual it takes at the nodes behind."""
        node, hints = job.node, job.hints
        routes = self.branches.declared(node, hints) if hints else ()
        if extra_ns:
            return self._rest_of(node, routes, extra_ns)
        if not routes:
            return self.rest_ns[node]
        rest_ns = self._has_hints.get((node, routes))
        if rest_ns is None:
            if len(self._has_hints) >= FORETOLD_MAX:
                self._has_hints.clear()
            rest_ns = self._has_hints[node, routes] = self._rest_of(node, routes)
        return rest_ns

    def _rest_of(self, node: Node, routes: Routes = (), extra_ns: Mapping[Node, int] = NOTHING) -> int:
        if self._rest == "none" or not node.succs:
            return 0
        named = dict(routes)
        if self._paths[node] > PATHS_MAX:
            return self._path_ns(self._longest_path(node, named), extra_ns)
        return self._rest_on((node,), named, extra_ns)

    def _rest_on(self, path: Tuple[Node, ...], named: Mapping[Node, int], extra_ns: Mapping[Node, int]) -> int:
        """The same, of the paths that begin so."""
        succs = _open(path[-1], named)
        if not succs:
            return self._path_ns(path[1:], extra_ns)
        rests_ns = [self._rest_on((*path, succ), named, extra_ns) for succ in succs]
        if self._expected and path[-1].route_one and path[-1] not in named:
            rests_ns.append(self._path_ns(path[1:], extra_ns))  # it may take none of them
            return sum([rest_ns * ppm for rest_ns, ppm in zip(rests_ns, self.branches.shares_ppm(path[-1]))]) // PPM
        return max(rests_ns)

    def _path_ns(self, path: Sequence[Node], extra_ns: Mapping[Node, int]) -> int:
        modules = [self.modules[node.model] for node in path]
        times_ns = [module.time_ns for module in modules]
        total = sum(times_ns)
        if self._rest != "d":
            total += sum([module.queue_ns for module in modules])
        if self._rest == "qdw":
            total += self.waits.quantile_ns([module.model for module in modules], times_ns)
        elif self._rest == "qdd":
            total += sum(times_ns)
        if extra_ns:
            total += sum([extra_ns.get(node, 0) for node in path])
        return total

    def _longest_path(self, node: Node, named: Mapping[Node, int]) -> Tuple[Node, ...]:
        """The path behind a node with the largest sum of queues and batch times. O(nodes) from a node's successors
        up, for graphs with more paths than can be listed."""
        best: Dict[Node, Tuple[int, Tuple[Node, ...]]] = {}

        def behind(at: Node) -> Tuple[int, Tuple[Node, ...]]:
            if at not in best:
                module = self.modules[at.model]
                further = [behind(succ) for succ in _open(at, named)]
                rest = max(further, key=lambda item: item[0]) if further else (0, ())
                best[at] = (rest[0] + module.queue_ns + module.time_ns, (at, *rest[1]))
            return best[at]

        return max([behind(succ) for succ in _open(node, named)], key=lambda item: item[0], default=(0, ()))[1]

    def _set_shares(self, app: App) -> None:
        """Each node's part of the SLO: in proportion to its batch time, or to its worst time in the module."""
        part = {
            node: self.modules[node.model].worst_ns() if self._worst else self.modules[node.model].time_ns
            for node in app.nodes
        }
        upto: Dict[Node, int] = {}
        for node in app.nodes:  # predecessors first
            upto[node] = part[node] + max([upto[pred] for pred in node.preds], default=0)
        longest = max(1, max(upto.values()))
        for node in app.nodes:
            self.share[node] = (part[node], longest)


def models_of(apps: Sequence[App]) -> List[str]:
    """The models of some apps, each once, predecessors first."""
    return list(dict.fromkeys(node.model for app in apps for node in app.nodes))


def paths_behind(apps: Sequence[App]) -> Dict[Node, int]:
    """The number of paths that lead from each node to an end of its graph."""
    count: Dict[Node, int] = {}
    for app in apps:
        for node in reversed(app.nodes):  # successors first
            count[node] = sum([count[succ] for succ in node.succs]) if node.succs else 1
    return count


def _open(node: Node, named: Mapping[Node, int]) -> Sequence[Node]:
    """The successors that may follow a node: all, or the one that is named, or none."""
    if node not in named:
        return node.succs
    return node.succs[named[node] : named[node] + 1] if named[node] >= 0 else ()
