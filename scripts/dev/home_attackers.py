"""Attackers of the fronts for MQTT and cameras for ``isolation.py``, and the clients beside them, as in
``front_attackers.py``.

Over MQTT clients and attackers are known by the name in their topics, which a broker would keep for one user each. The
camera's clients are viewers of its page. Arguments eight and nine of an attacker are HOST:PORT of the broker and of the
page.
"""

from __future__ import annotations

from typing import Dict

from dev.front_attackers import COUNT, TIMED

ASKERS = [f"client{number}" for number in range(8)]
"""Names with a share of their own."""

MQTT_CALLS = """
import itertools, json, queue, random, threading, time
import paho.mqtt.client as paho
numbers = itertools.count()
def dial(topic="", heard=None):
    one, ready = paho.Client(paho.CallbackAPIVersion.VERSION2), threading.Event()
    one.on_message = heard
    one.on_connect = lambda *args: one.subscribe(topic, 1) if topic else ready.set()
    one.on_subscribe = lambda *args: ready.set()
    host, port = place.split(":")
    one.connect(host, int(port))
    one.loop_start()
    ready.wait(10)
    return one
"""

MQTT_CLIENT = (
    COUNT
    + MQTT_CALLS
    + """
WORKERS = 8
def asker():
    who, answers = f"client{next(numbers) % WORKERS}", queue.Queue()
    topic = f"edgeserve/house/answer/say/{who}"
    one = dial(topic, lambda client, data, message: message.topic == topic and answers.put(message.payload))
    def ask():
        one.publish(f"edgeserve/house/ask/say/{who}", "hi", 1)
        return "completed" if json.loads(answers.get(timeout=10)).get("text") == "hi" else "refused"
    return ask
asker()()
"""
    + TIMED
)

MQTT_BEGIN = "import sys\nplace = sys.argv[7]\n" + MQTT_CALLS

MQTT_ATTACKS: Dict[str, str] = {
    "asks at full rate": """
one = dial()
while True:
    for _ in range(50):
        one.publish("edgeserve/house/ask/say/attacker", "hi")
    time.sleep(0.02)
""",
    "asks by the names of many": """
one = dial()
while True:
    one.publish(f"edgeserve/house/ask/say/{random.randrange(10**9)}", "hi")
    time.sleep(0.002)
""",
    "sends questions that are larger than any": """
one, data = dial(), bytes(40 << 20)
while True:
    one.publish("edgeserve/house/ask/say/attacker", data).wait_for_publish(10)
""",
    "sends questions of 15 MiB that can be read": """
one, text = dial(), "x" * (15 << 20)
while True:
    one.publish("edgeserve/house/ask/say/attacker", text).wait_for_publish(10)
""",
    "sends questions that cannot be read": """
one, bodies = dial(), [b"", b"{", b"[" * 100_000, b'{"text": 1e999}', os.urandom(99), b'{"x": {}}', b"\\xff" * 99]
while True:
    one.publish(f"edgeserve/house/ask/{random.choice(('say', '+', '%2F', 'x' * 9999))}/a", random.choice(bodies))
    time.sleep(0.002)
""",
    "sends pictures that are none": """
one = dial()
while True:
    one.publish("cameras/door", random.choice((b"", b"\\xff\\xd8" + os.urandom(50_000), b"\\x89PNG" + bytes(99))))
    time.sleep(0.005)
""",
    "says that it is another front": """
one = dial()
while True:
    one.publish("edgeserve/house/instance", os.urandom(20).hex() * 500, retain=True)
    one.publish(f"homeassistant/sensor/edgeserve_house/{random.randrange(10**6)}/config", b"{}")
    time.sleep(0.01)
""",
}

CAMERA_CALLS = """
import socket, threading, time
def dial(said=b"", window=0):
    one = socket.socket()
    if window:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    one.settimeout(5)
    host, port = place.split(":")
    one.connect((host, int(port)))
    one.sendall(said)
    return one
def get(path):
    return f"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode()
"""

CAMERA_CLIENT = (
    COUNT
    + CAMERA_CALLS
    + """
WORKERS = 4
def asker():
    def ask():
        with dial(get("/frame.jpg")) as one:
            return "completed" if one.recv(1 << 16).startswith(b"HTTP/1.1 200") else "odd"
    return ask
while asker()() != "completed":
    time.sleep(0.1)
"""
    + TIMED
)

CAMERA_BEGIN = (
    "import encodings.idna, random, sys\nplace = sys.argv[8]\n"
    "os.setgroups([]); os.setgid(ANOTHER); os.setuid(ANOTHER)\n"
    + CAMERA_CALLS
    + """
def all_of(count, act):
    def run():
        while True:
            try:
                act()
            except OSError:
                time.sleep(0.05)
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
"""
)

CAMERA_ATTACKS: Dict[str, str] = {
    "holds 300 streams and reads nothing": """
held = []
def act():
    held.append(dial(get("/stream"), window=4096))
    if len(held) > 300:
        time.sleep(0.1); held.pop(0).close()
all_of(1, act)
""",
    "sends half a head on 300 connections": """
held = []
def act():
    held.append(dial(b"GET /fra"))
    if len(held) > 300:
        time.sleep(0.1); held.pop(0).close()
all_of(1, act)
""",
    "sends heads without end": """
def act():
    with dial(b"GET / HTTP/1.1\\r\\n") as one:
        while True:
            one.sendall(b"x: " + b"y" * 4000 + b"\\r\\n")
all_of(4, act)
""",
    "requests pictures at full rate": """
def act():
    with dial(get("/frame.jpg")) as one:
        while one.recv(1 << 16):
            pass
all_of(8, act)
""",
    "sends bytes that are no HTTP": """
def act():
    with dial(os.urandom(200)) as one:
        one.recv(1 << 16)
all_of(8, act)
""",
}
