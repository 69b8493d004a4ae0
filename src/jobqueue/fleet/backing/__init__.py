"""Runs private PostgreSQL, Redis and Kafka servers on this machine, as plain processes.

`jq-ctl up`, tests and benchmarks use private servers where no other server is named. A private
server has its own folder, listens on a free port of 127.0.0.1, and is independent of the servers
that the system runs. The package needs only the standard library. Its calls block.
"""

from jobqueue.fleet.backing.kafka import PrivateKafka, find_kafka
from jobqueue.fleet.backing.postgres import PrivatePostgres, find_postgres
from jobqueue.fleet.backing.redis import PrivateRedis, find_redis
from jobqueue.fleet.backing.server import BackingFailed, NotInstalled, PrivateServer

__all__ = [
    "BackingFailed",
    "NotInstalled",
    "PrivateKafka",
    "PrivatePostgres",
    "PrivateRedis",
    "PrivateServer",
    "find_kafka",
    "find_postgres",
    "find_redis",
]
