"""Run a private Apache Kafka: one node that is broker and controller (KRaft)."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from jobqueue.fleet import ports
from jobqueue.fleet.backing.server import KILL, BackingFailed, Ending, NotInstalled, PrivateServer

VERSION = "4.2.0"  # the same as in scripts/kafka/pom.xml
HOME = "KAFKA_HOME"  # the environment variable with the folder of an unpacked distribution
OLDEST_JAVA = 17  # the oldest Java on which Kafka's brokers run

_JAVA_PLACES = "usr/lib/jvm/*/bin"
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_NODE = 1
_CONTROLLER = re.compile(rf"^controller\.quorum\.voters={_NODE}@127\.0\.0\.1:(\d+)$", re.MULTILINE)

# The JVM starts quickly and needs little memory. A broker on a developer's machine is not busy
# enough for the optimizing compiler to pay. The JVM writes no files outside the folder.
_JVM = (
    *("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
)

# Beside the jars there may be an archive of their classes that Java maps into memory, which halves
# the time of a start. Java ignores an archive for another Java or other jars.
ARCHIVE = "classes.jsa"

# Kafka logs warnings to standard output, an exception with its cause, so that the log's last lines
# show why Kafka ended. It also logs the line that says that it is ready (Kafka's own tests wait for
# that line). The first part is for Kafka 4 (Log4j 2), the second for Kafka 3 in KAFKA_HOME.
_SERVES = "Kafka Server started"
_LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n%rEx{3}
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.serves.name = kafka.server.KafkaRaftServer
logger.serves.level = INFO

log4j.rootLogger = WARN, out
log4j.appender.out = org.apache.log4j.ConsoleAppender
log4j.appender.out.layout = org.apache.log4j.EnhancedPatternLayout
log4j.appender.out.layout.ConversionPattern = %d{ISO8601} %-5p %c{1}: %m%n%throwable{3}
log4j.logger.kafka.server.KafkaRaftServer = INFO
"""

# The broker writes no pid file.
_NOTE_PID = 'echo $$ > kafka.pid && exec "$@"'

_USER = "jobqueue"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of downloaded Kafka jars, which are used if KAFKA_HOME is not set."""
    if given := environ.get("XDG_CACHE_HOME"):
        home = Path(given)
    else:  # the broker does not run as root, and other users may not enter root's home
        home = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home / "jobqueue" / f"kafka-{VERSION}"


def find_kafka() -> Path | None:
    """Return the folder of Kafka's jars, or None if the jars or a suitable Java are missing.

    The folder is in KAFKA_HOME if that is set, and else in the cache.
    """
    home = os.environ.get(HOME)
    jars = Path(home, "libs") if home else cache_folder(os.environ)
    return jars if is_complete(jars) and find_java() else None


def is_complete(jars: Path) -> bool:
    """Return True if the folder contains the jars of a broker.

    Two jars are enough evidence: a download moves all its jars into the folder at once.
    """
    return any(jars.glob("kafka_2.*.jar")) and any(jars.glob("kafka-clients-*.jar"))


def why_not_found() -> str:
    """Return the reason why ``find_kafka`` returned None."""
    home = os.environ.get(HOME)
    if find_java() is None:
        return f"there is no Java {OLDEST_JAVA} or newer in JAVA_HOME, PATH or /usr/lib/jvm"
    if home:
        return f"{HOME} is {home}, but {home}/libs does not contain the jars of Kafka"
    return f"{HOME} is not set, and Kafka {VERSION} is not in {cache_folder(os.environ)}"


def find_java() -> Path | None:
    """Return the path of a `java` program that can run Kafka, or None if there is none.

    The program is searched in JAVA_HOME, then in PATH, and then in /usr/lib/jvm, newest first.
    """
    new_enough = (java for java in _javas() if _java_version(java) >= OLDEST_JAVA)
    return next(new_enough, None)


def _javas() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin/java")
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/bin", "/usr/local/bin"])
    if found := shutil.which("java", path=path):
        yield Path(found)
    usual = [folder / "java" for folder in Path("/").glob(_JAVA_PLACES)]
    yield from sorted(usual, key=_java_version, reverse=True)


def _java_version(java: Path) -> int:
    """Return the version of a `java` program, or 0 if it is unknown."""
    # Reading a file beside the program is faster than running the program.
    try:
        release = (java.resolve().parents[1] / "release").read_text(errors="replace")
    except OSError:
        return 0
    found = _JAVA_VERSION.search(release)
    return int(found[1]) if found else 0


class PrivateKafka(PrivateServer):
    """Runs a private Kafka broker, to which only programs on this machine can connect.

    The broker does not create topics by itself. With ``login=False`` every user of this machine can
    connect; only tests use that.

    Acknowledged records survive the end of the process by any signal. They may be lost if the
    machine fails: Kafka leaves the writing to disk to the operating system, and relies on copies
    on other brokers, which a single node does not have.
    """

    name = "Kafka"
    users = ("kafka", "nobody")
    pid_file = "kafka.pid"
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
        """Return the settings with which a client logs in."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _USER,
            "sasl.password": self.password,
        }

    @property
    def bootstrap(self) -> str:
        """Return the broker's address, for a client's setting `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def _java(self, program: str, *arguments: str) -> list[str]:
        jars, java = find_kafka(), find_java()
        if jars is None or java is None:
            raise NotInstalled(
                f"Kafka is not installed: {why_not_found()} (in a checkout: scripts/services "
                f"ensure kafka; else: apt-get install openjdk-17-jre-headless, unpack a "
                f"distribution of Kafka and name its folder in {HOME})"
            )
        if (runs_as := self._account()) and (blocked := runs_as.unreachable(jars)):
            raise BackingFailed(
                f"{self.name} runs as user {runs_as.name}, who may not enter {blocked}, which is "
                f"on the path of its jars: move the jars elsewhere, or run `chmod o+x {blocked}`"
            )
        # The paths are relative to the data folder: its path may contain characters that a URL
        # would have to escape.
        logging = (
            "-Dlog4j2.configurationFile=../logging.properties",
            "-Dlog4j.configuration=file:../logging.properties",
        )
        options = [*_JVM, *logging, *self._class_archive(jars)]
        return [str(java), *options, "-cp", f"{jars}/*", program, *arguments]

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

    def _ports(self) -> list[int]:
        return [self.port, self._noted_controller_port() or 0]

    def _fill(self) -> None:
        # The formatting tool needs ports in its settings, but does not listen on them.
        self._write(self.folder / "logging.properties", _LOGGING)
        formatting = self.folder / "conf.format"
        self._write(formatting, _properties(1, 2, {}))
        self._fill_by(
            self._java(
                "kafka.tools.StorageTool",
                *("format", "--cluster-id", _new_cluster_id(), "--config", str(formatting)),
            ),
            filled="topics/meta.properties",
        )

    def _answers(self, port: int) -> bool:
        return _SERVES in self._output()


def _asking_for(password: str) -> dict[str, str]:
    """Return the settings that require the password on the ports of the broker and controller."""
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
        # A topic that a misspelt name creates would have the wrong settings.
        "auto.create.topics.enable": "false",
        # Kafka's internal topics have one partition and one copy: this is the only node.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),  # the default is half the heap
        # After a crash the broker waits until the session of its last run is over, by default 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",  # do not wait for more members of a group
        **settings,
    }
    lines = [f"{name}={_escaped(value)}" for name, value in everything.items()]
    return "\n".join([f"port = {port}", *lines, ""])  # PrivateServer reads `port`, Kafka ignores it


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _new_cluster_id() -> str:
    """Return a random cluster id without dashes: a leading dash would look like an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text.replace("-", "A")
