"""Break the scheduler one line at a time: the tests must notice each (``make plant-bugs``).

Works on a temporary copy of the package and its tests, never on the working tree. Each bug names the tests that should
notice it; those run against the copy, and a bug that all of them let through is reported as MISSED. Add the line
whenever a real bug got through.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import List, NamedTuple, Sequence, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS_MAX = 90
"""A bug that makes the tests run longer than this is noticed: they hang."""
PARALLEL = 2

UNIT = "tests/unit/test_{}.py"
SCHEDULER = UNIT.format("scheduler")
GOLDEN = "tests/golden"
LOCAL, LOCAL_GUARDS = UNIT.format("policy_pard_local"), UNIT.format("pard_local_guards")


class Bug(NamedTuple):
    """One planted bug: ``old`` stands exactly once in ``edgeserve/sched/<file>`` and becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: Tuple[str, ...] = (SCHEDULER,)


def unit(*names: str) -> Tuple[str, ...]:
    """The unit tests of these names."""
    return tuple(UNIT.format(name) for name in names)


BUGS: Tuple[Bug, ...] = (
    # --- the tables and what happens by them
    Bug("ended-request-can-be-dropped", "lifecycle.py", '(OPEN, "complete"): COMPLETED,',
        '(OPEN, "complete"): COMPLETED,\n    (COMPLETED, "drop"): DROPPED,', unit("lifecycle")),
    Bug("orphan-becomes-done", "lifecycle.py", '(ORPHAN, "finish"): GONE,', '(ORPHAN, "finish"): DONE,',
        unit("lifecycle")),
    Bug("illegal-moves-are-ignored", "lifecycle.py", 'raise PolicyError(f"{job!r} cannot {what}\\n"',
        'return\n        raise PolicyError(f"{job!r} cannot {what}\\n"', unit("lifecycle")),
    Bug("failed-part-is-forgotten", "life.py", "move_job(job, \"fail\")\n        del request.jobs[job.seq]",
        "move_job(job, \"fail\")"),
    Bug("useless-parts-still-run", "life.py", "if progress.is_useless(request, job):", "if False:"),
    Bug("all-branches-failed-is-completed", "life.py", "if request.failure and not request.done_exits:", "if False:",
        (GOLDEN,)),
    Bug("partial-is-dropped-whole", "life.py", "if request.on_late == PARTIAL and progress.feeds_joins(job):",
        "if False:"),
    Bug("cancelled-request-frees-no-place", "life.py", "        self.admission[request.app.name].leave(request)\n", ""),
    Bug("queue-time-counts-from-arrival", "life.py", "spent[0] + work.launched_ns - job.ready_ns - load_ns",
        "spent[0] + work.launched_ns - request.arrival_ns - load_ns"),
    Bug("displaced-for-nothing", "life.py", "            displaced = admission.to_displace(facts.client)\n",
        "            displaced = admission.to_displace(facts.client)\n"
        "            if displaced is not None:\n                self.end(displaced, \"drop\", OVER_SHARE)\n"),
    Bug("draining-accepts", "life.py", "        if self.draining:", "        if False:"),
    # --- expiry
    Bug("expiry-waits-one-deadline-more", "life.py", "self._set_timer(request.deadline_ns, request)",
        "self._set_timer(2 * request.deadline_ns, request)"),
    Bug("running-request-expires", "life.py",
        "elif request.state == HELD or any(job.state == READY for job in request.jobs.values()):", "else:"),
    Bug("returned-work-goes-on-after-its-deadline", "life.py",
        "if request.deadline_ns > self.now_ns or request.on_late == \"answer\" or request.ended:", "if True:"),
    Bug("late-answers-expire", "life.py", 'if request.on_late != "answer":\n            self._set_timer', "if True:\n"
        "            self._set_timer"),
    # --- graphs
    Bug("join-fires-one-token-early", "progress.py", "if row[0] == expected or", "if row[0] >= expected - 1 or",
        unit("progress")),
    Bug("join-fires-again", "progress.py", "    if row[2]:\n        return\n", "", unit("progress")),
    Bug("route-takes-every-branch", "progress.py", "not (node.route_one and succ.name != result.route)", "True",
        unit("progress")),
    Bug("no-parts-no-gather", "progress.py", "    if count == 0:", "    if False:", unit("progress")),
    Bug("parts-unbounded", "progress.py", "if result.parts > node.parts_max:", "if False:", unit("progress")),
    Bug("nested-parts-mixed-up", "progress.py", "part + (index,), True, ready)", "(index,), True, ready)",
        unit("progress")),
    Bug("cycles-accepted-in-scopes", "apps.py", "if any(scope is not scopes[0] for scope in scopes):", "if False:",
        unit("apps")),
    # --- the queue
    Bug("equal-keys-in-any-order", "jobqueue.py", "row = (key, job.seq, job)\n        rows",
        "row = (key, -job.seq, job)\n        rows", unit("jobqueue")),
    Bug("append-without-looking", "jobqueue.py", "if not rows or rows[-1] < row:", "if not rows or rows[0] < row:",
        unit("jobqueue")),
    Bug("position-counts-equal-keys", "jobqueue.py", "return bisect_left(self.rows, (key,))",
        "return bisect_left(self.rows, (key + 1,))", unit("jobqueue")),
    # --- lanes and hangs
    Bug("lane-takes-a-second-work", "lanes.py", "if not works:\n            return True", "return True",
        unit("lanes")),
    Bug("lane-behind-is-sent-more", "lanes.py", "and now_ns - self.head_due_ns <= BEHIND_NS_MAX)", ")", unit("lanes")),
    Bug("free-at-ignores-the-queue", "lanes.py", "self.free_at_ns = ends", "self.free_at_ns = now_ns", unit("lanes")),
    Bug("hang-unnoticed", "scheduler.py", "if hangs is None or hangs > self.now_ns:", "if True:"),
    Bug("hang-fails-the-inbox-too", "scheduler.py", "self._lose(work, running=index == 0, forget=False,",
        "self._lose(work, running=True, forget=False,"),
    Bug("lost-lane-fails-its-inbox", "scheduler.py", "self._lose(work, running=index == 0,\n",
        "self._lose(work, running=True,\n"),
    Bug("hung-lane-is-never-trusted-again", "lanes.py", "        if head:\n            self.hung = False",
        "        if head:", unit("lanes", "scheduler")),
    Bug("speed-is-ignored", "scheduler.py", "self.latency[model, lane.name].set_speed(event.speed)", "pass"),
    Bug("window-outlives-the-hang-bound", "scheduler.py", "min(bid.start_before_ns, patience_ns)",
        "bid.start_before_ns"),
    # --- latency
    Bug("estimate-is-the-last", "latency.py", "self._scaled(max([duration", "self._scaled(min([duration",
        unit("latency")),
    Bug("nothing-is-learnt", "scheduler.py",
        "            self.latency[work.model, lane.name].observe(", "            (lambda *_: None)(",
        unit("policy_clockwork")),
    Bug("failures-teach", "scheduler.py", "if not failed:\n", "if True:\n"),
    Bug("speed-scales-the-wrong-way", "latency.py", "math.ceil(duration_ns * self._speed)",
        "math.ceil(duration_ns / self._speed)", unit("latency")),
    Bug("nothing-is-forgotten", "latency.py", "if now_ns - self._oldest_ns <= self.age_ns:", "if True:",
        unit("latency")),
    Bug("maximum-is-the-sum-of-shares", "latency.py", "math.prod(part.p_by(time) for part in parts)",
        "min(part.p_by(time) for part in parts)", unit("latency")),
    # --- memory
    Bug("evicts-what-works", "residency.py", "and placement.in_flight == 0\n", "\n", unit("residency")),
    Bug("evicts-what-is-pinned", "residency.py", "and not placement.pinned", "", unit("residency")),
    Bug("evicts-the-most-recent", "residency.py", "for item in idle + less:", "for item in idle[::-1] + less:",
        unit("residency")),
    Bug("failed-load-keeps-its-memory", "residency.py",
        "placement.retry_at_ns = now_ns + LOAD_RETRY_NS\n            self._count(-placement.bytes)",
        "placement.retry_at_ns = now_ns + LOAD_RETRY_NS", unit("residency")),
    Bug("demand-is-never-taken-back", "memory.py", "placement.demand_ns -= job.demand_ns", "pass"),
    Bug("load-never-tried-again", "memory.py", "if item.failures and item.demand_ns and item.retry_at_ns > now_ns",
        "if False"),
    Bug("load-ignores-the-budget", "residency.py", "missing = newcomer.bytes - self.free_now_bytes()", "missing = 0",
        unit("residency")),
    Bug("others-serve-what-is-bound", "residency.py", " - placement.bound_ns", "", unit("bound_memory")),
    Bug("evicts-what-could-not-return", "residency.py", " and self._could_return(item)]", "]", unit("bound_memory")),
    Bug("bound-job-hopes-for-another-device", "memory.py", "for item in self._places(job))",
        "for item in self.placements[job.node.model])", unit("bound_memory")),
    Bug("bound-job-hopes-for-another-lane", "scheduler.py", "(self.lanes[only],) if only else", "",
        unit("bound_memory")),
    # --- admission and streams
    Bug("oldest-is-displaced", "admission.py", "return waiting[-1] if waiting else None",
        "return waiting[0] if waiting else None", unit("admission")),
    Bug("weights-are-ignored", "admission.py", "        return len(self.clients.get(client, ())) / ",
        "        return len(self.clients.get(client, ())) or ", unit("admission")),
    Bug("full-is-one-too-late", "life.py", "if admission.pending >= app.pending_max:",
        "if admission.pending > app.pending_max:"),
    Bug("stream-runs-two-at-once", "streams.py", "if stream.active is None:\n            stream.active = request",
        "if True:\n            stream.active = request", unit("streams")),
    Bug("superseded-though-begun", "streams.py", "active.running == 0 and active.spent.execute_ns == 0",
        "active.spent.execute_ns == 0", unit("streams")),
    Bug("state-is-kept-for-ever", "streams.py", "if self.due_ns is None or self.due_ns > now_ns:", "if True:",
        unit("streams")),
    Bug("moved-state-counts-twice", "streams.py", "if node in stream.device:", "if False:", unit("streams")),
    Bug("cancelled-stream-goes-on-at-once", "life.py",
        "if request.stream is not None and request.running == 0 and request.app.stream != \"none\":",
        "if request.stream is not None and request.app.stream != \"none\":"),
    # --- policies
    Bug("edf-cuts-to-the-tightest", "policies/edf.py", "jobs += take(queue, lane, queue.position(ends_ns),",
        "jobs += take(queue, lane, 0,", unit("policy_edf")),
    Bug("edf-takes-the-largest", "policies/edf.py", "left, times_ns), count / took_ns, size)",
        "left, times_ns) * took_ns, count, size)", unit("policy_edf")),
    Bug("edf-forgets-critical", "policies/edf.py", "    fewest = min(", "    fewest = max(", unit("policy_edf")),
    Bug("edf-does-not-look-further", "policies/edf.py", "    if left <= 0:", "    if True:", unit("policy_edf")),
    Bug("edf-keeps-the-hopeless", "policies/edf.py", "board.give_up(job, CANNOT_MAKE_DEADLINE)", "break",
        unit("policy_edf")),
    Bug("clockwork-takes-the-smallest", "policies/clockwork.py", "for size in reversed(latency.sizes):",
        "for size in latency.sizes:", unit("policy_clockwork")),
    Bug("clockwork-any-model-first", "policies/clockwork.py", "if best is None or candidate < best:",
        "if best is None:", unit("policy_clockwork")),
    Bug("clockwork-keeps-the-overtaken", "policies/clockwork.py", "for job in queue.slice(0, first) if droppable(job)]",
        "for job in queue.slice(0, 0) if droppable(job)]", unit("policy_clockwork")),
    Bug("clockwork-window-from-now", "policies/clockwork.py",
        "before_ns = lane.available_ns(board.now_ns) + self._window_ns", "before_ns = board.now_ns + self._window_ns",
        unit("policy_clockwork")),
    Bug("clockwork-stays-down-after-a-hiccup", "policies/clockwork.py", "self._trying[model] = WINDOW_LEN", "pass",
        unit("policy_clockwork")),
    Bug("clockwork-tries-a-slow-model-for-ever", "policies/clockwork.py",
        "or finished_ns > min([job.deadline_ns for job in work.jobs])", "", unit("policy_clockwork")),
    Bug("clockwork-retries-the-refused", "policies/clockwork.py", "board.drop(job.request, WINDOW_MISSED)", "pass",
        unit("policy_clockwork")),
    Bug("fifo-starts-with-the-newest", "policies/inorder.py",
        "(head.ready_ns, head.seq) < (oldest.ready_ns, oldest.seq)",
        "(head.ready_ns, head.seq) > (oldest.ready_ns, oldest.seq)", unit("policy_fifo")),
    Bug("clipper-never-backs-off", "policies/clipper.py", "if finished_ns - started_ns <= slo_ns:", "if True:",
        unit("policy_baselines")),
    Bug("nexus-plans-one-batch-per-slo", "policies/nexus.py", "FITS = 2", "FITS = 1", unit("policy_baselines")),
    Bug("nexus-drops-what-is-in-time", "policies/nexus.py", "if job.deadline_ns >= ends_ns or", "if False or",
        unit("policy_baselines")),
    Bug("worth-ignores-the-rest", "parts.py", "Worth(jobs, expected_ns + rest_ns)", "Worth(jobs, expected_ns)",
        unit("parts")),
    Bug("parts-count-many-times", "parts.py", "            if job.part:", "            if False:", unit("parts")),
    Bug("other-lanes-state-is-taken", "parts.py", "if not job.lane or job.lane == name:", "if True:", unit("parts")),
    Bug("refusal-forgets-the-pipeline", "parts.py", "if ends_ns + board.rest_ns(request.app, node) > ",
        "if ends_ns > "),
    # --- the auction
    Bug("exchange-turned-round", "arbiter.py", "if losses[index] < losses[first] or",
        "if losses[index] > losses[first] or", unit("arbiter")),
    Bug("orders-end-after-two", "arbiter.py", " + least[done | 1 << index]", "", unit("arbiter")),
    Bug("tie-to-the-poorer", "arbiter.py", "now[index] * bids[first].remaining_ns > now[first]",
        "now[first] * bids[first].remaining_ns > now[index]", unit("arbiter")),
    Bug("critical-waits-its-turn", "arbiter.py", "            return critical is a", "            return False",
        unit("arbiter")),
    Bug("background-competes", "arbiter.py", "if not is_background(bid)]", "]", unit("arbiter")),
    Bug("background-does-not-yield", "scheduler.py",
        "if arbiter.is_background(bid) and not self._background_may_run(bid, lane):", "if False:"),
    Bug("continuation-is-cut-off", "arbiter.py", "+ b.expected_ns > a.latest_start_ns >= at_ns", "< 0",
        unit("arbiter")),
    # --- probes
    Bug("probe-while-a-job-waits", "probes.py", "    if any(job.node.model in lane.models and job.lane in",
        "    if any(False and job.lane in", unit("sampler")),
    Bug("probe-behind-other-work", "probes.py", "if lane.works or not self.fits(bid.model, lane):",
        "if not self.fits(bid.model, lane):", unit("sampler")),
    Bug("probe-without-room-for-who-comes", "probes.py", "takes_ns + self._costs[app.name].alone_ns <= app.slo_ns",
        "takes_ns <= app.slo_ns", unit("sampler")),
    Bug("probe-before-a-pipelines-next-node", "probes.py", "return request.deadline_ns < due_ns", "return False",
        unit("sampler")),
    Bug("probe-of-a-busy-app", "probes.py", "if admission.pending > LOOKED_AT_MAX:", "if False:", unit("sampler")),
    Bug("probe-competes", "scheduler.py", "bids = [bid for bid in bids if not bid.probe] or bids", "bids = bids",
        unit("sampler")),
    Bug("probe-of-what-is-not-kept", "probes.py", "if self.kept.get(job.seq) is not job or job", "if job",
        unit("sampler")),
    Bug("probe-in-any-size", "probes.py", "bid.size != smallest or ", "", unit("sampler")),
    Bug("probe-is-taken-twice", "probes.py", "del self.kept[job.seq]", "pass", unit("sampler")),
    Bug("probe-that-failed-teaches", "scheduler.py", "        if not work.failed:", "        if True:",
        unit("sampler")),
    Bug("kept-while-draining", "probes.py", "if self._life.draining:", "if False:", unit("sampler")),
    Bug("kept-after-draining", "scheduler.py", "self.probes.let_go_all()", "pass", unit("sampler")),
    Bug("kept-though-no-lane-is-left", "scheduler.py", "self.probes.let_go_stranded(self._can_run)", "pass",
        unit("sampler")),
    Bug("kept-though-evicted", "scheduler.py", "self.probes.let_go_evicted(managed)", "pass", unit("sampler")),
    Bug("kept-although-it-has-steps", "probes.py", "or job.steps or streams or", "or streams or", unit("sampler")),
    Bug("sample-of-a-larger-size", "sampler.py",
        "                    and work.size == board.latency(work.model, work.lane.name).sizes[0] \\\n", "",
        unit("sampler")),
    Bug("sample-of-a-failed-probe", "sampler.py", "return None if work.failed else", "return", unit("sampler")),
    Bug("sampled-while-it-runs", "sampler.py", "if job.state in (DONE, GONE, JOB_FAILED) and board", "if board",
        unit("sampler")),
    Bug("sampled-again-when-ready-again", "sampler.py", "or job.launched_ns or board", "or board", unit("sampler")),
    Bug("everything-is-sampled", "sampler.py", ">= self._draw_below:", "< 0:", unit("sampler")),
    Bug("more-is-kept-than-may-be", "sampler.py", "elif len(kept) < self._kept_max and board", "elif board",
        unit("sampler")),
    Bug("steps-are-sampled", "sampler.py", "self._stepwise.add(work.model)", "pass", unit("sampler")),
    Bug("budget-is-never-spent", "sampler.py", "(unused - (finished_ns - started_ns) * PPM, board", "(unused, board",
        unit("sampler")),
    Bug("budget-adds-up-for-ever", "sampler.py", ", BUDGET_DEPTH_NS * self._budget_ppm)", ", 2**99)",
        unit("sampler")),
    Bug("budget-wakes-nobody", "sampler.py", "times.append(board.now_ns + -unused", "times.append(2**62 + -unused",
        unit("sampler")),
    # --- the costs, the alarm
    Bug("longest-path-is-the-shortest", "costs.py", "self.rest_ns[node.name] = max(", "self.rest_ns[node.name] = min(",
        unit("costs")),
    Bug("alarm-forgets-deadlines", "scheduler.py", "times = [life.next_timer_ns(), life.streams.due_ns,",
        "times = [life.streams.due_ns,"),
    Bug("alarm-forgets-planning-ahead", "scheduler.py", "times.append(lane.asks_at_ns(now))", "pass"),
    # --- pard
    Bug("pard-tie-is-dropped", "policies/pard_judge.py", "starts_ns, board) > 0", "starts_ns, board) >= 0",
        unit("policy_pard")),
    Bug("pard-forgets-the-dear-in-its-batch", "policies/pard_judge.py", "[*worker.forming.values(), job]", "[job]",
        unit("pard_work")),
    Bug("pard-work-counts-here-only", "policies/pard_judge.py", "self._planner.rest_of(job, extra_ns)",
        "self._planner.rest_of(job)", unit("pard_work")),
    Bug("cohort-worth-ignores-the-tight", "policies/pard_local_choice.py",
        "rows[index].value if rows[index].due_ns < ends[full] else mean for", "mean for", unit("pard_local_values")),
    Bug("cohort-waits-for-what-cannot-come", "policies/pard_local_flight.py", "if is_ready else not passed_over",
        "if is_ready else True", unit("pard_local_guards")),
    Bug("cohort-in-flight-loses-its-room", "policies/pard_local_flight.py",
        "cohort.surely_left() if surely else cohort.left(), self._places", "cohort.left(), self._places",
        unit("pard_local_noise")),
    Bug("cohort-sized-by-luck", "policies/pard_local_cost.py", "surprise // (count + PLACE_FROM)", "surprise",
        unit("pard_local_noise")),
    Bug("pard-plans-beyond-its-share", "policies/pard_plan.py", "now_ns + added_ns <= limit_ns", "now_ns <= limit_ns",
        unit("pard_plan")),
    Bug("pard-plans-without-branches", "policies/pard_plan.py",
        "max([upto[pred.name] for pred in node.preds], default=0)",
        "sum([upto[pred.name] for pred in node.preds])", unit("pard_plan")),
    Bug("pard-looks-no-further-than-the-module", "policies/pard_judge.py",
        "time_ns + self._planner.rest_of(job, extra_ns)", "time_ns", unit("policy_pard")),
    Bug("pard-hopeless-pile-up", "policies/pard.py", "if high and self._rule.test != NEVER:", "if False:",
        unit("policy_pard")),
    Bug("pard-sees-one-path", "policies/pard_state.py", "return max(rests_ns)", "return rests_ns[0]",
        unit("policy_pard", "pard_state")),
    Bug("pard-believes-no-request", "policies/pard_state.py", "if facts else ()", "if not facts else ()",
        unit("pard_graphs")),
    Bug("pard-keeps-old-branches", "policies/pard_state.py", "        self._foretold.clear()\n        for app",
        "        for app", unit("pard_graphs")),
    Bug("pard-learns-from-what-was-dropped", "policies/pard_branches.py",
        " or (request.ended and request.state != COMPLETED)", "", unit("pard_graphs")),
    Bug("pard-sibling-needs-no-time", "policies/pard_siblings.py", "+ self._planner.rest_of(other)", "",
        unit("pard_graphs")),
    Bug("pard-sibling-always-counts", "policies/pard_siblings.py", 'succ.join == "all" and ', "", unit("pard_graphs")),
    Bug("minmaxheap-forgets-the-parent", "minmaxheap.py",
        "if rows[parent] != rows[best] and (rows[parent] < rows[best]) == minimal:", "if False:", unit("minmaxheap")),
    # --- pard_local
    Bug("cohort-ignores-its-margin", "policies/pard_local.py", "max(0, at_ns - from_ns) * margin_ppm // 1_000_000", "0",
        (LOCAL_GUARDS + "::test_a_cohort_keeps_its_margin",)),
    Bug("cohort-of-the-loosest", "policies/pard_local_choice.py",
        "best, best_time_ns, found = count, time_ns, (first, count)",
        "best, best_time_ns, found = count, time_ns, (len(dues) - count, count)",
        (LOCAL + "::test_the_largest_tightest_feasible_set_goes",)),
    Bug("cohort-has-no-room-for-more-parts", "policies/pard_local.py", "line.left_of(number, margin_ppm > 0)",
        "line.left_of(number, False)", (LOCAL_GUARDS + "::test_a_cohort_leaves_room_for_more_parts_than_the_mean",)),
    Bug("cohort-survivors-not-tested-again", "policies/pard_local.py",
        "_give_up(tightest, board, CANNOT_MAKE_DEADLINE)", "pass",
        (LOCAL + "::test_the_survivors_of_a_slow_batch_are_tested_again",)),
    Bug("cohort-keeps-the-hopeless-waiting", "policies/pard_local.py",
        "_give_up(member, board, PRICED_OUT if member.priced_out else CANNOT_MAKE_DEADLINE)", "pass",
        (LOCAL_GUARDS + "::test_who_could_not_make_it_alone_is_dropped_before_the_deadline",)),
    Bug("cohort-continues-at-any-time", "policies/pard_local.py",
        "latest_start_ns=None if due_ns is None else due_ns - took_ns", "latest_start_ns=None",
        (LOCAL + "::test_another_policy_cuts_in_only_if_it_ends_before_the_latest_start",)),
    Bug("second-cohort-without-a-forecast", "policies/pard_local_flight.py",
        "if any(ends_ns > limit_ns for ends_ns, limit_ns in zip(ends, self._limits)):", "if False:",
        (LOCAL_GUARDS + "::test_a_second_cohort_waits_where_it_would_make_the_first_late",)),
    Bug("parts-are-never-learnt", "policies/pard_local_line.py", "self._parts[node.index].append(count)", "pass",
        (LOCAL + "::test_the_number_of_parts_is_learnt_then_known_or_foretold",)),
    Bug("join-counts-once-per-branch", "policies/pard_local_line.py",
        "min(self._span(node, left, parts, facts) - made,", "max(-made,",
        (LOCAL_GUARDS + "::test_a_join_runs_once_however_many_branches_lead_to_it",)),
    Bug("declared-steps-count-once", "policies/pard_local_places.py",
        "time_ns(milli, over_milli) * steps.get(node.index, 1)",
        "time_ns(milli, over_milli)", (LOCAL_GUARDS + "::test_declared_steps_count_as_often_as_they_run",)),
    Bug("critical-pays-the-price", "policies/pard_local_price.py", 'klass != "critical" and self', "self",
        (LOCAL_GUARDS + "::test_critical_requests_pay_no_price",)),
    Bug("answered-late-pays-the-price", "policies/pard_local.py", 'request.on_late != "answer" and self._price.may',
        "self._price.may", (LOCAL_GUARDS + "::test_who_must_be_answered_pays_no_price",)),
    # --- what a soak found
    Bug("failed-join-is-passed-over", "life.py", "if not progress.is_starved(request, job):", "if True:",
        unit("failed_joins")),
    Bug("pard-waits-where-no-model-is", "policies/pard.py", "self._apart += workers", "pass", unit("pard_moves")),
    Bug("pard-counts-what-goes-on", "policies/pard.py", "if job.request.state == DROPPED:", "if True:",
        unit("pard_counts")),
    Bug("pard-counts-the-cancelled", "policies/pard.py", "request.state == DROPPED and not", "request.ended and not",
        unit("pard_counts")),
)


def plant(bug: Bug, home: str) -> str:
    """Put the bug into the copy at ``home``; returns why that is not possible, or ``""``."""
    path = os.path.join(home, "edgeserve", "sched", bug.file)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        return f"edgeserve/sched/{bug.file}: {error.strerror}"
    if text.count(bug.old) != 1:
        return f"edgeserve/sched/{bug.file} holds this {text.count(bug.old)} times, expected once: {bug.old!r}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(bug.old, bug.new))
    return ""


def copy_to(home: str) -> None:
    """A copy of what the tests need."""
    for name in ("edgeserve", "tests"):
        shutil.copytree(os.path.join(ROOT, name), os.path.join(home, name),
                        ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "node_modules"))
    shutil.copy(os.path.join(ROOT, "pyproject.toml"), home)


def run_tests(tests: Sequence[str], home: str) -> Tuple[bool, str]:
    """Whether the tests pass against the copy, and the line that says what they said."""
    environment = {**os.environ, "PYTHONPATH": home, "PYTHONDONTWRITEBYTECODE": "1"}  # an old .pyc may look as new
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False, f"the tests hang (more than {SECONDS_MAX} s)"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    last = (lines or done.stdout.splitlines() or done.stderr.splitlines() or [""])[0 if lines else -1]
    return done.returncode == 0, last.split(" - ")[0].replace("FAILED ", "").replace("ERROR ", "")


def is_copy_in_use(home: str) -> bool:
    """Whether Python imports the copy, not an installed package."""
    done = subprocess.run([sys.executable, "-c", "import edgeserve; print(edgeserve.__file__)"], cwd=home, text=True,
                          env={**os.environ, "PYTHONPATH": home}, capture_output=True)
    return os.path.realpath(done.stdout.strip()).startswith(os.path.realpath(home) + os.sep)


def hunt(bugs: Sequence[Bug], parallel: int = PARALLEL) -> List[Tuple[Bug, str, str]]:
    """Plant each bug in turn; (bug, "noticed" | "MISSED" | "STALE", by what) in the order in which they were done."""
    waiting: queue.Queue[Bug] = queue.Queue()
    for bug in bugs:
        waiting.put(bug)
    found: List[Tuple[Bug, str, str]] = []
    lock = threading.Lock()

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="edgeserve-bugs-") as home:
            copy_to(home)
            while True:
                try:
                    bug = waiting.get_nowait()
                except queue.Empty:
                    return
                clean = os.path.join(ROOT, "edgeserve", "sched", bug.file)
                problem = plant(bug, home)
                if problem:
                    row = (bug, "STALE", problem)
                else:
                    passed, said = run_tests(bug.tests, home)
                    row = (bug, "MISSED", "by " + ", ".join(bug.tests)) if passed else (bug, "noticed", said)
                    shutil.copy(clean, os.path.join(home, "edgeserve", "sched", bug.file))
                with lock:
                    found.append(row)
                    print(f"{row[1]:8} {bug.name:42} {row[2]}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(max(1, min(parallel, len(bugs))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: every bug was noticed; 1: some were missed or no longer fit; 2: the tests fail without any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", metavar="NAME", help="only bugs whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the bugs and stop")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="how many at a time (default %(default)s)")
    args = parser.parse_args(argv)
    bugs = [bug for bug in BUGS if args.only is None or args.only in bug.name]
    if not bugs:
        print(f"no bug is called like {args.only!r}; --list names them")
        return 2
    if args.list:
        print("\n".join(f"{bug.name:42} {bug.file}" for bug in bugs))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edgeserve-bugs-") as home:
        copy_to(home)
        if not is_copy_in_use(home):
            print("an installed edgeserve hides the copy; run this in an environment with an editable installation")
            return 2
        passed, said = run_tests(sorted({test for bug in bugs for test in bug.tests}), home)
    if not passed:
        print(f"the tests fail without any bug: {said}")
        return 2
    rows = hunt(bugs, args.parallel)
    noticed = sum(row[1] == "noticed" for row in rows)
    print(f"{noticed} of {len(rows)} planted bugs noticed in {time.monotonic() - began:.0f} s")
    return 0 if noticed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
