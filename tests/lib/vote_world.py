"""Ensembles of three models and a vote, each on a lane of its own, under a policy: a world that tests drive by hand."""

from __future__ import annotations

from hand_world import Driver

from edgeserve.sched.protocol.actions import FinishRequest, LoadModel

LANES = {"la": {}, "lb": {}, "lc": {}, "lv": {}}
TIMES = {"a": 40, "b": 75, "c": 85}
EASY = [0, 0.99, 0.99, 0.995, 0.99, 0.995, 0.995, 1]
HARD = [0, 0.6, 0.7, 0.85, 0.65, 0.8, 0.85, 1]
FITTED = {"models": ["a", "b", "c"], "edges": [0.5], "agreement": [EASY, HARD]}
NODES = [
    {"name": "a", "after": []},
    {"name": "b", "after": []},
    {"name": "c", "after": []},
    {"name": "vote", "after": ["a", "b", "c"], "join": "policy"},
]
BESIDE = [
    *NODES[:3],
    {"name": "score", "after": []},
    {"name": "vote", "after": ["a", "b", "c", "score"], "join": "policy"},
]
BEFORE = [
    {"name": "score", "after": []},
    *[{"name": name, "after": ["score"]} for name in "abc"],
    NODES[3],
]


def make(
    kind="plan",
    options=None,
    fitted=FITTED,
    shared=False,
    nodes=NODES,
    models=None,
    resident=None,
    batches=None,
    more=None,
    **app,
):
    lanes = {"a": "la", "b": "la" if shared else "lb", "c": "la" if shared else "lc"}
    table = {
        name: {**{size: round(time * each) for size, each in (batches or {1: 1}).items()}, "lanes": [lanes[name]]}
        for name, time in TIMES.items()
    }
    for name in table:
        table[name].update(models or {})
    table.update(vote={1: 1, "lanes": ["lv"]}, score={1: 5, "lanes": ["lv"]})
    apps = {"q": {"node": nodes, "slo": "150ms", **({"ensemble": fitted} if fitted else {}), **app}}
    if more:
        table["other"] = {1: 20, "lanes": ["la"]}
        apps["other"] = {"model": "other", "slo": "60ms", **more}
    device = {"device": {"cpu": {"memory": "200MB"}}} if models else {}
    return Driver(table, apps, policy={kind: options or {}}, lane=LANES, resident=resident, **device)


def models_of(actions):
    return sorted(action.model for action in actions if hasattr(action, "model") and not isinstance(action, LoadModel))


def answer_of(world):
    return world.of(FinishRequest)[0]


def serve(world, until=250):
    """Let every work take its time, until nothing runs."""
    while world.on_lane:
        work = min(world.on_lane.values(), key=lambda item: world.given_ms[item.work_id] + TIMES.get(item.model, 1))
        at = max(world.now_ms, world.given_ms[work.work_id] + TIMES.get(work.model, 1))
        world.pass_time(at)
        world.finish(work.lane, at=at)
    world.pass_time(until)
