"""The forms of detectors: the same three things in an image come out of each."""

from __future__ import annotations

import numpy as np
import pytest

from edgeserve.errors import BadInput
from edgeserve.fronts.detections import FORMS, Box, boxes_of, kept_of, named_boxes, rows_of

HEIGHT, WIDTH, CLASSES = 64, 96, 5
THINGS = [(3, 0.9, (8, 16, 24, 32)), (1, 0.75, (40, 0, 96, 64)), (3, 0.5, (48, 32, 56, 40))]
"""Class, score, and left, top, right, bottom in pixels."""
WANTED = [
    [kind, score, top / HEIGHT, left / WIDTH, bottom / HEIGHT, right / WIDTH]
    for kind, score, (left, top, right, bottom) in THINGS
]


def chances():
    scores = np.zeros((len(THINGS), CLASSES), np.float32)
    for row, (kind, score, _) in enumerate(THINGS):
        scores[row, kind] = score
    return scores


def corners():
    return np.array([box for _, _, box in THINGS], np.float32)


def centres():
    box = corners()
    return np.concatenate([(box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]], axis=1)


def yolo():
    rows = np.concatenate([centres(), chances()], axis=1)
    return {"output0": np.concatenate([rows, np.zeros((30, 4 + CLASSES), np.float32)])}


def yolo_of_many_boxes():
    """As networks bring it: thousands of boxes, turned round, and a second box around the first thing."""
    rows = np.concatenate([yolo()["output0"][:3], np.full((500, 4 + CLASSES), 0.01, np.float32)])
    rows[3] = rows[0]
    rows[3, :4] += 1
    rows[3, 4 + 3] = 0.8
    return {"output0": rows.T[None]}


def with_nms():
    scores, kinds = chances().max(axis=1), chances().argmax(axis=1)
    return {"output0": np.concatenate([corners(), scores[:, None], kinds[:, None]], axis=1)[None]}


def yolonas():
    return {"graph": np.concatenate([np.zeros((3, 1)), with_nms()["output0"][0]], axis=1)}


def yolox():
    count = sum([(WIDTH // stride) * (HEIGHT // stride) for stride in (8, 16, 32)])
    rows = np.full((count, 5 + CLASSES), -20.0, np.float32)
    rows[:, 4:] = 0
    for place, (centre, score) in enumerate(zip(centres(), chances())):
        x, y = int(centre[0] // 8), int(centre[1] // 8)
        rows[y * (WIDTH // 8) + x] = [*(centre[:2] / 8 - (x, y)), *np.log(centre[2:] / 8), 1.0, *score]
        assert place < 3
    return {"output": rows}


def ssd():
    order = np.array([1, 0, 3, 2])
    boxes = (corners() / (WIDTH, HEIGHT, WIDTH, HEIGHT))[:, order]
    found = with_nms()["output0"][0]
    return {
        "boxes:0": boxes[None],
        "classes:0": found[None, :, 5],
        "scores:0": found[None, :, 4],
        "count": np.array([3]),
    }


def rfdetr():
    sure = np.concatenate([1 - chances().sum(axis=1, keepdims=True), chances()], axis=1)
    return {"dets": centres() / (WIDTH, HEIGHT, WIDTH, HEIGHT), "labels": np.log(sure + 1e-9)}


CASES = [
    (yolo, "yolo"),
    (yolo_of_many_boxes, "yolo"),
    (with_nms, "yolo-nms"),
    (with_nms, "yolo"),
    (yolonas, "yolonas"),
    (yolox, "yolox"),
    (ssd, "ssd"),
    (rfdetr, "rfdetr"),
]


@pytest.mark.parametrize(("outputs", "form"), CASES)
def test_every_form_says_the_same(outputs, form):
    rows = rows_of(outputs(), form, HEIGHT, WIDTH, 0.4, 20)
    assert rows.shape == (20, 6) and rows.dtype == np.float32
    np.testing.assert_allclose(rows[:3], WANTED, atol=1e-5)
    assert not rows[3:].any()
    assert {form for _, form in CASES} == set(FORMS)


def test_the_best_are_kept_and_what_is_unlikely_is_not():
    assert rows_of(yolo(), "yolo", HEIGHT, WIDTH, 0.4, 1)[:, 0].tolist() == [3.0]
    assert rows_of(yolo(), "yolo", HEIGHT, WIDTH, 0.6, 20)[:, 1].astype(bool).sum() == 2
    assert not rows_of({"y": np.zeros((0, 9), np.float32)}, "yolo", HEIGHT, WIDTH, 0.4, 20).any()


@pytest.mark.parametrize("count", [2, 3, 9])
def test_boxes_come_best_first_by_their_names_too(count):
    order = [2, 0, 1]
    named = {"boxes": corners()[order], "scores": chances().max(1)[order], "classes": chances().argmax(1)[order]}
    for outputs in (named, yolo()):
        found = boxes_of(outputs, "", HEIGHT, WIDTH, 0.3, count)
        assert [(int(box.label), round(box.score, 2)) for box in found] == [each[:2] for each in THINGS[:count]]


def test_overlapping_boxes_of_one_class_are_one_and_of_two_classes_two():
    box = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 0, 1, 0.3]], np.float32)
    scores = np.array([0.5, 0.9, 0.7], np.float32)
    assert kept_of(box, scores, np.array([1, 1, 1])).tolist() == [1, 2]
    assert kept_of(box, scores, np.array([1, 2, 1])).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("outputs", "form"),
    [
        ({"a": np.zeros((3, 4))}, "yolo"),
        ({"a": np.zeros((3, 9)), "b": np.zeros((3, 9))}, "yolo"),
        ({"a": np.zeros((3, 6))}, "yolonas"),
        ({"a": np.zeros((3, 9))}, "yolox"),
        ({"a": np.zeros((3, 9))}, "ssd"),
        ({"a": np.zeros((3, 4)), "b": np.zeros((4, 9))}, "rfdetr"),
        ({"a": np.zeros((3, 4)), "b": np.zeros((3, 1))}, "rfdetr"),
        ({"boxes": np.zeros((3, 4)), "classes": np.zeros(3), "scores": np.zeros(2)}, "ssd"),
    ],
)
def test_other_outputs_are_refused_with_their_shapes(outputs, form):
    with pytest.raises(BadInput, match=form):
        rows_of(outputs, form, HEIGHT, WIDTH, 0.4, 20)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_any_shapes_are_boxes_or_bad_input(form):
    rng = np.random.default_rng(3)
    shapes = [(), (0,), (3,), (1, 3), (3, 4), (2, 4), (3, 6), (0, 4), (1, 3, 6), (1, 84, 30), (3, 1), (1, 2, 2, 2)]
    for _ in range(500):
        outputs = {name: np.ones(shapes[rng.integers(len(shapes))]) for name in ("boxes", "scores", "classes", "x")}
        named = dict(list(outputs.items())[: rng.integers(5)])
        try:
            rows_of(named, form, HEIGHT, WIDTH, 0.4, 20)
        except BadInput:
            continue


def test_numbers_without_a_sign_are_the_same_boxes():
    boxes, scores = np.array([[30, 30, 40, 20]]), np.array([[3, 1, 9]])
    found = [
        rows_of({"a": boxes.astype(kind), "b": scores.astype(kind)}, "rfdetr", HEIGHT, WIDTH, 0.4, 1)
        for kind in ("uint8", "float32")
    ]
    assert np.allclose(*found) and found[0][0, 1] > 0.4


ODD = [np.nan, np.inf, -np.inf, 1e30]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", range(5))
def test_one_odd_number_costs_its_box_alone(odd, place):
    rows = np.array([[10, 10, 4, 4, 0.9], [30, 30, 4, 4, 0.8]], np.float32)
    rows[0, place] = odd
    outputs = {"output0": np.concatenate([rows, np.zeros((8, 5), np.float32)])}
    found = rows_of(outputs, "yolo", 48, 64, 0.5, 4)
    assert np.isfinite(found).all() and 0.8 in np.round(found[:, 1], 3)
    corners, scores = rows[:, :4], rows[:, 4]
    boxes = named_boxes({"boxes": corners, "scores": scores}, 0.5)
    assert all(np.isfinite(box[:4]).all() and np.isfinite(box.score) for box in boxes)
    assert round(boxes[-1].score, 3) == 0.8


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("outputs", "form"), [case for case in CASES if case[0] is not yolo_of_many_boxes])
def test_odd_numbers_of_any_place_are_no_warning_and_cost_their_detection_alone(outputs, form, kind):
    plain = outputs()
    for odd in [*ODD, -1e30, 6e4, -6e4, 3e38, -3e38, 1e308, -1e308]:
        with np.errstate(over="ignore"):
            number = kind(odd)
        for name in plain:
            for place in range(plain[name].shape[-1]):
                arrays = {other: array.astype(kind) for other, array in plain.items()}
                rows = arrays[name].reshape(-1) if arrays[name].size == len(THINGS) else arrays[name]
                odd_row = place % len(THINGS) if rows.ndim == 1 else 0
                if rows.ndim == 1:
                    rows[odd_row] = number
                else:
                    rows.reshape(-1, rows.shape[-1])[0, place] = number
                found = rows_of(arrays, form, HEIGHT, WIDTH, 0.4, 20)
                assert np.isfinite(found).all()
                for index, wanted in enumerate(WANTED):
                    is_there = np.isclose(found, wanted, atol=2e-3).all(axis=1).any()
                    assert is_there or index == odd_row, (odd, name, place, found[:4])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [*ODD, 1e308, -1e308])
@pytest.mark.parametrize("name", ["boxes", "scores", "classes"])
def test_odd_numbers_of_named_boxes_cost_their_box_alone(odd, name):
    table = {"boxes": corners().astype(float), "scores": np.array([0.9, 0.8, 0.7]), "classes": np.array([3.0, 1, 3])}
    table[name].reshape(3, -1)[0, -1] = odd
    boxes = named_boxes(table, 0.4)
    assert [box.score for box in boxes][-2:] == [0.8, 0.7]
    assert all(np.isfinite([*box[:4], box.score, float(box.label)]).all() for box in boxes)
    assert named_boxes({key: array[:0] for key, array in table.items()}, 0.4) == []


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e30, -1e30, -5.0])
def test_a_box_of_any_size_is_drawn(odd):
    pytest.importorskip("PIL", reason="the page draws with Pillow")
    from edgeserve.fronts.boxes_page import drawn
    from edgeserve.fronts.camera import FrameEnd, Seen

    seen = Seen(1, 0.0, 0, np.zeros((48, 64, 3), np.uint8))
    for place in range(4):
        sides = [10.0, 10.0, 5.0, 5.0]
        sides[place] = odd
        assert drawn(FrameEnd(seen, [Box(*sides, "名前\n", 1.0)], 1.0, False, ""), "1 of 1").startswith(b"\xff\xd8")
