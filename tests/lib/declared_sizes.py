"""A few kB that declare much, each given to what reads it: how much memory and time that took, and how it ended.

As a program it runs every case whose packages are there, one after the other, and prints a line of JSON for each.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import io
import json
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

SECONDS_MAX = 8  # of one case, by an alarm
ADDRESSES_MAX = 16 << 30  # what a case may ask the system for at most: more is an error here, and no dead machine

UINT8 = {"dtype": "uint8", "shape": [-1, -1, 3]}
NUMBERS = {"dtype": "float32", "shape": [-1]}


# --- files --------------------------------------------------------------------------------------------------------


def wav(rate: int = 16_000, channels: int = 1, width: int = 2, says: int = -1, count: int = 4000) -> bytes:
    data = bytes(count)
    form = struct.pack("<HHIIHH", 1, channels, rate, (rate * width) & (2**32 - 1), channels * width & 0xFFFF, 8 * width)
    head = b"RIFF" + struct.pack("<I", 36 + count) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", count if says < 0 else says) + data


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes) -> bytes:
    """Black, one bit a pixel; with ``more`` chunks ahead of the pixels."""
    rows = zlib.compress(bytes(min((width // 8 + 1) * height, 32 << 20)), 1)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def bmp(width: int, height: int) -> bytes:
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + about


def webp(width: int, height: int) -> bytes:
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"VP8X" + struct.pack("<I", 10) + bytes([2, 0, 0, 0]) + size + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def gif(width: int, height: int, frames: int) -> bytes:
    one = b"\x2c" + struct.pack("<HHHH", 0, 0, width, height) + b"\0\2\2\x4c\1\0"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0" + one * frames + b";"


def tiff(width: int, height: int) -> bytes:
    tags = ((256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (273, 4, 1, 8), (279, 4, 2**30, 8))
    return (
        b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 5) + b"".join([struct.pack("<HHII", *tag) for tag in tags])
    )


def jpeg(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (16, 16)).save(file, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 65535))
    data = bytearray(file.getvalue())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def npy(shape: str, descr: Any = "<f4", body: bytes = b"", version: int = 1) -> bytes:
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(head)) + head + body


def npz(names: int = 1, **members: bytes) -> str:
    """The path of an archive. Its directory names each member so many times."""
    path = os.path.join(tempfile.mkdtemp(prefix="es"), "a.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name + ".npy", data)
            for number in range(1, names):
                again = copy.copy(archive.filelist[-1])
                again.filename = f"{name}{number}.npy"
                archive.filelist.append(again)
    return path


def packed(text: bytes) -> bytes:
    return b"a\0\0" + zlib.compress(text)


def zeros(count: int) -> str:
    """The path of an archive of so many arrays of 128 MiB each, all of which are the same bytes of the file."""
    return npz(count, a=npy("(134217728,)", "|u1", bytes(2**27)))


def cdr(after_header: bytes) -> bytes:
    """A message of ROS whose header has a frame of no name."""
    return b"\0\1\0\0" + bytes(8) + struct.pack("<I", 1) + bytes(4) + after_header


def recording(line: str) -> str:
    """The path of a recording with one step."""
    from edgeserve.taps import trace

    path = os.path.join(tempfile.mkdtemp(prefix="es"), "steps.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps({"format": trace.FORMAT}) + "\n" + line + "\n")
    return path


# --- what reads them ------------------------------------------------------------------------------------------------


def hear_file(data: bytes) -> Any:
    from edgeserve.fronts.http.audio_routes import bytes_to_read, sound_of

    assert bytes_to_read(data) < 64 * 4 * len(data)
    return sound_of(data)


def hear(count: int = 40_000, rate: Any = 16_000, width: Any = 2, channels: Any = 1) -> Any:
    from edgeserve.front.sound import Converter

    return Converter(60).convert(bytes(count), rate, width, channels)


def see(data: bytes) -> Any:
    from edgeserve.front.images import decode_file

    return decode_file("image", data, UINT8, 64 << 20)


def load(data: bytes) -> Any:
    from edgeserve.front.images import decode_file

    return decode_file("x", data, NUMBERS, 64 << 20)


def history(path: str) -> Any:
    from edgeserve.predict.history import read_arrays

    return read_arrays(path)


def length_model(path: str) -> Any:
    from edgeserve.predict.length import load_length_model

    return load_length_model(path)


def body(data: bytes, encoding: str, room: int) -> Any:
    """A compressed body where there is ``room`` for bodies."""
    from edgeserve.front import Places
    from edgeserve.fronts.http.asgi import Bounds, Call
    from edgeserve.fronts.http.settings import HttpConfig

    parts = [{"type": "http.request", "body": data}]

    async def receive() -> Mapping[str, Any]:
        return parts.pop()

    bounds = Bounds(HttpConfig(), Places(room, "bytes"), None)
    scope = {"method": "POST", "headers": [(b"content-encoding", encoding.encode())], "client": ("192.0.2.7", 1)}
    return asyncio.run(Call(scope, receive, None, bounds).body())  # type: ignore[arg-type]


def picture(**fields: Any) -> Any:
    from edgeserve.fronts.ros_messages import pixels

    usual = {"encoding": "rgb8", "height": 2, "width": 2, "step": 0, "data": bytes(12), "is_bigendian": 0}
    return pixels(SimpleNamespace(**{**usual, **fields}))


def compressed(data: bytes) -> Any:
    from edgeserve.fronts.ros_messages import decompressed

    return decompressed(SimpleNamespace(format="png", data=data))


def cloud(count: int = 3, points: int = 20_000, **fields: Any) -> Any:
    from edgeserve.fronts.ros_messages import points as read

    names = ["x", "y", "z", *[f"f{number}" for number in range(count - 3)]]
    about = [SimpleNamespace(name=name, offset=0, datatype=7, count=1) for name in names]
    usual = {"height": 1, "width": points, "point_step": 4, "row_step": 0, "data": bytes(4 * points), "is_bigendian": 0}
    return read(SimpleNamespace(fields=about, **{**usual, **fields}))


def sent(kind: str, data: bytes) -> Any:
    """Bytes of a message as a bag of ROS has them."""
    from edgeserve.fronts.ros_messages import bag_types

    try:
        return bag_types()[0].deserialize_cdr(data, kind)
    except Exception as error:
        from edgeserve.errors import BadInput

        raise BadInput(str(error)) from error  # as both fronts do


def frigate(header: Any, image: bytes = bytes(16)) -> Any:
    from edgeserve.fronts.frigate import header_of

    return header_of([header if isinstance(header, bytes) else json.dumps(header).encode(), image])


def mqtt(payload: bytes) -> Any:
    from edgeserve.front.served_apps import inputs_from_json

    return inputs_from_json("a", {"x": NUMBERS}, payload)


def tensor(datatype: str, shape: List[int], raw: bytes) -> Any:
    from edgeserve.fronts.http.tensors import check_shape, from_raw

    return from_raw("x", datatype, check_shape("x", shape), raw)


def table(header: Mapping[str, Any], length: str = "") -> Any:
    from edgeserve.fronts.http.kserve_json import read_inputs, split_body

    data = json.dumps(header).encode()
    told, binary = split_body(data + bytes(64), length or str(len(data)))
    return read_inputs(told["inputs"], binary)


def bus(*frames: bytes, **fields: Any) -> Any:
    from edgeserve.ipc import wire

    ask = wire.Ask()
    wire.decode_infer(ask, {"app": "a", **fields}, frames, 64 << 20)
    return ask.inputs


def bus_head(data: bytes) -> Any:
    """The first frame of a message, in both ways that read it."""
    from edgeserve.ipc import wire

    return wire.read_infer(data), wire.unpack_header(data)


def packed_head(**fields: Any) -> bytes:
    from edgeserve.ipc import wire

    return wire.pack_header({"kind": "infer", "id": 1, "app": "a", **fields})


def child(data: bytes) -> Any:
    """The answer of a model's process."""
    import pickle

    from edgeserve.errors import EngineError
    from edgeserve.offload.channel import Channel

    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            return channel.receive(5)
        except (EOFError, pickle.UnpicklingError) as error:
            raise EngineError(str(error)) from error  # as its caller does
        finally:
            channel.close()


def answered(pickled: bytes) -> bytes:
    return struct.pack("!IQ", 1, len(pickled)) + pickled


def chat(**fields: Any) -> Any:
    from edgeserve.fronts.http.chat import read_request

    usual = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return read_request({**usual, **fields}, {"messages": {"dtype": "text", "shape": []}})


def replayed(line: str) -> Any:
    from edgeserve.taps.trace import read_recording

    return read_recording(recording(line))


def source(text: str) -> Any:
    from edgeserve.fronts.sources import source_of

    return source_of(text, time.monotonic, 30.0, "")


MANY = 2**32 - 1
NUMBER = b"J\x00\x00\x00\x7f"  # pickle's 2,130,706,432
RANGE = b"cbuiltins\nrange\n(" + NUMBER + b"tR"
CLOUD, COMPRESSED = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/CompressedImage"

CASES: Dict[str, Tuple[Callable[..., Any], Any]] = {
    # name -> what reads it, and its arguments as a tuple or by name, or a function that makes them
    "wav: 1 Hz": (hear_file, lambda: (wav(rate=1),)),
    "wav: 100 Hz": (hear_file, lambda: (wav(rate=100),)),
    "wav: 4 GHz": (hear_file, lambda: (wav(rate=MANY),)),
    "wav: no rate": (hear_file, lambda: (wav(rate=0),)),
    "wav: 65535 channels": (hear_file, lambda: (wav(channels=65535),)),
    "wav: samples of 8 kB": (hear_file, lambda: (wav(width=8191),)),
    "wav: 4 GB follow": (hear_file, lambda: (wav(says=MANY),)),
    "wyoming: 1 Hz": (hear, {"rate": 1}),
    "wyoming: 3999 Hz": (hear, {"rate": 3999}),
    "wyoming: a rate below none": (hear, {"rate": -16_000}),
    "wyoming: 10^30 Hz": (hear, {"rate": 10**30}),
    "wyoming: a rate that is no number": (hear, {"rate": "16000"}),
    "wyoming: a rate without end": (hear, {"rate": float("inf")}),
    "wyoming: samples of 1 GB": (hear, {"width": 2**30}),
    "wyoming: 10^9 channels": (hear, {"channels": 10**9}),
    "wyoming: no channel": (hear, {"channels": 0}),
    "wyoming: channels below none": (hear, {"channels": -1}),
    "wyoming: an hour in a chunk": (hear, {"count": 4 << 20, "rate": 4000, "width": 1}),
    "png: 13,000 x 13,000": (see, lambda: (png(13_000, 13_000),)),
    "png: 2^31 x 2^31": (see, lambda: (png(2**31 - 1, 2**31 - 1),)),
    "png: text of 100 MB": (see, lambda: (png(8, 8, chunk(b"zTXt", packed(bytes(10**8)))),)),
    "png: colours of 100 MB": (see, lambda: (png(8, 8, chunk(b"iCCP", packed(bytes(10**8)))),)),
    "bmp: 13,000 x 13,000": (see, lambda: (bmp(13_000, 13_000),)),
    "bmp: 2^31 x 2^31": (see, lambda: (bmp(2**31 - 1, 2**31 - 1),)),
    "webp: 16,384 x 16,384": (see, lambda: (webp(16_384, 16_384),)),
    "webp: 2^24 x 2^24": (see, lambda: (webp(2**24, 2**24),)),
    "jpeg: 13,000 x 13,000": (see, lambda: (jpeg(13_000, 13_000),)),
    "jpeg: 65,535 x 65,535": (see, lambda: (jpeg(65_535, 65_535),)),
    "gif: 1,000 frames": (see, lambda: (gif(60_000, 60_000, 1000),)),
    "tiff: 2^31 x 2^31": (see, lambda: (tiff(2**31 - 1, 2**31 - 1),)),
    "npy: 4 TB": (load, lambda: (npy("(1000000000000,)"),)),
    "npy: sizes below none": (load, lambda: (npy("(-1, -4)", body=bytes(16)),)),
    "npy: a size of 5,000 digits": (load, lambda: (npy(f"({'9' * 5000},)"),)),
    "npy: a head in 200 brackets": (load, lambda: (npy("(" * 200 + ")" * 200),)),
    "npy: a head without end": (load, lambda: (npy("'''", version=2),)),
    "npy: items of 2 GB": (load, lambda: (npy("()", "V2147483647"),)),
    "npy: objects": (load, lambda: (npy("(2,)", "|O", b"cos\nsystem\n"),)),
    "npy: fewer numbers than it says": (load, lambda: (npy("(5,)", body=bytes(16)),)),
    "npy: an unknown version": (load, lambda: (npy("(4,)", body=bytes(16), version=3),)),
    "npy: 10^18 items of nothing": (load, lambda: (npy("(1000000000000000000,)", "|S0"),)),
    "npy: half a head": (load, (b"\x93NUMPY\x01",)),
    "npz: 400 GB": (history, lambda: (npz(outputs=npy("(100000000000,)")),)),
    "npz: 1.1 GB of zeros": (history, lambda: (zeros(9),)),
    "npz: a head in 200 brackets": (history, lambda: (npz(outputs=npy("(" * 200)),)),
    "npz: a model's 100 MB": (length_model, lambda: (npz(header=npy("(100000000,)", "|u1", bytes(10**8))),)),
    "npz: a model's 400 GB": (length_model, lambda: (npz(header=npy("(100000000000,)")),)),
    "gzip: 256 MB": (body, lambda: (gzip.compress(bytes(2**28), 1), "gzip", 1 << 30)),
    "gzip: 32 MB without room": (body, lambda: (gzip.compress(bytes(2**25)), "gzip", 8 << 20)),
    "deflate: 256 MB": (body, lambda: (zlib.compress(bytes(2**28), 1), "deflate", 1 << 30)),
    "ros: 4e9 rows without a column": (picture, {"height": MANY, "width": 0}),
    "ros: 4e9 rows, nv12": (picture, {"height": MANY - 1, "width": 0, "encoding": "nv12"}),
    "ros: 4e9 rows, bayer": (picture, {"height": MANY - 1, "width": 0, "encoding": "bayer_rggb8"}),
    "ros: 4e9 rows, yuyv": (picture, {"height": MANY - 1, "width": 0, "encoding": "yuyv"}),
    "ros: 4e9 columns without a row": (picture, {"height": 0, "width": MANY}),
    "ros: 4e9 x 4e9": (picture, {"height": MANY, "width": MANY}),
    "ros: rows of 4 GB": (picture, {"step": MANY}),
    "ros: png of 13,000 x 13,000": (compressed, lambda: (png(13_000, 13_000),)),
    "ros: a cloud of 5,000 fields": (cloud, {"count": 5000}),
    "ros: a cloud of 4e9 x 4e9": (cloud, {"height": MANY, "width": MANY}),
    "ros: points of 4 GB": (cloud, {"point_step": MANY}),
    "ros: points of nothing": (cloud, {"point_step": 0, "height": MANY}),
    "cdr: 4e9 fields": (sent, (CLOUD, cdr(bytes(8) + struct.pack("<I", MANY) + bytes(400)))),
    "cdr: 4e9 bytes": (sent, (COMPRESSED, cdr(struct.pack("<I", 1) + bytes(4) + struct.pack("<I", MANY)))),
    "cdr: a text of 4 GB": (sent, (COMPRESSED, cdr(struct.pack("<I", MANY)))),
    "frigate: a size without end": (frigate, ({"shape": [1e400, 1, 3], "dtype": "uint8"},)),
    "frigate: 10^30 x 10^30": (frigate, ({"shape": [10**30, 10**30], "dtype": "uint8"},)),
    "frigate: items of 8 TB": (frigate, ({"shape": [2, 2], "dtype": "(1000000,1000000)f8"},)),
    "frigate: texts of 4 GB": (frigate, ({"shape": [2, 2], "dtype": "U1000000000"},)),
    "frigate: a header of 1 MB": (frigate, (b"[" * 10**6,)),
    "frigate: a type in 4,000 brackets": (frigate, ({"shape": [2, 2], "dtype": "(" * 4000},)),
    "mqtt: 4,000 brackets": (mqtt, (b'{"x": ' + b"[" * 4000 + b"]" * 4000 + b"}",)),
    "mqtt: a number of 10,000 digits": (mqtt, (b'{"x": [' + b"9" * 10_000 + b"]}",)),
    "kserve: 2^40 x 2^40": (tensor, ("FP32", [2**40, 2**40], bytes(8))),
    "kserve: a text of 4 GB": (tensor, ("BYTES", [1], struct.pack("<I", MANY) + b"abc")),
    "kserve: 4 GB follow": (table, ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2**30],
                                    "parameters": {"binary_data_size": 2**32}}]},)),
    "kserve: a head of 4,000 digits": (table, ({"inputs": []}, "9" * 4000)),
    "kserve: a head of a digit that is none": (table, ({"inputs": []}, "\xb2")),
    "bus: 2^62 x 2^62": (bus, lambda: (_by_name((bytes(8),), tensors=[["x", "float32", [2**62, 2**62]]]))),
    "bus: 4 GB follow": (bus, lambda: (_by_name((bytes(8),), tensors=[["x", "float32", [2**30]]]))),
    "bus: 10^4 axes": (bus, lambda: (_by_name((bytes(4),), tensors=[["x", "float32", [1] * 10_000]]))),
    "bus: lists of 65,535 in lists": (bus_head, (b"\x01" + b"\xdd\x00\x00\xff\xff" * 1000,)),
    "bus: 250,000 tensors": (bus_head, lambda: (packed_head(tensors=[["", "", []]] * 250_000),)),
    "child: 4e9 blocks": (child, (struct.pack("!I", MANY),)),
    "child: a block of 4 EB": (child, (struct.pack("!IQ", 1, 2**62),)),
    "child: a block of 2^64 bytes": (child, (struct.pack("!IQ", 1, 2**64 - 1),)),
    "child: 2 GB of zeros": (child, (answered(b"\x80\x04cbuiltins\nbytearray\n(" + NUMBER + b"tR."),)),
    "child: a set of a range": (child, (answered(b"\x80\x04cbuiltins\nset\n(" + RANGE + b"tR."),)),
    "child: a queue of a range": (child, (answered(b"\x80\x04ccollections\ndeque\n(" + RANGE + b"tR."),)),
    "chat: 10^9 answers": (chat, {"n": 10**9}),
    "chat: answers without end": (chat, {"n": 1e308}),
    "recording: a time without end": (replayed, ('{"now": 1e999, "events": [], "actions": []}',)),
    "recording: 100,000 brackets": (replayed, ("[" * 100_000,)),
    "camera: a pattern of 10^12 pixels": (source, ("test:1000000x1000000",)),
}  # fmt: skip

NEEDS = {
    **dict.fromkeys(("png", "bmp", "webp", "jpeg", "gif", "tiff"), "PIL"),
    **dict.fromkeys(("wav", "gzip", "deflate", "kserve"), "starlette"),
    "cdr": "rosbags",
}
"""Kind of case -> the package that it needs."""


def _by_name(frames: Tuple[bytes, ...], **fields: Any) -> Any:
    return frames, fields


def highest_mib() -> float:
    """The most memory that this process had since :func:`begin_anew`."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) / 1024


def begin_anew() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class TookTooLong(BaseException):
    """No error that a reader could catch."""


def run(name: str) -> Dict[str, Any]:
    """One case: memory in MiB, processor time in seconds, and what was raised."""
    reads, given = CASES[name]
    arguments = given() if callable(given) else given
    positional: Tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}
    if isinstance(arguments, dict):
        named = arguments
    elif len(arguments) == 2 and isinstance(arguments[1], dict) and isinstance(arguments[0], tuple):
        positional, named = arguments
    else:
        positional = arguments

    def give_up(*_: Any) -> None:
        raise TookTooLong

    begin_anew()
    before_mib, before_s, raised = highest_mib(), time.process_time(), ""
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_MAX)
    try:
        reads(*positional, **named)
    except BaseException as error:  # noqa: BLE001 the test judges it
        raised = ", ".join(kind.__name__ for kind in type(error).__mro__)
    signal.alarm(0)
    return {"name": name, "mib": highest_mib() - before_mib, "s": time.process_time() - before_s, "raised": raised}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MAX, ADDRESSES_MAX))
    np.fft.rfft(np.zeros(8))
    with tempfile.TemporaryDirectory(prefix="es") as tempfile.tempdir:
        for name in sys.argv[1:]:
            print(json.dumps(run(name)), flush=True)


if __name__ == "__main__":
    main()
