"""Everything that travels comes out as it went in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.api.grpc.codec import (
    deleted_from_pb,
    deleted_to_pb,
    event_from_pb,
    event_to_pb,
    explanation_from_pb,
    explanation_to_pb,
    groups_from_pb,
    groups_to_pb,
    health_from_pb,
    health_to_pb,
    info_from_pb,
    info_to_pb,
    job_from_pb,
    job_query_from_pb,
    job_query_to_pb,
    job_to_pb,
    queue_from_pb,
    queue_to_pb,
    result_from_pb,
    result_to_pb,
    retried_from_pb,
    retried_to_pb,
    retry_query_from_pb,
    retry_query_to_pb,
    spec_from_pb,
    spec_to_pb,
    stats_from_pb,
    stats_to_pb,
    worker_from_pb,
    worker_to_pb,
)
from jobqueue.api.grpc.work_codec import (
    assignment_from_pb,
    assignment_to_pb,
    pulse_from_pb,
    pulse_to_pb,
    report_from_pb,
    report_to_pb,
)
from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.core.explain import Cause, Explained, Explanation
from jobqueue.core.grouping import DeadLetterGroup, DeadLetterGroups
from jobqueue.core.job import (
    IN_PROCESS,
    Assignment,
    ComponentHealth,
    Deleted,
    Event,
    Health,
    Job,
    JobQuery,
    JobSpec,
    NotDeleted,
    NotRetried,
    Pulse,
    Retried,
    RetryQuery,
    SubmitResult,
    SubmitStatus,
    Transition,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import REPORTABLE, Move, Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import HeldBack, Queue, QueueStats, WaitingType
from jobqueue.core.unique import CONFLICTS, SCOPES, UniqueKey
from jobqueue.pb.jq.v1 import operator_pb2, types_pb2, worker_pb2
from jobqueue.wire import STATES, seconds, stamp

text = st.text(max_size=20)
uuids = st.uuids(version=4).map(str)
int32 = st.integers(0, 2**31 - 1)
int63 = st.integers(1, 2**63 - 1)
positive = st.floats(0, 1e9)
times = st.floats(1.0e9, 4.0e9)
labels = st.dictionaries(text, text, max_size=3)


def maybe(strategy):
    return st.none() | strategy


uniques = st.builds(
    UniqueKey,
    key=text,
    scope=st.sampled_from(SCOPES),
    period=maybe(positive),
    on_conflict=st.sampled_from(CONFLICTS),
)
specs = st.builds(
    JobSpec,
    payload=st.binary(max_size=50),
    queue=text,
    type=text,
    priority=st.integers(-(2**31), 2**31 - 1),
    max_retries=maybe(int32),
    ttl=maybe(positive),
    delay=maybe(positive),
    run_at=maybe(times),
    timeout=maybe(positive),
    key=maybe(text),
    unique=maybe(uniques),
    labels=labels,
    concurrency_key=maybe(text),
)
accepted = st.builds(
    JobSpec,
    payload=st.binary(max_size=50),
    queue=text,
    type=text,
    priority=st.integers(0, 9),
    max_retries=int32,
    ttl=maybe(positive),
    run_at=maybe(times),
    timeout=maybe(positive),
    key=maybe(text),
    unique=maybe(st.builds(replace, uniques, owner=text)),
    labels=labels,
    concurrency_key=maybe(text),
)
jobs = st.builds(
    Job,
    id=uuids,
    seq=int63,
    spec=accepted,
    state=st.sampled_from(State),
    version=int63,
    attempt=int32,
    retry_count=int32,
    created_at=times,
    updated_at=times,
    expires_at=maybe(times),
    worker_id=maybe(text),
    cancel_requested=st.booleans(),
    started_at=maybe(times),
    completed_at=maybe(times),
    next_retry_at=maybe(times),
    result=maybe(st.binary(max_size=20)),
    error=text,
    reason=st.sampled_from(Reason),
    progress=maybe(st.builds(Progress, value=maybe(st.floats(0, 1)), text=text, at=times)),
)
events = st.builds(
    Event,
    job_id=uuids,
    version=int63,
    from_state=maybe(st.sampled_from(State)),
    to_state=st.sampled_from(State),
    reason=st.sampled_from(Reason),
    at=times,
    attempt=int32,
    worker_id=maybe(text),
    detail=text,
    queue=text,
)
queues = st.builds(
    Queue,
    name=text,
    max_retries=int32,
    ttl=maybe(positive),
    timeout=maybe(positive),
    capacity=int63,
    retry_profile=text,
    retry_base=maybe(positive),
    retry_max=maybe(positive),
    retry_jitter=maybe(st.floats(0, 1)),
    priority_weights=maybe(st.dictionaries(st.integers(0, 9), int32, min_size=1)),
    retention=maybe(positive),
    dead_letter_retention=maybe(positive),
    max_running=maybe(int63),
    rate=maybe(int63),
    rate_period=maybe(positive),
    rate_burst=maybe(int63),
    key_max_running=maybe(int63),
    key_rate=maybe(int63),
    key_rate_period=maybe(positive),
    key_rate_burst=maybe(int63),
    key_weights=maybe(st.dictionaries(text, int32, min_size=1)),
    paused=st.booleans(),
    created_at=times,
)


def of_its_queue(stats):
    """With types that wait in this very queue."""
    waiting = (WaitingType(stats.queue.name, type, jobs) for type, jobs in stats.unserved)
    return replace(stats, unserved=tuple(waiting))


stats = st.builds(
    QueueStats,
    queue=queues,
    depth=st.dictionaries(st.sampled_from(State), int63),
    processed=int63,
    succeeded=int63,
    failed=int63,
    run_seconds=positive,
    timed=int63,
    unserved=st.lists(st.tuples(text, int63), max_size=2).map(tuple),
    held_back=st.lists(st.builds(HeldBack, text, int63, maybe(positive)), max_size=2).map(tuple),
).map(of_its_queue)
infos = st.builds(
    WorkerInfo,
    id=text,
    incarnation=int63,
    hostname=text,
    pid=int32,
    concurrency=int32,
    queues=st.lists(text).map(tuple),
    version=text,
    fallback=st.booleans(),
    types=maybe(st.frozensets(text, min_size=1)),
)
workers = st.builds(
    Worker,
    info=st.builds(replace, infos, owner=text),
    status=st.sampled_from(WorkerStatus),
    registered_at=times,
    last_seen=times,
    running=int32,
    overrun=int32,
    queues_left_out=int32,
    types_left_out=int32,
    breakers=st.lists(st.builds(OpenBreaker, text, int32, times, int32), max_size=2).map(tuple),
)
healths = st.builds(
    Health,
    ok=st.booleans(),
    version=text,
    components=st.lists(st.builds(ComponentHealth, text, st.booleans(), text), max_size=3),
)
assignments = st.builds(
    Assignment,
    seq=int63,
    id=uuids,
    spec=st.builds(
        JobSpec,
        payload=st.binary(max_size=50),
        queue=text,
        type=text,
        priority=st.integers(0, 9),
        max_retries=int32,
        timeout=maybe(positive),
        labels=labels,
    ),
    attempt=int32,
    lease=int63,
    worker_id=st.just("w"),
    retry_count=int32,
    created_at=times,
    expires_in=maybe(positive),
)
reports = st.builds(
    Transition,
    seq=int63,
    move=st.sampled_from([move for move in Move if move in REPORTABLE]),
    lease=int63,
    result=maybe(st.binary(max_size=20)),
    error=text,
    retryable=st.booleans(),
    retry_after=maybe(positive),
    ran_for=maybe(positive),
)
pulses = st.builds(
    Pulse,
    known=st.booleans(),
    status=st.sampled_from(WorkerStatus),
    cancelled=st.lists(int63, max_size=3),
    lost=st.lists(int63, max_size=3),
)
retry_queries = st.builds(
    RetryQuery,
    queue=maybe(text),
    type=maybe(text),
    reasons=st.lists(st.sampled_from(Reason), min_size=1, max_size=3).map(tuple),
    error=text,
    since=maybe(times),
    until=maybe(times),
    page_token=text,
    dry_run=st.booleans(),
)
job_queries = st.builds(
    JobQuery,
    queue=maybe(text),
    states=st.lists(st.sampled_from(State), max_size=3).map(tuple),
    type=maybe(text),
    reasons=st.lists(st.sampled_from(Reason), max_size=3).map(tuple),
    error=text,
    since=maybe(times),
    until=maybe(times),
    limit=int32,
    page_token=text,
)
retrieds = st.builds(
    Retried,
    looked_at=int63,
    matched=int63,
    retried=int63,
    refused=st.lists(st.builds(NotRetried, uuids, text), max_size=3),
    next_page_token=text,
)
deleteds = st.builds(
    Deleted,
    looked_at=int63,
    matched=int63,
    deleted=int63,
    refused=st.lists(st.builds(NotDeleted, uuids, text), max_size=3),
    next_page_token=text,
)
fact_values = st.recursive(
    st.none() | st.booleans() | text | st.integers(-(2**53), 2**53) | times,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
explanations = st.builds(
    Explanation,
    job_id=uuids,
    state=st.sampled_from(State),
    at=times,
    causes=st.lists(
        st.builds(
            Explained,
            code=st.sampled_from(Cause) | text,
            text=text,
            advice=text,
            facts=st.dictionaries(text, fact_values, max_size=4),
        ),
        max_size=3,
    ),
)
groupings = st.builds(
    DeadLetterGroups,
    groups=st.lists(
        st.builds(
            DeadLetterGroup,
            type=text,
            reason=st.sampled_from(Reason),
            error=text,
            part=text,
            jobs=int63,
            queues=st.lists(text, max_size=3),
            first_at=times,
            last_at=times,
            newest=uuids,
            by_time=st.lists(int63, max_size=24),
        ),
        max_size=3,
    ),
    looked_at=int63,
    complete=st.booleans(),
    since=times,
    until=times,
)
results = st.one_of(
    st.builds(SubmitResult.accepted, uuids),
    st.builds(SubmitResult.duplicate, uuids),
    st.builds(SubmitResult.conflict, uuids, text),
    st.builds(SubmitResult.refused, st.builds(InvalidArgument, text, text)),
)


def retry_request(query):
    return retry_query_to_pb(query, operator_pb2.RetryDeadLettersRequest)


def delete_request(query):
    return retry_query_to_pb(query, operator_pb2.DeleteDeadLettersRequest)


def over_the_wire(message):
    """Serialise and parse, as the network does."""
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    ("strategy", "to_pb", "from_pb"),
    [
        pytest.param(specs, spec_to_pb, spec_from_pb, id="spec"),
        pytest.param(job_queries, job_query_to_pb, job_query_from_pb, id="job query"),
        pytest.param(retry_queries, retry_request, retry_query_from_pb, id="retry-query"),
        pytest.param(retry_queries, delete_request, retry_query_from_pb, id="delete-query"),
        pytest.param(retrieds, retried_to_pb, retried_from_pb, id="retried"),
        pytest.param(deleteds, deleted_to_pb, deleted_from_pb, id="deleted"),
        pytest.param(explanations, explanation_to_pb, explanation_from_pb, id="explanation"),
        pytest.param(groupings, groups_to_pb, groups_from_pb, id="groups"),
        pytest.param(jobs, job_to_pb, job_from_pb, id="job"),
        pytest.param(events, event_to_pb, event_from_pb, id="event"),
        pytest.param(queues, queue_to_pb, queue_from_pb, id="queue"),
        pytest.param(stats, stats_to_pb, stats_from_pb, id="stats"),
        pytest.param(infos, info_to_pb, partial(info_from_pb, owner=IN_PROCESS), id="worker info"),
        pytest.param(workers, worker_to_pb, worker_from_pb, id="worker"),
        pytest.param(healths, health_to_pb, health_from_pb, id="health"),
        pytest.param(reports, report_to_pb, report_from_pb, id="report"),
        pytest.param(pulses, pulse_to_pb, pulse_from_pb, id="pulse"),
        pytest.param(
            assignments,
            assignment_to_pb,
            lambda message: assignment_from_pb(message, "w"),
            id="assignment",
        ),
    ],
)
@given(data=st.data())
def test_round_trip(strategy, to_pb, from_pb, data):
    thing = data.draw(strategy)
    assert from_pb(over_the_wire(to_pb(thing))) == thing


@given(results)
def test_submit_results_keep_their_errors(result):
    back = result_from_pb(over_the_wire(result_to_pb(result)))
    assert (back.status, back.job_id) == (result.status, result.job_id)
    assert type(back.error) is type(result.error)
    if result.error is not None:
        assert back.error is not None
        assert vars(back.error) == vars(result.error)
        assert back.status is SubmitStatus.REFUSED


def test_absent_fields_mean_what_the_queue_says():
    spec = spec_from_pb(types_pb2.JobSpec(payload=b"x"))
    assert spec == JobSpec(payload=b"x")
    assert queue_from_pb(types_pb2.Queue(name="q")) == Queue(name="q")


@given(st.floats(-1e10, 2.5e11))
def test_timestamps_are_exact_to_the_nanosecond(at):
    stamped = stamp(at)
    assert stamped is not None
    assert 0 <= stamped.nanos < 1_000_000_000
    assert seconds(stamped) == pytest.approx(at, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 2**40}, "priority"),
        ({"max_retries": 2**40}, "max_retries"),
        ({"payload": 7}, "payload"),
        ({"queue": "\ud800"}, "queue"),
        ({"ttl": "soon"}, "ttl"),
        ({"run_at": float("inf")}, "run_at"),
        ({"run_at": float("nan")}, "run_at"),
        ({"labels": {"a": 1}}, "labels"),
        ({"key": 5}, "idempotency_key"),
    ],
)
def test_what_the_wire_cannot_carry_is_named(changes, field):
    with pytest.raises(InvalidArgument) as caught:
        spec_to_pb(JobSpec(**{"payload": b"x", **changes}))
    assert caught.value.field == field


def test_every_enum_value_is_mapped():
    assert {v.name for v in types_pb2.JobState.DESCRIPTOR.values} == {
        "JOB_STATE_UNSPECIFIED",
        *(f"JOB_STATE_{state.name}" for state in State),
    }
    assert all(types_pb2.JobState.Value(f"JOB_STATE_{s.name}") == s.value for s in State)
    assert len(types_pb2.Reason.DESCRIPTOR.values) == len(Reason) + 1
    assert len(types_pb2.WorkerStatus.DESCRIPTOR.values) == len(WorkerStatus) + 1
    assert len(worker_pb2.ReportKind.DESCRIPTOR.values) == len(REPORTABLE) + 1


def test_an_unknown_state_from_a_newer_server_is_said_to_be_one():
    with pytest.raises(Internal, match="newer"):
        STATES.from_pb(99)


@pytest.mark.parametrize("move", [move for move in Move if move not in REPORTABLE])
def test_moves_of_the_server_cannot_be_reported(move):
    with pytest.raises(InvalidArgument, match="may not report"):
        report_to_pb(Transition(1, move, 2))
