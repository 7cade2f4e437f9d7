"""The settings of the MQTT front: the broker, the topics, and what they may be."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Dict, Tuple

from edgeserve.errors import ConfigError
from edgeserve.front import (
    FrontSettings,
    boolean,
    entry,
    integer,
    lines_of,
    number,
    one_of,
    string,
    table_of,
    takes,
    tuple_of,
)
from edgeserve.fronts.detections import FORMS

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
ANY = "object"
"""The label of objects of any kind, watched for where no label is named."""


@takes(type="string", pattern="^[A-Za-z0-9_-]{1,64}$")
def broker_name(value: Any, where: str) -> str:
    """A name in topics."""
    name = string(value, where)
    if not NAME.match(name):
        raise ConfigError(f"{where} = {name!r}: expected 1 to 64 letters, digits, _ and -")
    return name


@takes(type="string", minLength=1)
def topic_filter(value: Any, where: str) -> str:
    """A filter of topics, with wildcards or without."""
    levels = string(value, where).split("/")
    is_filter = all(level in ("+", "#") or not {*level} & {*"+#\0"} for level in levels) and "#" not in levels[:-1]
    if not value or not is_filter:
        raise ConfigError(
            f"{where} = {value!r}: expected a topic such as cameras/door; + is any level, # all at the end"
        )
    return str(value)


@takes(type="string", pattern="^[^+#]*$")
def topic(value: Any, where: str) -> str:
    """A topic without wildcards, or nothing."""
    if value and ("+" in topic_filter(value, where) or "#" in value):
        raise ConfigError(f"{where} = {value!r}: a topic that is published to has no + and no #")
    return string(value, where).strip("/")


@dataclass(frozen=True)
class Mqtt(FrontSettings):
    """``[front.mqtt]``: the broker, and the topics that it gets and asks."""

    FILES: ClassVar[Tuple[str, ...]] = (*FrontSettings.FILES, "password_file", "labels_file")

    host: str = entry(string, "127.0.0.1")  # of the broker
    port: int = entry(integer(1, 65_535), 1883)  # of the broker
    tls: bool = entry(boolean, False)  # the broker speaks TLS
    user: str = entry(string, "")  # at the broker
    password_file: str = entry(string, "")  # whose first line is the user's password
    name: str = entry(broker_name, factory=lambda: host_name())  # of this front on the broker; default: the host's
    discovery: str = entry(topic, "homeassistant")  # the prefix of Home Assistant's discovery; empty: none
    ask: Tuple[str, ...] = entry(tuple_of(string), ())  # apps that are asked by topic
    askers: Tuple[str, ...] = entry(tuple_of(broker_name), ())  # names that the broker keeps for one user each
    publish: Tuple[str, ...] = entry(tuple_of(topic_filter), ())  # filters of the topics that answers may publish to
    cameras: Dict[str, str] = entry(table_of(topic_filter), factory=dict)  # camera -> the topic of its pictures
    detect: str = entry(string, "")  # the app that looks at them
    form: str = entry(one_of("", *FORMS), "")  # how it answers; "" = outputs boxes and scores, else yolo
    score_min: float = entry(number(0.0, 1.0), 0.4)  # the least score of a box
    labels_file: str = entry(string, "")  # names of the classes, a line each
    watch: Tuple[str, ...] = entry(tuple_of(string), ())  # labels with a sensor of their own; empty: one for any
    every_s: float = entry(number(1.0), 10.0)  # between two states
    may_reload: bool = entry(boolean, False)  # the broker may have the configuration read again

    @cached_property
    def labels(self) -> Tuple[str, ...]:
        """The names of the classes, by number. Raises :class:`ConfigError`."""
        lines = lines_of(self.where("labels_file"), self.labels_file)
        return tuple([line.strip() for line in lines if line.strip()])

    @property
    def base(self) -> str:
        """The beginning of all its topics."""
        return f"edgeserve/{self.name}"

    @property
    def identity(self) -> str:
        """See :class:`~edgeserve.front.FrontSettings`."""
        return f"name = {self.name!r} on the broker {self.host}:{self.port}"

    @property
    def node(self) -> str:
        """Its name among Home Assistant's devices."""
        return f"edgeserve_{self.name}"

    @property
    def watched(self) -> Tuple[str, ...]:
        """The labels that have a sensor."""
        return self.watch or (ANY,)

    @property
    def password(self) -> str:
        """The user's password at the broker. Raises :class:`ConfigError`."""
        return "".join(lines_of(self.where("password_file"), self.password_file)[:1]).strip()


def host_name() -> str:
    """This host's name as the name of a front: two hosts do not take each other's place on a broker."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:64] or "edgeserve"
