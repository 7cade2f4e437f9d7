"""The pictures that cameras publish on a broker: the newest of each is looked at, and what is seen is published."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, Dict, List, Set

import aiomqtt

from edgeserve.client import AsyncClient
from edgeserve.errors import EdgeServeError
from edgeserve.front import ServedApp, Troubles
from edgeserve.front.images import decode_file
from edgeserve.fronts.detections import Box, boxes_of
from edgeserve.fronts.mqtt_inbox import PAYLOAD_BYTES_MAX, Arrived, check_size
from edgeserve.fronts.mqtt_settings import ANY, Mqtt

DETECTIONS_MAX = 20


class Cameras:
    """The cameras of one front. ``detector`` looks at their pictures; ``counts`` and ``troubles`` are the front's."""

    def __init__(
        self, client: AsyncClient, options: Mqtt, detector: ServedApp, counts: Counter[str], troubles: Troubles
    ) -> None:
        self._client = client
        self._options = options
        self._detector = detector
        self._counts = counts
        self._troubles = troubles
        self._pictures: Dict[str, Arrived] = {}  # the newest that waits, by camera
        self._looking: Set[str] = set()
        self._seen: Dict[str, Counter[str]] = {}

    def take(self, camera: str, picture: Arrived) -> bool:
        """Keep a picture until it is looked at, in place of one that waits. True if :meth:`look_at` has to be begun."""
        picture.users += 1
        if camera in self._pictures:
            self._pictures.pop(camera).close()
        self._pictures[camera] = picture
        is_idle = camera not in self._looking
        self._looking.add(camera)
        return is_idle

    async def look_at(self, broker: aiomqtt.Client, camera: str) -> None:
        """Look at the newest picture of a camera, until none waits. What came between two is never looked at."""
        try:
            while camera in self._pictures:
                picture = self._pictures.pop(camera)
                try:
                    found = await self._detections(camera, picture.payload)
                except Exception as error:  # noqa: BLE001 outputs of any form come from the app: the next picture is looked at
                    kind = error.code if isinstance(error, EdgeServeError) else type(error).__name__
                    self._counts[f"pictures: {kind}"] += 1
                    self._troubles.tell(kind, f"a picture of {camera} is not looked at: {kind}: {error}")
                    continue
                finally:
                    picture.close()
                self._counts["pictures"] += 1
                await self._show(broker, camera, found)
        finally:
            self._looking.discard(camera)

    async def _detections(self, camera: str, picture: bytes) -> List[Dict[str, Any]]:
        app = self._detector
        about, loop = app.inputs[app.input], asyncio.get_running_loop()
        check_size("a picture", picture)
        array = await loop.run_in_executor(None, decode_file, app.input, picture, about, PAYLOAD_BYTES_MAX)
        options: Dict[str, Any] = {"stream": f"camera-{camera}"} if app.streams else {}
        answer = await self._client.infer(app.name, {app.input: array}, origin=f"camera:{camera}", **options)
        shape = array.shape
        height, width = (shape[-3], shape[-2]) if shape[-1] in (1, 3) else (shape[-2], shape[-1])
        found = boxes_of(answer.outputs, self._options.form, height, width, self._options.score_min, DETECTIONS_MAX)
        return [self._told_of(box, height, width) for box in found]

    def _told_of(self, box: Box, height: int, width: int) -> Dict[str, Any]:
        labels = self._options.labels
        label = labels[int(box.label)] if box.label.isdecimal() and int(box.label) < len(labels) else box.label
        top, bottom = (box.y - box.height / 2) / height, (box.y + box.height / 2) / height
        left, right = (box.x - box.width / 2) / width, (box.x + box.width / 2) / width
        sides = [round(min(1.0, max(0.0, side)), 4) for side in (top, left, bottom, right)]
        return {"label": label, "score": round(box.score, 3), "box": sides}

    async def _show(self, broker: aiomqtt.Client, camera: str, found: List[Dict[str, Any]]) -> None:
        labels = Counter(each["label"] for each in found)
        labels[ANY] = len(found)
        base = self._options.base
        told = {"count": len(found), "labels": labels, "detections": found}
        await broker.publish(f"{base}/detections/{camera}", json.dumps(told))
        before, self._seen[camera] = self._seen.get(camera, Counter()), labels
        for label in self._options.watched:
            if labels[label] and not before[label]:
                best = next((each for each in found if label in (ANY, each["label"])), {})
                event = {**best, "event_type": label, "count": labels[label]}
                await broker.publish(f"{base}/events/{camera}", json.dumps(event), qos=1)
