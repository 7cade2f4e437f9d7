"""The front for Frigate against the contract of fronts, asked over the socket that Frigate uses."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable

import numpy as np
import zmq
import zmq.asyncio

from edgeserve.client import AsyncClient
from edgeserve.front import Front
from edgeserve.fronts.frigate import Frigate, FrigateFront
from edgeserve.testing.front_conformance import (
    ANSWERED,
    EMPTY,
    FAILED,
    LATE,
    REFUSED,
    SERVER_GONE,
    TOO_LARGE,
    FrontConformance,
)

SIZE = (8, 8, 3)
ROWS = np.zeros((9, 40), np.float32)
ROWS[:, 0] = [4, 4, 4, 4, 0.9, 0, 0, 0, 0]
ZEROS = "Frigate's protocol has no errors: an image without boxes"


class TestFrigate(FrontConformance):
    INPUTS = {"image": {"dtype": "uint8", "shape": list(SIZE)}}
    OUTPUTS = {"output0": ROWS}
    CLIENTS_NAME_APPS = False
    SAYS = dict.fromkeys((LATE, REFUSED, FAILED, SERVER_GONE, TOO_LARGE), (EMPTY, ZEROS))

    def make(self, client: AsyncClient, app: str) -> Front:
        return FrigateFront(client, Frigate(app=app, listen="tcp://127.0.0.1:*", timeout_ms=5000.0))

    async def ask(self, place: str, app: str, head: Any = None) -> str:
        socket = zmq.asyncio.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(place)
            about = {"shape": SIZE, "dtype": "uint8", "model_type": "yologeneric", **(head or {})}
            await socket.send_multipart([json.dumps(about).encode(), bytes(np.prod(SIZE))])
            (frame,) = await socket.recv_multipart()
            return ANSWERED if np.frombuffer(frame, np.float32).any() else EMPTY
        finally:
            socket.close()

    async def ask_too_much(self, place: str, app: str) -> str:
        return await self.ask(place, app, {"model_name": "x" * 60_000})

    async def ask_unread(self, place: str, app: str) -> Callable[[], Any]:
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.connect(place)
        head = json.dumps({"shape": SIZE, "dtype": "uint8"}).encode()
        for _ in range(200):
            try:
                await asyncio.wait_for(socket.send_multipart([b"", head, bytes(np.prod(SIZE))]), 0.1)
            except asyncio.TimeoutError:
                break
        return socket.close
