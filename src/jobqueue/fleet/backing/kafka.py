"""A private Apache Kafka: one node, broker and controller in one (KRaft)."""

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

VERSION = "4.2.0"  # that scripts/kafka/pom.xml names
HOME = "KAFKA_HOME"  # names a folder that a distribution was unpacked into
OLDEST_JAVA = 17  # that Kafka's brokers run on

_JAVA_PLACES = "usr/lib/jvm/*/bin"
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_NODE = 1
_CONTROLLER = re.compile(rf"^controller\.quorum\.voters={_NODE}@127\.0\.0\.1:(\d+)$", re.MULTILINE)

# A JVM that starts quickly and stays small: a broker on a developer's machine is never busy enough
# to earn the cost of the optimizing compiler. No files outside the folder.
_JVM = (
    *("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
)

# Beside the jars there may be an archive of their classes, ready to be mapped into memory: with it
# a start takes half the time. Java ignores one that does not fit it or these jars.
ARCHIVE = "classes.jsa"

# Warnings to standard output, an exception with its cause, so that the last lines of the log tell
# why it ended; and the one line that says that it serves (Kafka's own tests wait for it). First for
# Kafka 4 (Log4j 2), then for Kafka 3, which KAFKA_HOME may name.
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
    """Return the folder of the jars that were fetched where no distribution was named."""
    if given := environ.get("XDG_CACHE_HOME"):
        home = Path(given)
    else:  # the broker does not run as root, and other users may not enter root's home
        home = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home / "jobqueue" / f"kafka-{VERSION}"


def find_kafka() -> Path | None:
    """Return the folder of the jars: that of KAFKA_HOME if it is set, else the one in the cache.

    None also without a Java to run them.
    """
    home = os.environ.get(HOME)
    jars = Path(home, "libs") if home else cache_folder(os.environ)
    return jars if is_complete(jars) and find_java() else None


def is_complete(jars: Path) -> bool:
    """Return whether a folder holds a broker. Fetched jars appear there all at once."""
    return any(jars.glob("kafka_2.*.jar")) and any(jars.glob("kafka-clients-*.jar"))


def why_not_found() -> str:
    home = os.environ.get(HOME)
    if find_java() is None:
        return f"there is no Java {OLDEST_JAVA} or newer in JAVA_HOME, PATH or /usr/lib/jvm"
    if home:
        return f"{HOME} is {home}, and {home}/libs does not hold the jars of Kafka"
    return f"{HOME} is not set, and Kafka {VERSION} is not in {cache_folder(os.environ)}"


def find_java() -> Path | None:
    """Return the program: from JAVA_HOME, from PATH, else the newest of the usual place."""
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
    """Read it from the folder of the program, which is faster than to run it; 0 if unknown."""
    try:
        release = (java.resolve().parents[1] / "release").read_text(errors="replace")
    except OSError:
        return 0
    found = _JAVA_VERSION.search(release)
    return int(found[1]) if found else 0


class PrivateKafka(PrivateServer):
    """No other machine can connect. Topics have to be created, with their settings.

    `login=False` lets every user of this machine in: for tests, which keep nothing of worth there.

    Acknowledged records survive its end by any signal, not that of the machine: like every Kafka it
    leaves writing to the disk to the system, and here there is no second copy.
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
        """The settings of a client beside `bootstrap.servers`."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": _USER,
            "sasl.password": self.password,
        }

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers` of a client."""
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
                f"{self.name} runs as user {runs_as.name}, who may not enter {blocked}, where its "
                f"jars are: put them elsewhere, or let others pass (chmod o+x)"
            )
        # Relative to the data folder, so that no character of its path needs an escape in a URL.
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
        """Format the data folder. The tool needs ports in its settings, and does not listen."""
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
    """Return settings that ask for the password, on the controller's port too."""
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
        # A topic that springs up by a misspelt name would have the wrong settings.
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
        "log.cleaner.dedupe.buffer.size": str(4 << 20),  # by default half the heap
        # After a crash it waits until the session of its last run is over: 9 s by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",  # no other member is on the way
        **settings,
    }
    lines = [f"{name}={_escaped(value)}" for name, value in everything.items()]
    return "\n".join([f"port = {port}", *lines, ""])  # the first is for us; Kafka skips it


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _new_cluster_id() -> str:
    """Return an id without dashes: one at the beginning would look like an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text.replace("-", "A")
