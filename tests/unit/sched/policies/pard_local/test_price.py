"""The shadow price against its definition, worked out anew from everything that ever happened."""

from __future__ import annotations

import random

import pytest

from edgeserve.sched.policies.pard_local.price import PHI_FULL, WINDOW_NS, Price

CLASSES = ("critical", "normal", "background")


@pytest.mark.parametrize("seed", range(20))
def test_the_price_is_that_of_the_last_seconds(seed):
    draw = random.Random(f"price {seed}")
    scale, share_max = draw.choice([0.4, 1.0, 3.0]), draw.choice([0.0, 0.25, 0.5, 1.0])
    loss = draw.choice([0.02, 0.5])
    price, ends, busy, now_ns = Price(scale, share_max), [], [], 0
    for _ in range(150):
        now_ns += draw.choice([1, WINDOW_NS // 50, WINDOW_NS // 10])
        if draw.random() < 0.6:
            end = (now_ns, draw.choice(CLASSES), draw.randrange(1, 9), draw.random() < loss, draw.random() < 0.6)
            ends.append(end)
            price.ended(end[0], end[1], end[2], lost=end[3], priced=end[4])
        else:
            busy.append((now_ns, draw.randrange(1, 1000)))
            price.ran(*busy[-1])
        price.forget(now_ns)
        recent = [end for end in ends if now_ns - end[0] <= WINDOW_NS]
        busy_ns = sum(took_ns for at_ns, took_ns in busy if now_ns - at_ns <= WINDOW_NS)
        lost = sum(end[3] for end in recent)
        expected = 0.0
        if lost and busy_ns:
            delivered = sum(end[2] for end in recent if not end[3])
            expected = scale * min(1.0, lost / len(recent) / PHI_FULL) * delivered / busy_ns
        assert price.now() == pytest.approx(expected)
        for klass in CLASSES:
            theirs = [end for end in recent if end[1] == klass]
            refused = sum(end[3] and end[4] for end in theirs)
            may = klass != "critical" and share_max > 0 and refused <= share_max * len(theirs)
            assert price.may_refuse(klass) == may


def test_an_end_counts_until_it_is_older_than_the_window():
    price = Price(1.0, 0.5)
    price.ran(0, 100)
    price.ended(0, "normal", 2.0, lost=False, priced=False)
    price.ended(0, "normal", 1.0, lost=True, priced=False)
    price.forget(WINDOW_NS)
    assert price.now() == pytest.approx(2.0 / 100)
    price.forget(WINDOW_NS + 1)
    assert price.now() == 0.0
    price.ended(WINDOW_NS + 1, "normal", 1.0, lost=True, priced=False)
    assert price.now() == 0.0  # no lane time to divide by
