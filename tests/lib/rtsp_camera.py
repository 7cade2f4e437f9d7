"""A camera that speaks RTSP: OPTIONS, DESCRIBE, SETUP and PLAY, VP8 over RTP in the same connection (RFC 2326, 7741).

Frames are encoded and cut into packets by FFmpeg. It hangs up after its last packet, as a camera that restarts.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from typing import Any, List

import numpy as np

SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\n"
    "m=video 0 RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\na=control:track\r\n"
)
KIND = 96
GAP_S = 0.02
LAST = 0x80  # of the second byte: a frame's last packet


def packets_of(frames: List[np.ndarray]) -> List[bytes]:
    """RTP packets of frames, uint8 [height, width, 3]."""
    import av

    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(1.0)
    with av.open(f"rtp://127.0.0.1:{receiver.getsockname()[1]}?pkt_size=1400", "w", format="rtp") as output:
        stream: Any = output.add_stream("libvpx", rate=50)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size = "yuv420p", 1
        stream.options = {"deadline": "realtime", "lag-in-frames": "0"}
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    packets = []
    while sum(bool(packet[1] & LAST) for packet in packets) < len(frames):
        packet = receiver.recv(2048)
        if packet[1] & 0x7F == KIND:
            packets.append(packet)
    receiver.close()
    return packets


class RtspCamera:
    """Serves ``packets`` to one connection after the other; for a ``with`` block."""

    def __init__(self, packets: List[bytes]) -> None:
        self._packets = packets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.closing = threading.Event()
        self.played = 0
        self.url = f"rtsp://127.0.0.1:{self._listener.getsockname()[1]}/camera"

    def __enter__(self) -> RtspCamera:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._listener.accept()
                with connection:
                    self._answer(connection)
            except OSError:
                continue

    def _answer(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = file.readline()
                if not line:
                    return
                head += line
            text = head.decode()
            verb = text.split(" ", 1)[0]
            number = re.search(r"CSeq: *(\d+)", text, re.IGNORECASE)
            extra, body = "", ""
            if verb == "OPTIONS":
                extra = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
            elif verb == "DESCRIBE":
                body = SDP
                extra = f"Content-Base: {self.url}/\r\nContent-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
            elif verb == "SETUP":
                extra = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n"
            else:
                extra = "Session: 1\r\n"
            connection.sendall(f"RTSP/1.0 200 OK\r\nCSeq: {number and number[1]}\r\n{extra}\r\n{body}".encode())
            if verb == "PLAY":
                return self._play(connection)

    def _play(self, connection: socket.socket) -> None:
        self.played += 1
        for packet in self._packets:
            connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)
            if packet[1] & LAST and self.closing.wait(GAP_S):
                return
