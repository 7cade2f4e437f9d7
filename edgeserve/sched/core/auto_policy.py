"""Which policy an app gets that names none: the right one by what the app is (``docs/guide/policies/README.md``), and
another one where its model's times turn out to depend on the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Collection, Dict, List, Mapping, Sequence, Tuple

from edgeserve.config.profiles import Profile
from edgeserve.config.schema import AUTO, AppConfig, Config, PolicyConfig
from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api.policy import Policy
from edgeserve.sched.requests.graph import App

PLAIN, DYNAMIC = "edf", "orloj+"
"""The kinds of policies for an app of one model: until its times are known to depend on the inputs, and from then on.
"""

LEARNT = "batches of {} showed that its times depend on the input"
SPREAD = 1.5
"""Times of one app's inputs alone depend on the input where the 90th percentile is so many times the 10th."""


def resolved(
    config: Config,
    sequences: Collection[str],
    lanes_of: Mapping[str, Collection[str]],
    dynamic: Mapping[str, str] | None = None,
) -> Tuple[Config, Dict[str, str]]:
    """The configuration with a policy for every app, and why, by app, where it was chosen here.

    ``sequences`` are the models whose items are sequences, ``lanes_of`` the lanes that each model may run on,
    ``dynamic`` the models whose times depend on the inputs, with what says so. Apps that get policies of one kind share
    one, which has default options and is named after its kind, or ``auto-KIND`` where the file has a policy of that
    name.
    """
    default = next(iter(config.policies))
    policies = {name: policy for name, policy in config.policies.items() if policy.kind != AUTO}
    apps: Dict[str, AppConfig] = {}
    reasons: Dict[str, str] = {}
    names: Dict[str, str] = {}
    for app in config.apps.values():
        name = app.policy or default
        if config.policies[name].kind == AUTO:
            kind, reasons[app.name] = chosen(app, sequences, lanes_of, dynamic or {})
            if kind not in names:
                names[kind] = free_name(kind, policies)
                policies[names[kind]] = PolicyConfig(names[kind], kind)
            name = names[kind]
        apps[app.name] = replace(app, policy=name)
    return replace(config, policies=policies, apps=apps), reasons


def free_name(kind: str, taken: Collection[str]) -> str:
    """The name of a policy that was chosen here: its kind, unless a policy of the file has that name."""
    while kind in taken:
        kind = f"auto-{kind}"
    return kind


def chosen(
    app: AppConfig, sequences: Collection[str], lanes_of: Mapping[str, Collection[str]], dynamic: Mapping[str, str]
) -> Tuple[str, str]:
    """The kind of policy for an app, and why."""
    models = [node.model or node.name for node in app.nodes]
    language = [model for model in models if model in sequences]
    if language:
        return "rtlm+", f"{language[0]} is a language model"
    if app.ensemble_profile is not None:
        return "schemble+", "it is an ensemble whose profile is known"
    different = list(dict.fromkeys(models))
    for index, model in enumerate(different):
        for other in different[:index]:
            shared = [lane for lane in lanes_of[model] if lane in lanes_of[other]]
            if shared:
                return "pard_local", f"its models {other} and {model} share lane {shared[0]}"
    if len(models) == 1 and models[0] in dynamic:
        return DYNAMIC, dynamic[models[0]]
    return PLAIN, "its models share no lane with each other" if len(different) > 1 else "it is one model"


def dynamic_models(profiles: Sequence[Profile], learnt: Collection[str] = ()) -> Dict[str, str]:
    """The models whose times depend on the inputs, and what says so: times alone in a profile, or ``learnt``."""
    found = {model: LEARNT.format(model) for model in learnt}
    for profile in profiles:
        for lane in profile.lanes.values():
            for times in lane.alone.values():
                if times[len(times) * 9 // 10] > SPREAD * times[len(times) // 10]:
                    found[profile.model] = f"the profile of {profile.model} says that its times depend on the input"
    return found


class LearntChoice:
    """Moves the apps of one model to :data:`DYNAMIC` once its batches have shown that times depend on the inputs. Open
    requests go with their app: those that wait stand in the new policy's queue, those that run come back to it.

    ``apps`` are those whose policy was chosen here as :data:`PLAIN`, ``make`` makes the other policy for them.
    """

    def __init__(self, apps: Sequence[App], make: Callable[[Sequence[App]], Policy]) -> None:
        self._by_model: Dict[str, List[App]] = {}
        for app in apps:
            if app.simple:
                self._by_model.setdefault(app.nodes[0].model, []).append(app)
        self._make = make
        self._policy: Policy | None = None

    def look(self, state: State) -> bool:
        """Move what is to move; whether anything did. O(lanes), and O(open requests) where a model is found."""
        if not any(latency.inputs_differ for model in self._by_model for latency in state.latencies_of[model]):
            return False
        for request in state.requests.values():
            for job in request.jobs.values():
                if job.steps or job.steps_total > 1:  # an iterative model: what differs is the number of steps
                    self._by_model.pop(job.node.model, None)
        found = [
            model for model in self._by_model if any(latency.inputs_differ for latency in state.latencies_of[model])
        ]
        for model in found:
            if self._policy is None:
                self._policy = self._make([app for apps in self._by_model.values() for app in apps])
                state.policies = (*state.policies, self._policy)
            for app in self._by_model.pop(model):
                self._move(app, self._policy, LEARNT.format(model), state)
        return bool(found)

    def _move(self, app: App, policy: Policy, reason: str, state: State) -> None:
        before, board = state.policy_of[app.name], state.board
        state.policy_of[app.name] = policy
        app.policy, app.policy_reason = policy.name, reason
        for request in state.requests.values():
            if request.app is not app or request.policy is not before:
                continue
            request.policy = policy
            request.note(board.now_ns, "goes from policy", before.name, "to", policy.name, "-", reason)
            for job in list(request.jobs.values()):
                if job.queued:
                    before.on_gone(job, board)
                    policy.on_ready(job, board)
