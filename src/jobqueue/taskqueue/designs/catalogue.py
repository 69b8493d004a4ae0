"""List the services of the task queue, for start-up, ``--help``, ``jq-ctl up`` and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from jobqueue.taskqueue.designs import settings
from jobqueue.taskqueue.designs.settings import S, SharedVariables, Variable, variables_of

SHARED = variables_of(SharedVariables)


@dataclass(frozen=True, slots=True)
class Service(Generic[S]):
    """Describes one kind of process: its purpose, its variables, and the API that it serves."""

    name: str
    about: str
    schema: type[S]
    serves: str = ""  # full name of its proto service; empty: it serves no API
    holds_nothing: bool = False  # it has no state that is lost when it ends

    @property
    def port(self) -> Variable | None:
        """Return the variable with the service's port; None if the service does not listen."""
        name = f"{self.name.upper()}_PORT"
        return next((one for one in self.all_variables if one.name == name), None)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return the service's own variables, without those that all services have."""
        return self.all_variables[: -len(SHARED)]

    @property
    def all_variables(self) -> tuple[Variable, ...]:
        """Return all variables: the service's own first, then those that all services have."""
        return variables_of(self.schema)

    def read(self, environ: Mapping[str, str]) -> S:
        """Return the service's settings from environment variables.

        InvalidArgument names every variable that is missing or wrong.
        """
        return settings.read(self.schema, environ)


_INTERNAL = "taskqueue.internal.v1"
_PUBLIC = "taskqueue.v1.TaskQueuePublicService"

GATEWAY = Service(
    "gateway",
    "The API of clients: submit, status, result, cancel, list.",
    settings.GatewayVariables,
    _PUBLIC,
    holds_nothing=True,
)
JOB = Service(
    "job",
    "The owner of the jobs: their status, and the keys of submits. In memory.",
    settings.JobVariables,
    f"{_INTERNAL}.JobInternalService",
)
QUEUE = Service(
    "queue",
    "The owner of the order of the waiting jobs. In memory.",
    settings.QueueVariables,
    f"{_INTERNAL}.QueueInternalService",
)
COORDINATOR = Service(
    "coordinator",
    "The API of workers: it judges which are alive, hands out jobs and ends them.",
    settings.CoordinatorVariables,
    f"{_INTERNAL}.CoordinatorInternalService",
)
RESULT = Service(
    "result",
    "The owner of the outputs of jobs that ended. In memory.",
    settings.ResultVariables,
    f"{_INTERNAL}.ResultInternalService",
)
WORKER = Service(
    "worker",
    "Runs jobs that it gets from the coordinator. It calls, and is not called.",
    settings.WorkerVariables,
)
NODE = Service(
    "node",
    "All of it in one process: one of several equal nodes, among which clients choose.",
    settings.NodeVariables,
    _PUBLIC,
)

DESIGN_A: tuple[Service[Any], ...] = (GATEWAY, JOB, QUEUE, COORDINATOR, RESULT, WORKER)
SERVICES: dict[str, Service[Any]] = {service.name: service for service in (*DESIGN_A, NODE)}
