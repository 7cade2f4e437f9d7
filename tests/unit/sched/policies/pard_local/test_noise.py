"""``pard_local`` where parts differ: the room it leaves for them, and with whom a cohort parts."""

from __future__ import annotations

from exact_device import MS, Device, ask, fan, model


def test_a_second_cohort_leaves_those_in_flight_room_for_more_parts():
    def play(counts):
        table = fan()
        table["lane"] = {"l": {}, "host": {}}
        table["model"] = {
            "look": model(5, 0, lanes=["l"]),
            "cut": model(3, 0, lanes=["host"]),
            "part": model(0, 4, 4, lanes=["l"]),
            "end": model(1, 0, lanes=["host"]),
        }
        table["app"]["app"]["node"] = [
            {"name": "look"},
            {"name": "cut", "fan_out": True},
            {"name": "part"},
            {"name": "end", "gather": True},
        ]
        device = Device(table)
        pipeline = device.scheduler.policies[0]._pipeline_of["app"]
        for count in counts * 20:
            pipeline.observe_parts(pipeline.nodes[1], count)
        device.ask(ask(1, 34))  # 5 + 3 + 4 * 4 + 1 = 25; with two parts more 33
        device.now_ns = 1 * MS
        device.ask(ask(2, 90))  # looking at it while the host cuts takes two of the milliseconds that are left
        device.advance(5)
        return sorted(batch[1:] for batch in device.batches if batch[0] > 0)

    assert play((4, 4)) == [("cut", [1]), ("look", [2])]
    assert play((2, 6)) == [("cut", [1])]


def parts_of(parts, *others):
    """Requests 1 to 3 begin together; a detector finds so many parts of 4 ms in each of them."""

    class Detector(Device):
        def _result(self, job):
            self.parts["look"] = parts.get(job.request_id, 1)
            return super()._result(job)

    table = fan()
    table["model"]["part"] = model(0, 4, 1)
    device = Detector(table)
    device.ask(*[ask(number, 60) for number in (1, 2, 3)], *others)
    device.advance()
    return {number: outcome for number, (outcome, _) in device.ends.items()}


def test_a_cohort_parts_with_who_costs_more_than_it_brings_where_others_wait():
    many = {2: 8}  # 2 + 1 + 8 + 1 parts of 4 ms + 3: all in time, if nobody else is to be served
    assert set(parts_of(many).values()) == {"completed"}
    waiting = [ask(number, 62, 1) for number in range(4, 12)]
    served = parts_of(many, *waiting)
    assert served[1] == served[3] == "completed" and served[2] == "dropped"
