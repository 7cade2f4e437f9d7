"""Probes: jobs that are run again alone, for what that teaches, when it delays nobody.

The world keeps the inputs of the jobs that a policy asks for (``RetainInputs``), whatever becomes of their requests.
Each is taken by one batch with ``probe`` or let go of (``ReleaseInputs``), never both. A probe has no job in the sense
of ``sched/requests/states.py``: nothing waits for it and nothing moves when the lane answers.

Which jobs are worth it is the policy's business (``sched/policies/dynamic/sampler.py``); that no probe delays real work
is kept here, for every policy. Knows no policy by name and no lane's thread."""

from __future__ import annotations

from typing import Callable, Sequence

from edgeserve.errors import PolicyError
from edgeserve.sched.core.slack import Slack
from edgeserve.sched.core.state import State
from edgeserve.sched.policy_api.board import ProbeMoves
from edgeserve.sched.policy_api.policy import Bid
from edgeserve.sched.protocol.actions import Action, EvictModel, ReleaseInputs, RetainInputs
from edgeserve.sched.requests.states import READY, Job
from edgeserve.sched.resources.lanes import Lane
from edgeserve.sched.resources.model_cache import RESIDENT


class Probes(ProbeMoves):
    """Which inputs the world keeps (``state.retained``), and when a probe may start."""

    def __init__(self, state: State, slack: Slack) -> None:
        self._state = state
        self._slack = slack
        self._retained = state.retained

    # --- what is retained ---------------------------------------------------------------------------------------------

    def retain(self, job: Job) -> bool:
        """Keep a ready job's inputs. False while draining: what nobody waits for is not begun any more."""
        request = job.request
        if job.state != READY or job.steps or request.stream is not None or job.seq in self._retained:
            raise PolicyError(
                f"retain({job!r}): the job must be ready, not retained yet, and have neither a stream's "
                "state nor steps behind it\n" + "\n".join(request.story())
            )
        if job.node.model in self._state.sequences.models:
            return False
        if self._state.draining:
            return False
        self._retained[job.seq] = job
        self._state.actions.append(RetainInputs(job.id))
        return True

    def release(self, job: Job) -> None:
        """No probe of this job will be run."""
        if self._retained.pop(job.seq, None) is None:
            raise PolicyError(f"release({job!r}): it is not retained\n" + "\n".join(job.request.story()))
        self._state.actions.append(ReleaseInputs(job.id))

    def take(self, job: Job) -> None:
        """A probe of it was launched; the batch takes the inputs."""
        del self._retained[job.seq]

    def release_all(self) -> None:
        """The server drains."""
        for job in list(self._retained.values()):
            self.release(job)

    def release_stranded(self, can_run: Callable[[str], bool]) -> None:
        """Lanes were lost: inputs that none can run are not retained in the hope of their return."""
        for job in list(self._retained.values()):
            if not can_run(job.node.model):
                self.release(job)

    def release_evicted(self, actions: Sequence[Action]) -> None:
        """Models left the memory: a probe is no reason to load one again, so inputs that only these could run go."""
        gone = {action.model for action in actions if type(action) is EvictModel}
        for job in list(self._retained.values()):
            model = job.node.model
            if model in gone and all(item.state != RESIDENT for item in self._state.memory.placements[model]):
                self.release(job)

    # --- when a probe may start ---------------------------------------------------------------------------------------

    def illegal(self, bid: Bid, lane: Lane) -> str:
        """Why a bid is no probe, or ``""``. That its model is resident on the lane's device was looked at before."""
        smallest = self._state.latency[bid.model, lane.name].sizes[0]
        if len(bid.jobs) != 1 or bid.size != smallest or bid.drops or bid.steps_max is not None:
            return f"a probe runs one job in the smallest size, {smallest}, and drops nobody"
        job = bid.jobs[0]
        if self._retained.get(job.seq) is not job or job.node.model != bid.model:
            return f"the inputs of {job!r} are not retained for model {bid.model!r}"
        if self._state.policy_of[job.request.app.name] is not bid.policy:
            return f"{job!r} is not this policy's"
        return ""

    def fits(self, model: str, lane: Lane) -> bool:
        """Whether a request that arrives just after a probe started could still be answered by its app's deadline,
        for every app that uses the lane: the probe as slow as planning assumes, then the request alone."""
        return self._slack.spares_arrivals(lane, self._state.latency[model, lane.name].alone_ns)

    def may_start(self, bid: Bid, lane: Lane, now_ns: int) -> bool:
        """Whether a probe on this lane now delays nobody: nothing is on the lane, no ready job could run on it (also
        one that its policy holds back), and both who may arrive and who is open would be in time after it."""
        if lane.works or not self.fits(bid.model, lane):
            return False
        return self._slack.spares_open(lane, now_ns + self._state.latency[bid.model, lane.name].alone_ns)
