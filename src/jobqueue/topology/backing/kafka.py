"""A private Apache Kafka: one node, broker and controller in one (KRaft)."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from jobqueue.topology.backing import java, ports
from jobqueue.topology.backing.server import (
    KILL,
    BackingFailed,
    Ending,
    NotInstalled,
    PrivateServer,
)

VERSION = "4.2.0"  # that scripts/kafka/pom.xml names
HOME = "KAFKA_HOME"  # names a folder that a distribution was unpacked into

_NODE = 1
_CONTROLLER = re.compile(rf"^controller\.quorum\.voters={_NODE}@127\.0\.0\.1:(\d+)$", re.MULTILINE)

# Of a JVM that starts quickly and stays small: a broker on a developer's machine is never busy
# enough for the optimizing compiler to earn what it costs. No files outside the folder.
_JVM = (
    *("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
)

# Beside the jars there may be an archive of their classes, ready to be mapped into memory: with it
# a start takes half the time. One that does not fit this Java or these jars is passed over.
ARCHIVE = "classes.jsa"

# To standard output, and of an exception its cause and where that was: so that the last lines of
# the log tell why it ended. First for Kafka 4 (Log4j 2), then for Kafka 3, which KAFKA_HOME may be.
_LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n%rEx{3}
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out

log4j.rootLogger = WARN, out
log4j.appender.out = org.apache.log4j.ConsoleAppender
log4j.appender.out.layout = org.apache.log4j.EnhancedPatternLayout
log4j.appender.out.layout.ConversionPattern = %d{ISO8601} %-5p %c{1}: %m%n%throwable{3}
"""

# The broker writes no pid file.
_NOTE_PID = 'echo $$ > kafka.pid && exec "$@"'

_USER = "jobqueue"
# Requests of its protocol, each with its version.
_METADATA = (3, 1)
_SASL_HANDSHAKE = (17, 1)
_SASL_AUTHENTICATE = (36, 0)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the jars are that were fetched for want of a distribution."""
    if given := environ.get("XDG_CACHE_HOME"):
        home = Path(given)
    else:  # the broker does not run as root, and nobody else may enter root's home
        home = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home / "jobqueue" / f"kafka-{VERSION}"


def find_kafka() -> Path | None:
    """The folder of the jars: that of KAFKA_HOME, where it is set, else the one in the cache.

    None also without a Java to run them.
    """
    home = os.environ.get(HOME)
    jars = Path(home, "libs") if home else cache_folder(os.environ)
    return jars if is_complete(jars) and java.find_java() else None


def is_complete(jars: Path) -> bool:
    """Whether a folder holds a broker. What is fetched appears there all at once."""
    return any(jars.glob("kafka_2.*.jar")) and any(jars.glob("kafka-clients-*.jar"))


def why_not_found() -> str:
    """What is missing, for people."""
    home = os.environ.get(HOME)
    if java.find_java() is None:
        return f"there is no Java {java.OLDEST} or newer in JAVA_HOME, PATH or /usr/lib/jvm"
    if home:
        return f"{HOME} is {home}, and {home}/libs does not hold the jars of Kafka"
    return f"{HOME} is not set, and Kafka {VERSION} is not in {cache_folder(os.environ)}"


class PrivateKafka(PrivateServer):
    """Nobody outside this machine can connect. Topics have to be created, with their settings.

    `login=False` lets everybody on it in: for tests, which keep nothing of worth there.

    What it acknowledged survives its end by whatever signal, not that of the machine: like every
    Kafka it leaves writing to the disk to the system, and here there is no second copy.
    """

    name = "Kafka"
    users = ("kafka", "nobody")
    orderly: ClassVar[Ending] = [(signal.SIGTERM, 30.0), *KILL]
    abrupt: ClassVar[Ending] = KILL

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        login: bool = True,
    ) -> None:
        super().__init__(folder, settings, port=port)
        self._login = login

    @property
    def login(self) -> dict[str, str]:
        """What a client is told beside `bootstrap.servers`."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _USER,
            "sasl.password": self.password,
        }

    @property
    def bootstrap(self) -> str:
        """For `bootstrap.servers` of a client."""
        return f"127.0.0.1:{self.port}"

    def _java(self, program: str, *arguments: str) -> list[str]:
        jars, runtime = find_kafka(), java.find_java()
        if jars is None or runtime is None:
            raise NotInstalled(
                f"Kafka is not installed: {why_not_found()} (in a checkout: scripts/services "
                f"ensure kafka; else: apt-get install openjdk-17-jre-headless, unpack a "
                f"distribution of Kafka and name its folder in {HOME})"
            )
        if (runs_as := self._account()) and (blocked := runs_as.unreachable(jars)):
            raise BackingFailed(
                f"{self.name} runs as user {runs_as.name}, who may not enter {blocked}, where its "
                f"jars are: put them elsewhere, or let others pass (chmod o+x)"
            )
        # Relative to the data folder: whatever is in its path needs no escapes in URLs.
        logging = (
            "-Dlog4j2.configurationFile=../logging.properties",
            "-Dlog4j.configuration=file:../logging.properties",
        )
        options = [*_JVM, *logging, *self._class_archive(jars)]
        return [str(runtime), *options, "-cp", f"{jars}/*", program, *arguments]

    def _class_archive(self, jars: Path) -> list[str]:
        if not (archive := jars / ARCHIVE).exists():
            return []
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def _command(self) -> list[str]:
        return ["/bin/sh", "-c", _NOTE_PID, "sh", *self._java("kafka.Kafka", str(self.conf))]

    def _configuration(self, port: int) -> str:
        login = _asking_for(self.password) if self._login else {}
        return _properties(port, self._choose_controller_port(port), {**login, **self.settings})

    def _takes_password(self) -> bool:
        return self._login

    def _choose_controller_port(self, port: int) -> int:
        noted = self._noted_controller_port()
        if noted and noted != port and ports.is_free(noted):
            return noted
        while (chosen := ports.free_port()) == port:
            pass
        return chosen

    def _noted_controller_port(self) -> int | None:
        try:
            found = _CONTROLLER.search(self.conf.read_text())
        except FileNotFoundError:
            return None
        return int(found[1]) if found else None

    def _passes_soon(self, said: str) -> bool:
        """Somebody was faster with the port of the controller: the next try takes another."""
        port, controller = self.port, self._noted_controller_port()
        return ports.is_free(port) and controller is not None and not ports.is_free(controller)

    def _fill(self) -> None:
        """Format it, as Kafka calls that: without listening, so the ports are anybody's."""
        self._note_for_server(self.folder / "logging.properties", _LOGGING)
        formatting = self.folder / "conf.format"
        self._note_for_server(formatting, _properties(1, 2, {}))
        self._fill_by(
            self._java(
                "kafka.tools.StorageTool",
                *("format", "--cluster-id", _new_cluster_id(), "--config", str(formatting)),
            ),
            filled=Path("topics/meta.properties"),
        )

    def _noted_pid(self) -> int | None:
        try:
            noted = (self.data / "kafka.pid").read_text().strip()
        except FileNotFoundError:
            return None
        return int(noted) if noted.isdigit() else None

    def _answers(self, port: int) -> bool:
        """Whether it lists itself among the brokers: it listens before it serves."""
        if self._login and not self._listens_on(port):
            return False
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                if self._login:
                    _log_in(connection, self.password)
                answer = _ask(connection, _METADATA, struct.pack(">i", 0))  # of no topics
            (brokers,) = struct.unpack(">i", answer[:4])
        except (OSError, struct.error):
            return False
        return bool(brokers)


def _ask(connection: socket.socket, what: tuple[int, int], body: bytes) -> bytes:
    """One request; the answer without its head."""
    request = struct.pack(">hhih", *what, 0, -1) + body  # api, version, correlation, no client id
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(min(size, 65536), socket.MSG_WAITALL)[4:]


def _log_in(connection: socket.socket, password: str) -> None:
    proof = f"\0{_USER}\0{password}".encode()
    steps = (
        (_SASL_HANDSHAKE, struct.pack(">h", 5) + b"PLAIN"),
        (_SASL_AUTHENTICATE, struct.pack(">i", len(proof)) + proof),
    )
    for what, body in steps:
        (error,) = struct.unpack(">h", _ask(connection, what, body)[:2])
        if error:
            raise OSError(f"it refuses the password (error {error})")


def _asking_for(password: str) -> dict[str, str]:
    """Both listeners: whoever reaches the controller can change everything, too."""
    known = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="{_USER}" password="{password}" user_{_USER}="{password}";'
    )
    return {
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": known,
        "listener.name.controller.plain.sasl.jaas.config": known,
    }


def _properties(port: int, controller: int, settings: Mapping[str, str]) -> str:
    everything = {
        "process.roles": "broker,controller",
        "node.id": str(_NODE),
        "controller.quorum.voters": f"{_NODE}@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKER",
        "listeners": f"BROKER://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "topics",  # relative to its working directory
        # A topic that springs up by a slip of the pen would have the wrong settings.
        "auto.create.topics.enable": "false",
        # Its own topics, as small as one node needs them.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),  # half the heap, if it had its way
        # After a crash it waits for the session of its former self to run out: 9 s by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",  # nobody else is on the way
        **settings,
    }
    lines = [f"{name}={_escaped(value)}" for name, value in everything.items()]
    return "\n".join([f"port = {port}", *lines, ""])  # the first is for us; Kafka skips it


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _new_cluster_id() -> str:
    """As Kafka writes them, but without dashes: one in front would look like an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text.replace("-", "A")
