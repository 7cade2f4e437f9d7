"""Draw ``research/results/README.md`` and its picture from the files beside it, which the scripts wrote with
``--json``.

A result is ``{"script", "circumstances": {}, "checks": [{"name", "value", "bound", "holds"}]}``. A file that does not
exist is left out. What fell short stands in the open, the whole table below a fold. A script that has served and went
is named with the last commit that has it.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

from lib import drawn

PAGE, SCRIPT = "research/results/README.md", "research/figures/results.py"
RESULTS = os.path.join(drawn.ROOT, "research", "results")

TITLES = {  # file -> what it shows; in the order of the page
    "bench_bus.json": "The bus, beside hand-written servers in the same run",
    "bench_price.json": "Overload, decisions, a lone request and a process, beside an earlier commit",
    "bench_shared_memory.json": "Large tensors: shared memory beside frames, in the same run",
    "bench_images.json": "Frames of a camera: prepared in front of the network, beside numpy",
    "bench_http_front.json": "The HTTP front, beside the bus and a bare echo",
    "bench_observe.json": "What metrics and top cost at 1,000 requests a second",
    "bench_spans.json": "What spans of OpenTelemetry cost a server",
    "bench_page.json": "The page: axe-core, and an hour open",
    "bench_plugs.json": "A robot's critical frames beside satellites and a video recorder, on one lane",
    "bench_calls.json": "Python-level calls of a request",
    "hostile.json": "A million mutated messages, a healthy client beside them (on a busy machine)",
    "churn.json": "1.5 times the load, from clients that come and go, beside attackers (other work on the machine)",
    "isolation.json": "What a well-behaved client keeps beside one attacker",
    "hostile_fronts.json": "Mutated requests over HTTP and gRPC, a healthy client beside them (on a busy machine)",
    "bench_lanes.json": "The gap between two batches, by the depth of the lane",
    "bench_torch_engine.json": "The torch engine beside ONNX Runtime, and beside the bare call",
    "replicate_clockwork.json": "Clockwork, replicated in simulation",
    "bench_arbiter.json": "Three apps on one lane, in simulation",
    "bench_regret.json": "Regret: the plan beside edf and fifo, on worlds kept for the report, in simulation",
    "bench_regret_ensembles.json": "Regret of ensembles: the plan beside simple rules on drawn worlds, in simulation",
    "bench_variants.json": "Variants of a model, beside fixed sizes and EdgeServing, in simulation",
    "bench_mix.json": "Mixes: the plan beside simple rules, in simulation",
    "bench_ablation.json": "What each mechanism of the scheduler is worth, on drawn worlds, in simulation",
    "bench_promises.json": "Deadlines that would do: kept for requests that ask again, in simulation",
    "bench_promises_throttled.json": "The same while the devices are slowed down, in simulation",
    "mix_live.json": "The home mix live for ten minutes, beside a simulation from its recording",
    "bench_device.json": "Reactions to the device: clocks, memory, power and heat, in simulation",
    "bench_day.json": "A day of an Orin Nano beside its ticks of over-current, in simulation",
    "replicate_orloj.json": "Orloj, replicated in simulation, and surpassed",
    "replicate_schemble.json": "Schemble, replicated in simulation, and surpassed",
    "replicate_schemble_days.json": "Schemble on eight more days, in simulation",
    "replicate_schemble_tasks.json": "Schemble's other tasks, in simulation",
    "replicate_schemble_between.json": "Ensembles in trouble, in simulation",
    "replicate_schemble_varying.json": "Ensembles whose execution times vary, in simulation",
    "bench_planner.json": "How long the planner of ensembles takes",
    "replicate_rtlm.json": "RT-LM, replicated in simulation, and surpassed",
    "bench_regret_assistants.json": "Regret of the plan among language models in trouble, in simulation",
    "replicate_rtlm_busy.json": "RT-LM with a CPU lane whose cores others use too, in simulation",
    "replicate_rtlm_ramp.json": "RT-LM's Tables III and IV: five language models on a ramp, in simulation",
    "replicate_rtlm_texts.json": "RT-LM's orders on real texts, and Fig. 13, in simulation",
    "bench_language_lane.json": "A language model and a voice detector on one lane, in virtual time",
    "bench_language_llama.json": "rtlm+ beside llama.cpp's own server, live",
    "bench_hub_llama.json": "The hub's questions: rtlm+ beside llama.cpp's own server, both with kept prefixes, live",
    "bench_prefix_llama.json": "Prompts that begin alike: kept prefixes, beside llama.cpp's own server, live",
    "bench_same_text.json": "Greedy text beside llama.cpp of the same build",
    "bench_language_serving.json": "A language model under load: FIFO static, rtlm, rtlm+, live",
    "bench_structured_answers.json": "Answers that fit a form, and calls of functions, of a small model",
    "bench_answer_lengths.json": "How well lengths of a language model's answers are predicted",
    "bench_live_vs_simulated.json": "Live beside simulated: one network, a pipeline with host functions, the reader",
    "bench_calibration.json": "Whether stated batch times hold, in simulation",
    "dynamic_digits.json": "A network with early exits, live, under one policy after the other",
    "dynamic_recognise.json": "A text recogniser, live, under one policy after the other",
    "replicate_pard.json": "PARD, replicated in simulation",
    "replicate_pard_local.json": "PARD on one shared device, in simulation",
    "replicate_pard_worlds.json": "PARD on one shared device, drawn worlds with and without host functions",
    "replicate_pard_paths.json": "PARD in graphs: predicted branches, late siblings",
    "replicate_pard_work.json": "PARD and requests of unequal work",
}

PLOTS = {  # file -> its plot in docs/research, and what that shows
    "replicate_orloj.json": ("orloj_finish.svg", "Finish rate by deadline: Orloj and the baselines"),
    "bench_mix.json": ("mixes.svg", "Value in time of four mixes over the load, beside simple rules"),
    "replicate_pard.json": ("pard_drops.svg", "Share of requests lost over time, and before which module"),
    "replicate_schemble.json": (
        "schemble_fit.svg",
        "Difficulty of the example's requests, and agreement of its models by difficulty",
    ),
}

SERVED = "b48585bf"
"""The last commit that has the scripts of results that are not measured again."""

PICTURE = os.path.join(RESULTS, "overview.svg")
DOUBLINGS_MAX = 2.0
"""The largest drawn distance of a check from its bound, in doublings."""

COLOURS = {True: "#1f77c9", False: "#c02a55"}
ROW, LABEL, WIDE = 15, 500, 900
"""Pixels of the picture: a row, the titles, all."""

ROWS_MAX = 40
"""Checks of one script that the page shows in full; longer tables stay in their file."""


def parts(directory: str = RESULTS) -> Dict[str, str]:
    """The page's parts by name."""
    results = stored(directory)
    found = [section(TITLES[name], name, result) for name, result in results.items()]
    return {
        "summary": summary(results),
        "results": "\n\n".join(found)
        or "No run is stored in `research/results/` yet. Every script `research/bench/*.py` prints its own checks.",
    }


def stored(directory: str) -> Dict[str, Mapping[str, Any]]:
    """The results that exist, by file, in the order of the page."""
    found = {}
    for name in TITLES:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found[name] = json.load(file)
    return found


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per result: how many of its checks hold."""
    rows = []
    for name, result in results.items():
        held = sum(bool(check["holds"]) for check in result["checks"])
        anchor = re.sub(r"[^\w -]", "", TITLES[name].lower()).replace(" ", "-")
        rows.append(f"| [{TITLES[name]}](#{anchor}) | {held} of {len(result['checks'])} |")
    told = "Each dot is a check with a number: how far it is from its bound, in doublings, two at most."
    return "\n".join(
        [
            f"![All results: a row each, with a dot per check. {told}](overview.svg)",
            "",
            f"{told} The same as a table:",
            "",
            "<details><summary>How many checks hold, by result</summary>",
            "",
            "| result | checks that hold |",
            "| --- | ---: |",
            *rows,
            "",
            "</details>",
        ]
    )


def overview(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Every check with a number as a dot, a row per result: how far it is from its bound, to the right where it holds,
    in doublings."""
    middle, scale = (LABEL + WIDE) / 2, (WIDE - LABEL - 20) / 2 / DOUBLINGS_MAX
    high = ROW * (len(results) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" font-family="sans-serif" '
        'font-size="10.5">',
        f'<rect width="{WIDE}" height="{high}" fill="#fff"/>',
        f'<path d="M{middle} 12V{high}" stroke="#888"/>',
        f'<text x="{middle - 6}" y="11" text-anchor="end">falls short</text><text x="{middle + 6}" y="11">holds</text>',
    ]
    for place, (name, result) in enumerate(results.items(), 2):
        y = ROW * place
        lines.append(f'<text x="{LABEL - 8}" y="{y}" text-anchor="end">{html.escape(TITLES[name][:88])}</text>')
        for check in result["checks"]:
            margin = doublings(check["value"], str(check["bound"]))
            if margin is not None:
                x = middle + scale * max(-DOUBLINGS_MAX, min(DOUBLINGS_MAX, margin))
                lines.append(
                    f'<circle cx="{x:.0f}" cy="{y - 4}" r="3" fill="{COLOURS[bool(check["holds"])]}" opacity=".4"/>'
                )
    return "\n".join([*lines, "</svg>"]) + "\n"


def doublings(value: Any, bound: str) -> Optional[float]:
    """The distance of a value beyond a bound, in doublings; in a band (``1 to 2``) beyond the nearer end, or the one it
    has left. None for what is no number from 0 beside one."""
    low, to, high = bound.partition(" to ")
    if to:
        ends = [doublings(value, f">= {low}"), doublings(value, f"<= {high}")]
        return min([end for end in ends if end is not None], default=None)
    way, _, number = bound.partition(" ")
    if way not in (">=", "<=") or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    least = float(number)
    if least <= 0 or value < 0:
        return None
    ratio = value / least if way == ">=" else least / value if value else math.inf
    return DOUBLINGS_MAX if ratio == math.inf else math.log2(ratio) if ratio > 0 else -DOUBLINGS_MAX


def section(title: str, name: str, result: Mapping[str, Any]) -> str:
    """One result: the command that makes it, the circumstances, and a row per check."""
    checks = result["checks"]
    held = sum(bool(check["holds"]) for check in checks)
    circumstances = dict(result.get("circumstances") or {})
    command = circumstances.pop("command", f"python {result['script']} --json research/results/{name}")
    if not os.path.exists(os.path.join(drawn.ROOT, result["script"])):
        command = command.replace(result["script"], f"{SERVED}:{result['script']}", 1)
    lines = [f"## {title}", "", f"`{command}`: {held} of {len(checks)} checks hold. {said(circumstances)}".rstrip(), ""]
    if name in PLOTS:
        lines += [f"![{PLOTS[name][1]}](../../docs/research/{PLOTS[name][0]})", ""]
    short = [check for check in checks if not check["holds"]]
    if short:
        lines += ["<details open><summary>What falls short</summary>", "", *table(short), "", "</details>", ""]
    if len(checks) > ROWS_MAX:
        return "\n".join([*lines, f"All checks are in [the file]({name})."])
    return "\n".join([*lines, "<details><summary>All checks</summary>", "", *table(checks), "", "</details>"])


def table(checks: Sequence[Mapping[str, Any]]) -> List[str]:
    """A row per check."""
    return ["| check | value | must be | |", "| --- | ---: | ---: | --- |"] + [
        f"| {cell(check['name'])} | {number(check['value'])} | {cell(check['bound'])} | {judged(check)} |"
        for check in checks
    ]


def judged(check: Mapping[str, Any]) -> str:
    """True if a check holds, with the known reason of one that does not."""
    if check["holds"]:
        return "holds"
    return f"**falls short**, as known: {cell(check['known'])}" if check.get("known") else "**falls short**"


def said(circumstances: Mapping[str, Any]) -> str:
    """The circumstances as one sentence."""
    words: List[str] = []
    for key, value in circumstances.items():
        if value is True or value is False:
            words += [key.replace("_", " ")] if value else []
        elif not isinstance(value, dict):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{key.replace('_', ' ')} {shown}")
    text = "; ".join(words)
    return cell(text[:1].upper() + text[1:]) + "." if text else ""


def number(value: Any) -> str:
    """Three significant digits, four below 1 (0.9996 is not 1); whole numbers above a thousand as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 1 else f"{value:.4g}"
    return cell(value)


def cell(value: Any) -> str:
    """Text that cannot end a table's cell."""
    return str(value).replace("|", "\\|")


def main() -> int:
    if "--check" not in sys.argv:
        Path(PICTURE).write_text(overview(stored(RESULTS)), encoding="utf-8")
    return drawn.main(PAGE, parts(), SCRIPT)


if __name__ == "__main__":
    sys.exit(main())
