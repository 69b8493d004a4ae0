"""Private PostgreSQL, Redis and Kafka servers on this machine, as plain processes.

They are for `jq-ctl up`, tests and benchmarks that were given no server. Each lives in a folder of
its own, listens on a free port of 127.0.0.1, and never touches a server that the system runs. Only
the standard library is needed, and calls block.
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
