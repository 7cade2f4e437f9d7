"""What the bus itself costs: encode, decode, ``Bus.receive`` + ``Bus.answer``, and the echo over ipc beside bare pyzmq.

    python scripts/bench/wire.py

The server here is the bus and nothing else (no scheduler, no lane): an upper bound for ``bus.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
import timeit
from typing import Any, Callable, List

import numpy as np
import zmq

from edgeserve.client import Client
from edgeserve.ipc import wire
from edgeserve.ipc.bus import Ask, Bus
from edgeserve.units import NS_PER_S

ROUNDS = 3


def cost_us(call: Callable[[], Any], number: int = 5000) -> float:
    """Best of five, in microseconds a call."""
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def bus_at(endpoint: str, context: Any = None) -> Bus:
    return Bus(
        [endpoint],
        clock_ns=time.monotonic_ns,
        message_bytes_max=64 * 1024**2,
        clients_max=64,
        client_silence_ns=10**10,
        context=context,
    )


def serve_bus(endpoint: str) -> None:
    bus = bus_at(endpoint)
    never, _ringer = os.pipe()
    while True:
        for news in bus.receive():
            if type(news) is Ask:
                bus.answer(news, news.inputs)
        now_ns = time.monotonic_ns()
        bus.wait(never, now_ns, now_ns + NS_PER_S)


def serve_bare(endpoint: str, copy: bool) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        router.send_multipart(router.recv_multipart(copy=copy), copy=copy)


def echo_rate(endpoint: str, frames: List[Any], in_flight: int, seconds: float, copy: bool) -> List[float]:
    """Round trips of a raw DEALER with one message repeated (its id advances): [per second, p50 in us]."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(endpoint)
    key, sent, times = 0, {}, []
    end = time.perf_counter() + seconds

    def send() -> None:
        nonlocal key
        key += 1
        sent[key] = time.perf_counter()
        frames[0] = wire.pack_header({"kind": "infer", "id": key, "app": "echo", "tensors": frames[2]})
        dealer.send_multipart(frames[:2], copy=copy)

    for _ in range(in_flight):
        send()
    begin = time.perf_counter()
    while time.perf_counter() < end:
        reply = dealer.recv_multipart(copy=copy)
        header = reply[0] if copy else reply[0].bytes
        times.append(time.perf_counter() - sent.pop(wire.unpack_header(header)["id"]))
        send()
    rate = len(times) / (time.perf_counter() - begin)
    dealer.close(0)
    return [rate, statistics.median(times) * 1e6]


def client_rate(endpoint: str, value: np.ndarray, in_flight: int, seconds: float) -> float:
    with Client(endpoint) as client:
        waiting = [client.submit("echo", {"x": value}, copy=False) for _ in range(in_flight)]
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            waiting.pop(0).result()
            waiting.append(client.submit("echo", {"x": value}, copy=False))
            count += 1
        rate = count / (time.perf_counter() - begin)
        for future in waiting:
            future.result()
    return rate


def costs() -> None:
    inputs = {"x": np.zeros(64, np.float32)}
    request = wire.encode_request(7, "echo", inputs, 1, {"slo_ms": 100})
    answer = wire.encode_answer(7, inputs, 10**8)

    def decode_request() -> None:
        fields = wire.unpack_header(request[0])
        fields.pop("kind")
        wire.take_key(fields)
        wire.decode_infer(wire.Ask(), fields, request[1:], 10**8)

    print(f"encode request {cost_us(lambda: wire.encode_request(7, 'echo', inputs, 1, {'slo_ms': 100})):6.2f} us")
    print(f"decode request {cost_us(decode_request):6.2f} us")
    print(f"encode answer  {cost_us(lambda: wire.encode_answer(7, inputs, 10**8)):6.2f} us")
    print(f"decode answer  {cost_us(lambda: wire.decode_reply(answer, 10**8)):6.2f} us")
    context: Any = zmq.Context()
    bus = bus_at("inproc://bench", context)
    dealer = context.socket(zmq.DEALER)
    dealer.connect("inproc://bench")

    def serve() -> None:
        dealer.send(request[0], zmq.SNDMORE)
        dealer.send(request[1])
        for ask in bus.receive():
            bus.answer(ask, ask.inputs)  # type: ignore[union-attr]
        dealer.recv()
        dealer.recv()

    def bare() -> None:
        dealer.send(request[0], zmq.SNDMORE)
        dealer.send(request[1])
        dealer.recv()
        dealer.recv()

    both = cost_us(serve)
    bus.close()
    echo = context.socket(zmq.DEALER)
    echo.bind("inproc://bare")
    dealer = context.socket(zmq.DEALER)
    dealer.connect("inproc://bare")

    def client_side() -> None:
        bare_send()
        echo.send_multipart(echo.recv_multipart())
        dealer.recv()
        dealer.recv()

    def bare_send() -> None:
        dealer.send(request[0], zmq.SNDMORE)
        dealer.send(request[1])

    print(
        f"receive+answer {both:6.2f} us with the test's own send and receive; a bare echo of the same "
        f"{cost_us(client_side):6.2f} us"
    )
    context.destroy(0)


def main() -> None:
    costs()
    folder = tempfile.mkdtemp()
    for name, value, in_flight in (
        ("256 B", np.zeros(64, np.float32), 16),
        ("256 B", np.zeros(64, np.float32), 1),
        ("602 KB", np.zeros(150528, np.float32), 16),
    ):
        copy = value.nbytes < 65536
        rows: dict[str, List[Any]] = {"bare": [], "bus": [], "bus, our Client": []}
        for round_ in range(ROUNDS):
            for kind, target, args in (("bare", serve_bare, (copy,)), ("bus", serve_bus, ())):
                endpoint = f"ipc://{folder}/{kind}{round_}"
                server = multiprocessing.get_context("fork").Process(target=target, args=(endpoint, *args), daemon=True)
                server.start()
                time.sleep(0.2)
                table = [["x", "float32", [value.size]]]
                rows[kind].append(echo_rate(endpoint, [b"", value.tobytes(), table], in_flight, 0.7, copy))
                if kind == "bus":
                    rows["bus, our Client"].append([client_rate(endpoint, value, in_flight, 0.7), 0.0])
                server.terminate()
                server.join()
        medians = {kind: [statistics.median(column) for column in zip(*row)] for kind, row in rows.items()}
        for kind, (rate, p50) in medians.items():
            print(
                f"{name:7} {in_flight:2} in flight  {kind:16} {rate:8.0f}/s  {rate / medians['bare'][0]:5.2f} of bare"
                + (f"  p50 {p50:6.0f} us" if p50 else "")
            )
    os.system(f"rm -r {folder}")


if __name__ == "__main__":
    main()
