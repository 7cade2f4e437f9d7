"""The numbers of the paper and the specification, and the compared systems."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from replicate.rtlm.continuous import KIND
from replicate.rtlm.world import System

PLAN = System("plan", {}, "continuous")
CONTINUOUS_FIFO = System(KIND, {}, "continuous")
"""All requests have one SLO: the earliest deadline first is the order of arrival."""

GATHERED = "plan, gathered"
"""``plan`` has no gathering window; here requests come at the multiples of one, as the specification's did."""

ORDERS: Dict[str, System] = {
    "FIFO": System(options={"method": "fifo"}),
    "HPF": System(options={"method": "hpf"}),
    "LUF": System(options={"method": "luf"}),
    "MUF": System(options={"method": "muf"}),
    "Eq. 3 as printed": System(options={"method": "up", "order": "printed"}),
    "UP": System(options={"method": "up"}),
    "UP+C, or": System(options={"method": "up", "consolidation": "or"}),
    "UP+C, and": System(options={"method": "up", "consolidation": "and"}),
    "UP+C": System(options={"method": "up+c"}),
}
"""Static batches on one lane."""

RAMP: Dict[str, System] = {
    **{name: ORDERS[name] for name in ("FIFO", "HPF", "LUF", "MUF", "UP", "UP+C, and", "UP+C")},
    "rtlm, static tau, kappa 1": System(options={"offload": "static"}, kappa=1.0),
    "rtlm, kappa 2": System(kappa=2.0),
    "FIFO, kappa 2": System(options={"method": "fifo", "offload": "conditional"}, kappa=2.0),
    "LUF, kappa 2": System(options={"method": "luf", "offload": "conditional"}, kappa=2.0),
    "continuous FIFO": CONTINUOUS_FIFO,
    "plan": PLAN,
    GATHERED: PLAN,
}
"""The systems of the ramp. With ``kappa 2`` all have the same two lanes and the same rule of offloading; the paper
holds RT-LM on both against the others on one."""

SPEC_ORDERS: Mapping[Tuple[float, str], Mapping[str, Tuple[float, float, float]]] = {
    (0.95, "normal"): {
        "FIFO": (3.9, 6.2, 7.6),
        "HPF": (3.8, 6.1, 8.3),
        "LUF": (2.7, 4.5, 10.1),
        "Eq. 3 as printed": (3.7, 7.5, 31),
        "UP": (2.8, 4.6, 9.9),
    },
    (0.95, "large"): {
        "FIFO": (4.7, 7.7, 9.6),
        "HPF": (4.8, 8.3, 11.3),
        "LUF": (3.4, 6.0, 16.9),
        "Eq. 3 as printed": (4.8, 12.0, 68),
        "UP": (3.5, 6.0, 11.8),
        "UP+C, and": (3.5, 6.8, 40),
        "UP+C": (3.4, 6.0, 17),
    },
    (1.1, "normal"): {
        "FIFO": (15, 26, 27),
        "HPF": (14, 26, 29),
        "LUF": (3.2, 5.9, 23),
        "Eq. 3 as printed": (13, 74, 242),
        "UP": (3.3, 6.2, 16),
        "UP+C, and": (3.4, 6.5, 39),
        "UP+C": (3.2, 5.9, 26),
    },
    (1.1, "large"): {
        "FIFO": (21, 38, 41),
        "HPF": (19, 36, 41),
        "LUF": (3.8, 7.2, 33),
        "Eq. 3 as printed": (17, 79, 354),
        "UP": (3.9, 7.6, 19),
    },
}
"""The specification's simulation (sections 4 and 5): mean, 95th percentile and largest response in seconds."""

STAGES: Dict[str, System] = {
    "FIFO": ORDERS["FIFO"],
    "UP+C": ORDERS["UP+C"],
    "UP+C, early exit": System(options={"method": "up+c"}, batching="early_exit"),
    "continuous FIFO": CONTINUOUS_FIFO,
    "plan": PLAN,
    GATHERED: PLAN,
}
"""The gain of each step beyond the paper (section 8)."""

SPEC_STAGES: Mapping[Tuple[float, float, str], Mapping[str, float]] = {
    (2.0, 0.25, "normal"): {"FIFO": 1.87, "UP+C": 1.87, "UP+C, early exit": 1.53, "plan": 1.51},
    (2.0, 0.8, "normal"): {"FIFO": 2.77, "UP+C": 2.40, "UP+C, early exit": 2.05, "plan": 1.82},
    (2.0, 0.95, "normal"): {"plan": 2.0},
    (2.0, 1.1, "normal"): {"FIFO": 15.0, "UP+C": 3.2, "UP+C, early exit": 2.9, "plan": 2.2},
    (2.0, 1.1, "large"): {"FIFO": 21.5, "UP+C": 3.8, "UP+C, early exit": 3.1, "plan": 1.7},
    (0.0, 0.25, "normal"): {"FIFO": 0.83, "UP+C": 0.83, "plan": 0.57},
    (0.0, 0.8, "normal"): {"FIFO": 1.70, "UP+C": 1.61, "plan": 0.75},
    (0.0, 1.1, "normal"): {"FIFO": 13.9, "UP+C": 2.5, "plan": 0.81},
    (0.0, 1.1, "large"): {"FIFO": 19.8, "UP+C": 3.0, "plan": 0.72},
}
"""Gathering window in seconds, load and variance: mean response. ``plan`` stands beside the best continuous row: as it
is without a window, gathered with one."""

SPEC_OFFLOAD: Mapping[Tuple[float, str], float] = {
    (1.0, "none"): 2.4,
    (1.0, "static"): 2.1,
    (1.0, "conditional"): 2.2,
    (2.0, "none"): 2.4,
    (2.0, "static"): 3.2,
    (2.0, "conditional"): 2.3,
    (3.0, "none"): 2.4,
    (3.0, "static"): 9.7,
    (3.0, "conditional"): 2.4,
}
"""Mean response at load 0.8 by kappa and rule (section 6)."""

SPEC_QUALITY = {0.0: 14.9, 0.3: 10.5, 0.5: 5.7, 0.7: 3.7, 0.9: 3.0, 1.0: 2.7}
"""UP+C at load 1.1 by the correlation of predictions (section 9); FIFO 13 to 16."""

SPEC_RAMP: Mapping[str, Mapping[str, Tuple[float, float, float]]] = {
    "FIFO": {
        "DialoGPT": (2.32, 3.05, 3.28),
        "GODEL": (2.13, 2.68, 2.79),
        "BlenderBot": (2.89, 3.59, 5.60),
        "BART": (2.16, 2.41, 2.84),
        "T5": (1.98, 2.18, 2.70),
    },
    "LUF": {
        "DialoGPT": (2.12, 2.33, 2.74),
        "GODEL": (1.93, 2.12, 2.65),
        "BlenderBot": (2.78, 3.46, 5.16),
        "BART": (1.97, 2.02, 2.35),
        "T5": (1.79, 1.81, 2.23),
    },
    "MUF": {
        "DialoGPT": (2.17, 2.47, 2.91),
        "GODEL": (2.02, 2.26, 2.71),
        "BlenderBot": (2.72, 3.57, 5.50),
        "BART": (2.04, 2.20, 2.63),
        "T5": (1.88, 2.01, 2.48),
    },
    "UP+C": {
        "DialoGPT": (2.13, 2.34, 2.74),
        "GODEL": (1.94, 2.13, 2.65),
        "BlenderBot": (2.78, 3.46, 5.16),
        "BART": (1.98, 2.04, 2.36),
        "T5": (1.79, 1.81, 2.21),
    },
    "rtlm, kappa 2": {
        "DialoGPT": (2.08, 2.25, 2.63),
        "GODEL": (1.92, 2.08, 2.59),
        "BlenderBot": (2.74, 3.46, 4.95),
        "BART": (1.92, 1.99, 2.27),
        "T5": (1.79, 1.80, 2.17),
    },
    GATHERED: {
        "DialoGPT": (1.89, 1.67, 1.54),
        "GODEL": (1.76, 1.53, 1.40),
        "BlenderBot": (2.07, 1.87, 1.82),
        "BART": (1.83, 1.59, 1.45),
        "T5": (1.69, 1.44, 1.30),
    },
}
"""Mean response of the ramp for small, normal and large variance (section 9)."""

PAPER_MAX: Mapping[str, Mapping[str, Tuple[float, float, float]]] = {
    "FIFO": {
        "DialoGPT": (2.25, 3.75, 3.90),
        "GODEL": (2.15, 3.06, 3.93),
        "BlenderBot": (2.24, 2.52, 3.41),
        "BART": (1.87, 1.93, 1.95),
        "T5": (2.90, 2.95, 3.30),
    },
    "rtlm, kappa 2": {
        "DialoGPT": (2.24, 2.96, 3.18),
        "GODEL": (2.52, 2.80, 3.17),
        "BlenderBot": (2.92, 2.26, 2.38),
        "BART": (1.93, 1.66, 1.86),
        "T5": (3.45, 2.64, 3.25),
    },
}
"""The paper's Table III: largest response in seconds."""

PAPER_THROUGHPUT: Mapping[str, Mapping[str, Tuple[float, float, float]]] = {
    "FIFO": {
        "DialoGPT": (21.68, 18.00, 15.68),
        "GODEL": (17.89, 18.28, 13.36),
        "BlenderBot": (21.15, 17.90, 17.63),
        "BART": (32.30, 30.62, 25.92),
        "T5": (17.86, 16.57, 16.15),
    },
    "rtlm, kappa 2": {
        "DialoGPT": (24.61, 23.89, 22.34),
        "GODEL": (23.73, 21.54, 19.78),
        "BlenderBot": (21.12, 20.66, 20.80),
        "BART": (32.14, 31.71, 28.64),
        "T5": (22.28, 21.94, 20.03),
    },
}
"""The paper's Table IV, which is close to 60 over the mean response."""

MALICIOUS: Dict[str, System] = {
    "FIFO": ORDERS["FIFO"],
    "static tau": System(options={"offload": "static", "tau": 35.0}, kappa=1.0),
    "rtlm": System(options={"tau": 35.0}, kappa=1.0),
    "plan": System("plan", {}, "continuous", 1.0),
}
"""Fig. 14. ``tau`` is that of the training data, as published; ``plan`` learns its own."""

SPEC_MALICIOUS: Mapping[str, Tuple[float, ...]] = {
    "FIFO": (1.91, 2.22, 2.43, 2.61, 2.78, 2.91),
    "static tau": (1.78, 1.93, 2.10, 2.34, 2.64, 2.96),
    "rtlm": (1.85, 2.06, 2.21, 2.34, 2.46, 2.55),
}
"""Mean response at 150 a minute by the share of malicious requests (section 9); the paper: FIFO 2.0, above 30 % 3.0,
RT-LM 1.5 to 1.9."""

PAPER_ONLINE: Mapping[str, Any] = {"prioritisation_ms": 8.04, "consolidation_ms": 0.42, "offloading_ms": 0.37}
"""The paper's Table VII, DialoGPT: milliseconds per task."""
