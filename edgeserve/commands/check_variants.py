"""The part of ``edgeserve check`` on variants: the quality of each against the rate that it alone keeps up with."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config
from edgeserve.sched.core.build import model_lanes, seed_timings
from edgeserve.sim.report import Report
from edgeserve.units import NS_PER_S, format_duration


class VariantRow(NamedTuple):
    """One variant of an app's model. ``rate``: requests per second that it keeps up with alone on its lanes, in batches
    of ``size``, the largest that leave time to wait for the one before; 0 where none does. ``share``: of the answers in
    time, at the rates that were simulated."""

    app: str
    variant: str
    quality: float
    size: int
    batch_ns: int
    rate: float
    share: float

    def as_table(self) -> Dict[str, Any]:
        """The form for programs."""
        return {
            "quality": self.quality,
            "batch": self.size,
            "batch_ms": self.batch_ns / 1e6,
            "sustainable": self.rate,
            "answers": self.share,
        }


def variant_rows(config: Config, profiles: Sequence[Profile], report: Report) -> List[VariantRow]:
    """The variants of all apps that have some, the best of each app first."""
    times = seed_timings(config, profiles, {})
    rows = []
    for app in config.apps.values():
        answers = report.apps[app.name].variants if app.name in report.apps else {}
        for variant, quality in app.variants.items():
            size = batch_ns = 0
            rate = 0.0
            for lane in model_lanes(config, config.models[variant]):
                known = {size: seed.timing.median_ns for size, seed in times[variant, lane].items()}
                fit = [each for each in known if 2 * known[each] <= app.slo_ns]
                here = max(fit, default=min(known))
                rate += here * NS_PER_S / known[here] if fit else 0.0
                if not size or known[here] / here < batch_ns / size:
                    size, batch_ns = here, known[here]
            share = answers.get(variant, 0) / max(1, sum(answers.values()))
            rows.append(VariantRow(app.name, variant, quality, size, batch_ns, rate, share))
    return rows


def table_of(rows: Sequence[VariantRow]) -> List[Sequence[str]]:
    """The rows for people, with a head."""
    table: List[Sequence[str]] = [("app", "variant", "quality", "batch", "takes", "sustains", "answers in time")]
    for row in rows:
        sustains = f"{row.rate:.3g}/s" if row.rate else "too slow"
        takes = format_duration(row.batch_ns)
        table.append((row.app, row.variant, f"{row.quality:g}", str(row.size), takes, sustains, f"{row.share:.1%}"))
    return table
