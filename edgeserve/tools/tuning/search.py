"""The search: every policy for all apps, then options of the best ones, then policies app by app, greedily.

Candidates meet the same requests with the same seeds. What is found is only a proposal: it was chosen on the part that
chooses, and has to show its gain on the other part (``verdict``).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError, PolicyError, ProfileError
from edgeserve.sim.reference_model import ReferenceModelError
from edgeserve.sim.world import SimError
from edgeserve.tools.tuning.candidates import (
    Candidate,
    PolicyChoice,
    choice_of,
    everywhere,
    for_app,
    make,
    title,
    todays,
    variants,
)
from edgeserve.tools.tuning.subjects import Subject
from edgeserve.tools.tuning.verdict import Tally, apps_of, offered, score

KINDS_REFINED = 3
"""Kinds whose options are tried: the best ones with the options that they begin with."""

BETTER_MIN = 0.001
"""A candidate replaces a simpler one only if it is better by this share: a tenth of a point."""

APPS_MAX = 12
"""Apps that may get a policy of their own: those with the most requests that were not in time."""


class TriedCandidate(NamedTuple):
    """A candidate on the part that chooses: its score at each load, or why it could not run."""

    candidate: Candidate
    scores: Tuple[float, ...]
    failed: str = ""

    @property
    def mean(self) -> float:
        """Over the loads; below every other where it failed."""
        return sum(self.scores) / len(self.scores) if self.scores else -1.0


class SearchResult(NamedTuple):
    """What the search found: today's configuration, the best over all loads, the best at each load, and all that was
    tried, the best first."""

    today: Candidate
    best: Candidate
    best_at: Dict[float, Candidate]
    tried: List[TriedCandidate]


class Search:
    """One search from a configuration, ``edge`` as a table; ``on_trial`` is told of each new candidate."""

    def __init__(
        self,
        subject: Subject,
        config: Config,
        edge: Mapping[str, Any],
        loads: Sequence[float],
        goal: str,
        on_trial: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._subject = subject
        self._config = config
        self._edge = edge
        self._loads = tuple(loads)
        self._goal = goal
        self._on_trial = on_trial
        self._tried: Dict[str, TriedCandidate] = {}
        self._tallies: Dict[str, Tally] = {}

    def run(self, kinds: Sequence[str]) -> SearchResult:
        """Search among these kinds of policies, and what is configured today."""
        today = todays(self._config)
        best = self._try(today)
        if best.failed:
            raise ConfigError(f"{self._config.source} cannot be simulated as it is: {best.failed}")
        refined = self._refine(today, self._kinds(today, kinds))
        for tried in refined:
            best = self._better(tried, best)
        best = self._by_app(best, [tried.candidate[0][1] for tried in refined])
        tried_all = sorted(self._tried.values(), key=lambda item: -item.mean)
        return SearchResult(
            today,
            best.candidate,
            {load: self._best_at(index, best) for index, load in enumerate(self._loads)},
            tried_all,
        )

    def _kinds(self, today: Candidate, kinds: Sequence[str]) -> List[TriedCandidate]:
        """Each kind for all apps, the best first; those of today with their options of today."""
        begins = {choice.kind: choice for _, choice in reversed(today)}
        starts = [begins[kind] for kind in dict.fromkeys(choice.kind for _, choice in today)]
        starts += [choice_of(kind, {}) for kind in kinds if choice_of(kind, {}) not in starts]
        found = [self._try(everywhere(today, choice)) for choice in starts]
        return sorted((item for item in found if not item.failed), key=lambda item: -item.mean)

    def _refine(self, today: Candidate, kinds: Sequence[TriedCandidate]) -> List[TriedCandidate]:
        """The best kinds, each with its options changed one after the other where that helps."""
        found: List[TriedCandidate] = []
        for best in kinds:
            if best.candidate[0][1].kind in {item.candidate[0][1].kind for item in found}:
                continue
            if len(found) == KINDS_REFINED:
                break
            choice = best.candidate[0][1]
            for name, values in variants(choice, self._config):
                for value in values:
                    now = best.candidate[0][1]
                    best = self._better(self._try(everywhere(today, now.with_option(name, value))), best)
            found.append(best)
        return sorted(found, key=lambda item: -item.mean)

    def _by_app(self, best: TriedCandidate, choices: Sequence[PolicyChoice]) -> TriedCandidate:
        """Another policy for one app after the other, the app with the most requests out of time first."""
        apps = self._worst_apps(best.candidate)
        if len(apps) < 2:
            return best
        given = [choice for _, choice in todays(self._config)]
        known = {str(choice): choice for choice in [*choices, *given]}
        for app in apps:
            for choice in known.values():
                if dict(best.candidate)[app] != choice:
                    best = self._better(self._try(for_app(best.candidate, app, choice)), best)
        return best

    def _worst_apps(self, candidate: Candidate) -> List[str]:
        tally = self._tallies[repr(candidate)]
        lost = {app: offered(tally, app) * (1.0 - score(tally, "finish", app)) for app in apps_of(self._config, tally)}
        return sorted(lost, key=lambda app: (-lost[app], app))[:APPS_MAX]

    def _best_at(self, index: int, best: TriedCandidate) -> Candidate:
        """The best at one load; the overall best where none is better by more than chance may do."""
        found = best
        for item in self._tried.values():
            if not item.failed and item.scores[index] > found.scores[index] + BETTER_MIN:
                found = item
        return found.candidate

    def _better(self, new: TriedCandidate, old: TriedCandidate) -> TriedCandidate:
        return new if not new.failed and new.mean > old.mean + BETTER_MIN else old

    def _try(self, candidate: Candidate) -> TriedCandidate:
        key = repr(candidate)
        if key not in self._tried:
            self._on_trial(title(candidate))
            self._tried[key] = self._simulated(key, candidate)
        return self._tried[key]

    def _simulated(self, key: str, candidate: Candidate) -> TriedCandidate:
        try:
            made = make(candidate, self._edge, self._config)
            tallies = [self._subject.choosing(made, load) for load in self._loads]
        except (ConfigError, ProfileError, PolicyError, SimError, ReferenceModelError) as error:
            return TriedCandidate(candidate, (), str(error) or type(error).__name__)
        self._tallies[key] = tallies[-1]
        return TriedCandidate(candidate, tuple(score(tally, self._goal) for tally in tallies))
