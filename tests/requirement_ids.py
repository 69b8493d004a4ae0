"""Every requirement, by id, in one line.

A test says which ones it shows with ``@pytest.mark.req("jq:FR-014")``; ``make requirements`` prints
what is shown and what is open. The prefixes name the documents: ``jq`` the distributed job queue,
``tq`` the task queue in two designs, ``sch`` the Kafka-driven scheduler, ``inp`` the in-process
queue.
"""

_JQ_FR = """
submit a job with a queue name and a JSON payload over gRPC
optional priority 0 to 9, 9 the highest, default 0
optional max_retries per job, by default the queue's
optional ttl; a job not started within it is dead-lettered
the server gives each job a UUIDv4 and returns it
submit to an unknown queue is NOT_FOUND
payloads are opaque bytes, never parsed or validated
`jq-ctl job submit` prints the job id
a job is in exactly one of six states
only the listed state transitions are valid
every transition is an immutable event with time and reason
cancel of a PENDING or ASSIGNED job dead-letters it as CANCELLED
manual retry of a DEAD_LETTERED or FAILED job resets its retry counter
dispatch by priority, then first in, first out
a Redis lock per job: one worker per job with several servers
an assignment not started within assignment_timeout fails and is retried
dispatch in batches per scheduling interval, both configurable
a worker registers with id, hostname and concurrency
a worker sends heartbeats at a configurable interval
a silent worker goes OFFLINE and its jobs are failed over
a worker never holds more jobs than its concurrency
a worker gets jobs of its own queues only
a drained worker finishes its jobs and takes no new ones
shutdown of a worker by the operator is graceful
create a queue with max-retries, ttl and priority-weights
delete an empty queue; a non-empty one only by force
the `default` queue is created at the first start
queue stats: depth by status, processed, average time, error rate
a worker's result payload and exit status are stored
`jq-ctl job status` shows every listed field
`jq-ctl job logs` shows the transitions in order
`jq-ctl job list` filters by queue, status and limit, in pages
retry after exponential backoff with jitter
a job out of retries is dead-lettered and a Kafka event says so
dead letters can be listed and stay until deleted
a Kafka event for every transition, with the listed fields
Kafka events are Protocol Buffers
Kafka down never blocks a job; the event is kept and logged
server and worker expose /metrics
every listed metric exists
logs are JSON on stdout with the listed fields
`jq-ctl status` sums up the system's health
server and worker read a YAML file given by --config
any setting can be overridden by its JQ_ environment variable
secrets come from the environment; one in the file is warned about
`jq-server --dry-run` checks settings and connections, then exits
gRPC supports mTLS, and plaintext for development
`jq-ctl` takes --tls-cert and --tls-key
workers run as non-root in containers
"""

_JQ_NFR = """
1,000 submits per second on one server
p99 from submit to start under 2 s
a scheduler cycle of 100 jobs under 200 ms at p95
`jq-ctl` answers within 5 s and times out as configured
no job is lost in silence: a failed write is an error to the submitter
execution at least once
recovery from a worker crash without an operator
several servers at once without duplicated jobs
PostgreSQL is the record: loss of Redis data loses no job
throughput grows with the number of workers
100 workers on one server
10 million jobs without slower scheduling
/healthz and /readyz
the server shuts down gracefully within 30 s of SIGTERM
the worker shuts down gracefully within 60 s of SIGTERM
--help on all three programs
--version on all three programs: semantic version and commit
images by multi-stage build, under 200 MB
one `docker compose up` starts the full system
versioned migrations, applied at start-up
80 % line coverage of the business logic
integration tests against real services with one command
end-to-end tests through `jq-ctl` with one command
"""

_JQ_AC = """
a job submitted with `jq-ctl` is seen to go PENDING, RUNNING, DONE
a worker crash is noticed and its jobs are queued again
a job that fails max_retries times is dead-lettered and listed
two servers at once execute no job twice
`jq-ctl queue stats` is accurate
metrics can be scraped and are complete
`docker compose up` starts everything and `jq-ctl status` says healthy
all unit, integration and end-to-end tests pass
"""

_TQ_FR = """
SubmitJob accepts a job and returns a unique id
GetJobStatus returns the current state
GetJobResult returns the output after completion
CancelJob cancels a queued job, a running one as best it can
ListJobs filters and pages
WorkerHeartbeat and FetchWork: liveness and job retrieval
"""

_TQ_NFR = """
both designs have the same client API and status semantics
load tests at several concurrency levels without code changes
throughput, latency percentiles and completion time are recorded
a clean environment reproduces deployment and benchmark
silent workers are marked unavailable; queued jobs are not dropped
both designs run with the same number of worker slots
"""

_TQ_LOCK = """
a partly failed submit is compensated and logged
equal worker slots in both designs
a fixed ingress policy per design
the first valid terminal write wins
sort by enum, created_at descending or ascending
no generic ErrorInfo message
page tokens are offsets in a string
the server's UTC epoch milliseconds count
the heartbeat decides a worker's health
no priority in JobSpec
two proto files, no common one
compare-and-set before every assignment; a failed one is logged
an idle FetchWork carries retry_after_ms
an empty client_request_id means no deduplication
envelope first, then guarded status change; anomalies logged
equal created_at_ms is ordered by job_id
WORKER_ID, else the hostname, names a worker
lowercase SHA-256 checksum and an output cap
cancel of an unknown id is NOT_FOUND
listing is not a snapshot
FR-6 is internal only
a queued cancel that lost the race sets the cancel flag
terminal without envelope is UNAVAILABLE and logged
an empty status filter means all
deduplication is bounded by MAX_DEDUP_KEYS
frozen service names
Design B: job-scoped calls go to the job_id owner
Design B: ListJobs is kept out of the main comparison
StoreResult shows already_exists and current_terminal_status
a transition names the status it expects
first in, first out as best it can
heartbeat 1,000 ms, timeout 4,000 ms
retry constants: 100 ms, times 2, cap 1,000 ms, 4 attempts
JSON Lines logs with the required fields
job ids are UUIDv4
deduplication compares the canonical payload
Design B: the client routes, nodes do not forward
Design B: a submit with a key goes to the key's owner
cancel of a running job never interrupts it
dequeue is a destructive pop
the job service stamps created, started and finished
one re-enqueue rescue after a failed compare-and-set
owner: SHA-256, first 8 bytes big-endian, modulo N, fixed order
"""

_NAMED = {
    "tq:ROUTE": "owner routing by the client, with published test vectors",
    "tq:INGRESS": "A: gateway only; B: round-robin or owner, and the accepting node owns the id",
    "tq:PROTO": "two frozen proto files, additive changes only, checked by a tool",
    "tq:STARTUP": "endpoint map, ports, environment with defaults, clear errors, ready event",
    "tq:HEALTH": "the health check command, its exit codes and the compose timings",
    "tq:MATRIX": "a call outside the caller-to-method matrix is refused and logged",
    "tq:SUBMIT": "create, enqueue, accept; compensation; anomaly log",
    "tq:DISPATCH": "dequeue, compare-and-set, assign; one rescue",
    "tq:TERMINAL": "result before terminal status; the first write wins; anomalies",
    "tq:CANCEL": "cancel of queued, running, raced and finished jobs",
    "tq:RESULT": "readiness by status, envelope minimums, checksum, 256 KiB cap",
    "tq:LIST": "sort, tie-break, filters, page size and tokens of ListJobs",
    "tq:DEDUP": "deduplication by key and canonical payload, bounded",
    "tq:CODES": "the gRPC status table, soft outcomes, idempotency matrices",
    "tq:RETRY": "full jitter, 4 attempts, retryable codes only, SubmitJob only with a key",
    "tq:DEADLINE": "client and internal deadline defaults",
    "tq:LOG": "JSON Lines; every response that is not OK is logged",
    "tq:LIVENESS": "heartbeat, timeout, no work for a silent worker, retry_after_ms",
    "tq:FAIR": "six slots, same workload, warm-up, duration and aggregation in both designs",
    "tq:EVAL": "throughput, percentiles, completion time over the factors; data kept",
    "tq:README": "the README leads to tables of endpoints and variables that equal the code",
    "tq:COMPOSE": "a container per node, one start command, non-root, health checks",
    "sch:LIFE": "PENDING, SCHEDULED, RUNNING, SUCCESS or FAILED as clients see it",
    "sch:API": "HTTP submit is validated, stored in Redis, published; Redis down is 503",
    "sch:TOPICS": "three topics and seven event types",
    "sch:LOOP": "the scheduler consumes requests, assigns to live workers, retries",
    "sch:LEADER": "one fenced leader by Redis; a standby takes over",
    "sch:WORKER": "a worker executes and pulses; a silent one is DEAD, its jobs PENDING",
    "sch:IDEMP": "a duplicate Kafka message is discarded",
    "sch:AOF": "state survives a Redis restart and kill; Redis settings are checked",
    "sch:REPLAY": "the whole state can be rebuilt from the event stream",
    "sch:PARTITION": "a leader cut off from Redis assigns nothing after its TTL",
    "sch:SCHEMA": "job and worker documents have the fields shown",
    "sch:ROADMAP": "Prometheus, watchdog, backoff 1-2-4-8 s, least-loaded assignment",
    "inp:QUEUE": "heap-ordered queue, idle without CPU, first in, first out per priority",
    "inp:BACKPRESSURE": "bounded capacity; full is 503 with Retry-After; nothing is dropped",
    "inp:HTTP": "POST /jobs, GET /jobs/{id}, GET /dlq, POST /dlq/{id}/retry, GET /metrics",
    "inp:IDEMP": "a duplicate key is 409 with the original job and result; keys expire",
    "inp:POOL": "a fixed pool of workers, pluggable handler, clean shutdown",
    "inp:RETRY": "backoff with jitter: 500 ms base, 10 s cap",
    "inp:DLQ": "exhausted jobs are shelved, inspectable and can be replayed",
    "inp:DEMO": "15 seeded jobs, key rejection, a flood to backpressure, periodic stats",
    "inp:PROD": "persistence, scaling, monitoring, key TTL, auth, rate limits, delayed jobs, cron",
}


def _numbered(pattern: str, lines: str, count: int) -> dict[str, str]:
    descriptions = lines.strip().splitlines()
    assert len(descriptions) == count, f"{pattern}: {len(descriptions)} lines, not {count}"
    return {pattern.format(n): text for n, text in enumerate(descriptions, start=1)}


REQUIREMENTS: dict[str, str] = {
    **_numbered("jq:FR-{:03}", _JQ_FR, 49),
    **_numbered("jq:NFR-{:03}", _JQ_NFR, 23),
    **_numbered("jq:AC-{}", _JQ_AC, 8),
    **_numbered("tq:FR-{}", _TQ_FR, 6),
    **_numbered("tq:NFR-{}", _TQ_NFR, 6),
    **_numbered("tq:LOCK-{}", _TQ_LOCK, 43),
    **_NAMED,
}
