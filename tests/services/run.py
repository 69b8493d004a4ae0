"""The servers of one test run: started by whoever needs one first, shared by all its processes."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.services import catalog, guardian
from tests.services.catalog import SERVICES, Service
from tests.services.places import end_all, places

if TYPE_CHECKING:
    from tests.services.databases import Databases
    from tests.services.topics import Topics


@dataclass(frozen=True)
class Place:
    """What the processes of a run know from each other."""

    folder: Path  # made when the first server is started; its name is the run's own
    owner: int  # the process whose end is the end of the run

    @staticmethod
    def new() -> Place:
        return Place(places()[0] / f"jobqueue-test-{secrets.token_hex(6)}", os.getpid())

    @property
    def token(self) -> str:
        return self.folder.name.rpartition("-")[2]

    @property
    def disk(self) -> Path:
        """For what is too large for memory, where the other folder may be."""
        return Path(tempfile.gettempdir(), f"jobqueue-engine-{self.token}")


class Run:
    """One process's view of the run."""

    def __init__(self, place: Place, number: int = 0) -> None:
        self.place = place
        self.number = number  # of this process within the run
        self._environment = os.environ

    # What tests get.

    @cached_property
    def databases(self) -> Databases:
        address = self.address("postgres")
        from tests.services import schema  # its client may be missing: then we did not come here
        from tests.services.databases import Databases

        databases = Databases(address, self.place.token)
        with self.one_at_a_time("template"):
            databases.make_template(schema.prepare)
        return databases

    @cached_property
    def redis_url(self) -> str:
        """A database number of this process's own."""
        parts = urlsplit(self.address("redis"))
        first = int(parts.path.strip("/") or 0)
        return urlunsplit(parts._replace(path=f"/{first + self.number}"))

    def topics(self) -> Topics:
        """Of the shared Kafka, for one test."""
        address = self.address("kafka")
        from tests.services.topics import Topics, new_prefix

        with self.one_at_a_time("topics"):  # leaves a trace for the end of the run
            return Topics(address, new_prefix(self.place.token))

    def address(self, name: str) -> str:
        """Of the shared server: the one that was named, or ours, started now if need be."""
        service = self.need(name)
        if named := self._environment.get(service.variable):
            return named
        settings = {**service.settings, **service.shared}
        folder = self.place.disk if service.is_large else self.place.folder
        server = service.server(folder / name, settings)
        if not server.alive():
            self._look_after(folder)
            server.start()
        return service.address(server)

    def own(self, name: str, settings: Mapping[str, str]) -> Any:
        """A server for one test, in the run's folder, so that it never outlives the run."""
        service = SERVICES[name]
        if service.find() is None:
            self._missing(service, f"{name} is not installed here, and this test ends its server")
        self._look_after(self.place.folder)
        folder = self.place.folder / f"{name}-{secrets.token_hex(4)}"
        return service.server(folder, {**service.settings, **settings})

    def need(self, name: str) -> Service:
        """Skip the test, or fail it, where the service cannot be had."""
        service = catalog.known()[name]
        if importlib.util.find_spec(service.client) is None:
            self._missing(service, f"the Python package {service.client} is not installed")
        if not self._is_there(service):
            self._missing(service, f"{name} is not installed here")
        return service

    def may_imitate(self, name: str) -> bool:
        """Whether a test that is content with an imitation of the service has to be."""
        service = SERVICES[name]
        return (
            importlib.util.find_spec(service.client) is not None
            and not self._is_there(service)
            and name not in catalog.required(self._environment)
        )

    def _is_there(self, service: Service) -> bool:
        return bool(self._environment.get(service.variable)) or service.find() is not None

    def _missing(self, service: Service, what: str) -> None:
        message = f"{what}: {service.how_to_get}"
        if service.name in catalog.required(self._environment):
            pytest.fail(f"{message} ({catalog.REQUIRE} names it)", pytrace=False)
        pytest.skip(message)

    # The end.

    def close(self) -> None:
        """This process needs nothing any more."""
        if "databases" in self.__dict__:
            self.databases.close()
            del self.databases

    def end(self) -> None:
        """For the owner: nobody needs anything any more."""
        try:
            self._drop_databases()
        finally:
            try:
                self._delete_topics()
            finally:
                end_all(self.place.disk)
                end_all(self.place.folder)

    def _drop_databases(self) -> None:
        """In a server that goes on; ours goes with all that is in it."""
        named = self._environment.get(SERVICES["postgres"].variable)
        if named and (self.place.folder / "template.lock").exists():
            from tests.services.databases import Databases

            databases = Databases(named, self.place.token)
            try:
                databases.drop_all()
            finally:
                databases.close()

    def _delete_topics(self) -> None:
        named = self._environment.get(SERVICES["kafka"].variable)
        if named and (self.place.folder / "topics.lock").exists():
            from tests.services.topics import Topics, run_prefix

            Topics(named, run_prefix(self.place.token)).delete_all()

    def _look_after(self, folder: Path) -> None:
        with self.one_at_a_time(f"guardian-{folder.name}") as is_first:
            if is_first:
                guardian.watch(self.place.owner, folder)

    @contextlib.contextmanager
    def one_at_a_time(self, what: str) -> Iterator[bool]:
        """Among the processes of the run. Tells whether this is the first time."""
        self.place.folder.mkdir(exist_ok=True)
        self.place.folder.chmod(0o755)  # whatever the umask says: servers run as somebody else
        with (self.place.folder / f"{what}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield os.fstat(lock.fileno()).st_size == 0
            lock.write("done\n")
