"""``plan`` beside a clairvoyant and the simpler rules, in worlds drawn at random: one device, host functions.

    python research/replicate/pard/worlds.py [--seconds S] [--seeds 1-8] [--families single,host] [--json FILE]

A seed draws one world of each family: a pipeline of one to four models on one device, without and with host functions
(one request at a time, on a lane of their own) at its entry, inside or at its end, and with a fan-out. Times are exact
and the same for all. Each is loaded with 0.9 to 1.5 times what cohorts of half the SLO keep busy, the same arrivals for
every policy. The optimum is a dynamic programme that knows all arrivals (``common/pard_oracle.py``), without the waits
of host functions for each other: with these no policy can quite reach it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # research/

from common import runs
from common.lean_world import LeanWorld, served
from common.pard_oracle import most_in_time
from common.replicated import OURS, checks_of
from lib.checks import Checks, arguments

from edgeserve.sched.latency.split import BestSplit
from edgeserve.sched.protocol.events import JobId, JobResult
from replicate.pard.cases import poisson_ns

LOADS = (0.9, 1.0, 1.2, 1.5)
POLICIES: Mapping[str, Tuple[str, Mapping[str, Any]]] = {
    "plan": ("plan", {}),
    "edf": ("edf", {}),
    "pard": ("pard", {}),
}
OPTIMUM = "optimum"
GRID = 0.3  # points by which a run may beat the optimum, which counts time on a grid
BOUNDS = {False: 1.5, True: 2.5}  # points above the optimum, without and with host functions


class Stage(NamedTuple):
    """One module: a batch of b takes ``fixed + each * b`` us. One on the host takes one job at a time. Each job of the
    stage before becomes ``parts`` jobs here, if more than one; the stage behind the last of these gathers them."""

    on_host: bool
    fixed_us: int
    each_us: int
    limit: int
    parts: int = 1

    def time_ns(self, size: int) -> int:
        """The time of a batch."""
        return (self.fixed_us + self.each_us * size) * 1000


class Pipeline(NamedTuple):
    """A world without its arrivals."""

    family: str
    stages: Sequence[Stage]
    slo_ms: int

    def jobs(self) -> List[int]:
        """Jobs of a request at each stage."""
        return [stage.parts for stage in self.stages]

    def has_host(self) -> bool:
        """True if any stage is a host function."""
        return any(stage.on_host for stage in self.stages)


class Costs:
    """The time of a pipeline's cohorts."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self._splits = [
            BestSplit([(size, stage.time_ns(size)) for size in range(1, stage.limit + 1)]) for stage in stages
        ]

    def device_ns(self, count: int) -> int:
        """Time on the device."""
        return sum(
            split.time_ns(count * stage.parts) for stage, split in zip(self.stages, self._splits) if not stage.on_host
        )

    def host_ns(self, count: int) -> int:
        """Time on the host's lane."""
        return sum(
            split.time_ns(count * stage.parts) for stage, split in zip(self.stages, self._splits) if stage.on_host
        )

    def takes_ns(self, count: int) -> int:
        """A cohort from beginning to end, host functions pipelined with the batches before and behind them, if
        nothing else is served. Those before the first batch are not counted."""
        at_ns = free_ns = 0  # when a stage's last job is there; when the device is free
        first_ns = 0  # when its first job is there
        begun = False
        for stage, split in zip(self.stages, self._splits):
            jobs = count * stage.parts
            if stage.on_host:
                if begun:
                    each_ns = stage.time_ns(1)
                    at_ns = max(at_ns + each_ns, first_ns + jobs * each_ns)
                    first_ns += each_ns
                continue
            begun = True
            batches = [took_ns for _, took_ns in split.batches(jobs)]
            free_ns = max(free_ns + sum(batches), at_ns + batches[-1])
            first_ns = max(first_ns + batches[0], free_ns - sum(batches[1:]))
            at_ns = free_ns
        return at_ns

    def before_ns(self) -> int:
        """The time of host functions before the first batch, for a request alone."""
        total = 0
        for stage in self.stages:
            if not stage.on_host:
                break
            total += stage.time_ns(1) * stage.parts
        return total

    def groups(self, count: int) -> List[Tuple[int, int]]:
        """For each batch of the last module: its first member, and how long before the cohort's end it is over."""
        stage, found, member = self.stages[-1], [], 0
        size = count * stage.parts
        batches = [took_ns for _, took_ns in self._splits[-1].batches(size)]
        left_ns = sum(batches)
        for batch_ns in batches:
            left_ns -= batch_ns
            found.append((member // stage.parts, left_ns))
            taken = self._splits[-1].first(size)
            member, size = member + taken, size - taken
        return found

    def capacity(self, slo_ns: int) -> float:
        """Requests a second in cohorts that take half the SLO at most (of one where none is so short)."""
        best = 0.0
        for count in range(1, 200):
            if count > 1 and self.before_ns() + self.takes_ns(count) > slo_ns // 2:
                break
            best = max(best, count / max(self.device_ns(count), self.host_ns(count), 1))
        return best * 1e9


def draw_pipeline(family: str, seed: int) -> Pipeline:
    """One pipeline of a family. SLOs are three to eight times what a request takes alone."""
    draw = random.Random(f"{family}/{seed}/pipeline")

    def model(parts: int = 1) -> Stage:
        return Stage(
            False,
            draw.randrange(4000, 36_000, 500),
            draw.randrange(1000, 8000, 200),
            draw.choice((4, 8, 8, 16, 32)),
            parts,
        )

    def host() -> Stage:
        return Stage(True, 0, draw.randrange(500, 5000, 100), 1)

    number = 1 if family in ("single", "host") else draw.randrange(2, 5)
    stages = [model() for _ in range(number)]
    if family == "host":
        stages.insert(0, host())
    elif family == "hosts":
        for place in sorted(draw.sample(range(number + 1), draw.choice((1, 1, 2))), reverse=True):
            stages.insert(place, host())
    elif family == "fan":
        stages = [model(), model(draw.randrange(2, 7)), model()]
    costs = Costs(stages)
    device_ns = costs.device_ns(8) / 8
    stages = [
        stage._replace(each_us=min(stage.each_us, int(0.7 * device_ns / 1000))) if stage.on_host else stage
        for stage in stages
    ]  # the device is what most is needed of
    alone_ms = (costs.before_ns() + costs.takes_ns(1)) / 1e6
    return Pipeline(family, stages, round(alone_ms * draw.uniform(3, 8)))


FAMILIES = ("single", "host", "chain", "hosts", "fan")


class FanWorld(LeanWorld):
    """A lean world whose detectors make a fixed number of parts."""

    def __init__(self, *given: Any, parts: Mapping[str, int], **more: Any) -> None:
        super().__init__(*given, **more)
        self._parts = parts

    def result_of(self, job: JobId) -> JobResult:
        """As many parts as the next stage has jobs."""
        return JobResult(job, parts=self._parts[job.node]) if job.node in self._parts else JobResult(job)


class Case(NamedTuple):
    """One run, or one optimum."""

    pipeline: Pipeline
    seed: int
    load: float
    row: str
    arrivals_ns: Sequence[int]


def table_of(pipeline: Pipeline, kind: str, options: Mapping[str, Any]) -> Dict[str, Any]:
    """The configuration: the device's lane, and one for the host functions."""
    models: Dict[str, Any] = {}
    nodes: List[Dict[str, Any]] = []
    fanned = False
    for index, stage in enumerate(pipeline.stages):
        name = f"m{index}"
        models[name] = {
            "engine": "synthetic",
            "lanes": ["host0" if stage.on_host else "gpu0"],
            "batch": list(range(1, stage.limit + 1)),
            "expected": {str(size): f"{stage.time_ns(size) // 1000}us" for size in range(1, stage.limit + 1)},
        }
        node: Dict[str, Any] = {"name": name}
        if index + 1 < len(pipeline.stages) and pipeline.stages[index + 1].parts > 1 and stage.parts == 1:
            node["fan_out"] = True
        if fanned and stage.parts == 1:
            node["gather"] = True
        fanned = stage.parts > 1
        nodes.append(node)
    lanes = {"gpu0": {"hang": "600s"}}
    if pipeline.has_host():
        lanes["host0"] = {"hang": "600s"}
    return {
        "lane": lanes,
        "model": models,
        "policy": {"p": {"kind": kind, **options}},
        "server": {"pending_max": 1_000_000},
        "app": {"app": {"slo": f"{pipeline.slo_ms}ms", "pending_max": 1_000_000, "node": nodes}},
    }


def run(case: Case) -> float:
    """The loss of one policy, or of the optimum, in percent."""
    pipeline, arrivals = case.pipeline, case.arrivals_ns
    if case.row == OPTIMUM:
        return 100 * (1 - optimum(pipeline, arrivals) / len(arrivals))
    parts = {f"m{index}": after.parts for index, after in enumerate(pipeline.stages[1:]) if after.parts > 1}
    return served(table_of(pipeline, *POLICIES[case.row]), arrivals, FanWorld, parts=parts)[0].lost().drop


def optimum(pipeline: Pipeline, arrivals_ns: Sequence[int]) -> int:
    """The most requests in time: by the device, with host functions that cause no wait, or by the host's lane."""
    costs, slo_ns = Costs(pipeline.stages), pipeline.slo_ms * 1_000_000
    before_ns, on_device = costs.before_ns(), Costs(pipeline.stages[: _last_on_device(pipeline) + 1])
    after_ns = costs.takes_ns(1) - on_device.takes_ns(1)
    ready = [at_ns + before_ns for at_ns in arrivals_ns]
    best = most_in_time(
        ready, slo_ns - before_ns - after_ns, costs.device_ns, 1_000_000, on_device.takes_ns, on_device.groups
    )
    if costs.host_ns(1):
        best = min(
            best,
            most_in_time(
                arrivals_ns, slo_ns, lambda count: costs.host_ns(count) if count == 1 else slo_ns + 1, 1_000_000 // 4
            ),
        )
    return best


def _last_on_device(pipeline: Pipeline) -> int:
    return max(index for index, stage in enumerate(pipeline.stages) if not stage.on_host)


def cases_of(families: Sequence[str], seeds: Sequence[int], seconds: int, rows: Sequence[str]) -> List[Case]:
    """Every run."""
    found: List[Case] = []
    for family in families:
        for seed in seeds:
            pipeline = draw_pipeline(family, seed)
            capacity = Costs(pipeline.stages).capacity(pipeline.slo_ms * 1_000_000)
            for load in LOADS:
                arrivals = poisson_ns([load * capacity] * seconds, seed)
                found += [Case(pipeline, seed, load, row, arrivals) for row in rows]
    return found


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="of arrivals per world and load")
    parser.add_argument("--seeds", default="101-108", help="of the worlds and their arrivals: FIRST-LAST")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--rows", default=",".join(POLICIES))
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    first, last = args.seeds.split("-")
    seeds, families = range(int(first), int(last) + 1), args.families.split(",")
    rows = args.rows.split(",")
    lost: Dict[Tuple[str, int], Dict[str, Dict[float, float]]] = {}
    for case, value in runs.done(run, cases_of(families, seeds, args.seconds, [OPTIMUM, *rows]), args.processes):
        lost.setdefault((case.pipeline.family, case.seed), {}).setdefault(case.row, {})[case.load] = value
    for family, seed in sorted(lost, key=lambda key: (families.index(key[0]), key[1])):
        pipeline = draw_pipeline(family, seed)
        print(
            f"\n{family} {seed}, SLO {pipeline.slo_ms} ms: "
            + ", ".join(
                f"{'host' if stage.on_host else 'device'} {stage.fixed_us / 1000:g} + {stage.each_us / 1000:g}b"
                f"{f' x{stage.parts}' if stage.parts > 1 else ''}{'' if stage.on_host else f' to {stage.limit}'}"
                for stage in pipeline.stages
            )
        )
        for row, values in lost[family, seed].items():
            print(f"  {row:12}" + "".join(f"{values[load]:7.1f}" for load in LOADS), flush=True)
    checks = checks_of("research/replicate/pard/worlds.py", False)
    for family in families:
        judge(family, {seed: rows for (name, seed), rows in lost.items() if name == family}, rows, checks)
    return checks.finish(
        args.json,
        {"seconds": args.seconds, "seeds": args.seeds},
        lost={f"{family} {seed}": rows for (family, seed), rows in lost.items()},
    )


def judge(
    family: str, lost: Mapping[int, Mapping[str, Mapping[float, float]]], rows: Sequence[str], checks: Checks
) -> None:
    """One family: how far from the optimum, and from the best of the simpler rules."""
    cells = [(seed, load) for seed in lost for load in LOADS]
    above = sorted(lost[seed]["plan"][load] - lost[seed][OPTIMUM][load] for seed, load in cells)
    bound = BOUNDS["host" in family]
    checks.between(f"{family}: points above the optimum, mean", sum(above) / len(above), -GRID, bound)
    checks.between(f"{family}: ... worst", above[-1], -GRID, bound)
    others = [row for row in rows if row != "plan"]
    if others:
        behind = [lost[seed]["plan"][load] - min(lost[seed][row][load] for row in others) for seed, load in cells]
        checks.at_most(f"{family}: points behind the best simpler rule, worst", max(behind), 1.0, OURS)


if __name__ == "__main__":
    sys.exit(main())
