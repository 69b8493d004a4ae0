"""The two protos are what the document freezes: packages, services, fields, numbers, values."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from tests import patience

ROOT = Path(__file__).parents[3]
FILES = ("taskqueue_public.proto", "taskqueue_internal.proto")

pytestmark = pytest.mark.req("tq:PROTO")

SERVICES = {
    "taskqueue.v1.TaskQueuePublicService": "SubmitJob GetJobStatus GetJobResult CancelJob ListJobs",
    "taskqueue.internal.v1.JobInternalService": "CreateJob DeleteJobIfStatus GetJobRecord"
    " ListJobRecords TransitionJobStatus SetCancelRequested",
    "taskqueue.internal.v1.QueueInternalService": "EnqueueJob DequeueJob RemoveJobIfPresent",
    "taskqueue.internal.v1.CoordinatorInternalService": "WorkerHeartbeat FetchWork"
    " ReportWorkOutcome",
    "taskqueue.internal.v1.ResultInternalService": "StoreResult GetResult",
}

ENUMS = {
    "JobStatus": {
        "JOB_STATUS_UNSPECIFIED": 0,
        "QUEUED": 1,
        "RUNNING": 2,
        "DONE": 3,
        "FAILED": 4,
        "CANCELED": 5,
    },
    "JobOutcome": {
        "JOB_OUTCOME_UNSPECIFIED": 0,
        "JOB_OUTCOME_SUCCEEDED": 1,
        "JOB_OUTCOME_FAILED": 2,
        "JOB_OUTCOME_CANCELED": 3,
    },
    "JobSort": {"JOB_SORT_UNSPECIFIED": 0, "CREATED_AT_DESC": 1, "CREATED_AT_ASC": 2},
}

# As the document writes them; fields are numbered in its order.
PUBLIC = """
JobSpec { string job_type; uint32 work_duration_ms; uint32 payload_size_bytes;
  map<string, string> labels; }
JobSummary { string job_id; JobStatus status; string job_type; int64 created_at_ms;
  int64 started_at_ms; int64 finished_at_ms; bool cancel_requested; }
PageRequest { uint32 page_size; string page_token; }
PageResponse { string next_page_token; }
SubmitJobRequest { JobSpec spec; string client_request_id; }
SubmitJobResponse { string job_id; JobStatus initial_status; int64 accepted_at_ms; }
GetJobStatusRequest { string job_id; }
GetJobStatusResponse { string job_id; JobStatus status; bool cancel_requested; int64 created_at_ms;
  int64 started_at_ms; int64 finished_at_ms; string failure_reason; }
GetJobResultRequest { string job_id; }
GetJobResultResponse { string job_id; bool result_ready; JobStatus terminal_status;
  bytes output_bytes; string output_summary; uint32 runtime_ms; string checksum; }
CancelJobRequest { string job_id; string reason; }
CancelJobResponse { string job_id; bool accepted; JobStatus current_status; bool already_terminal; }
ListJobsRequest { repeated JobStatus status_filter; PageRequest page; JobSort sort; }
ListJobsResponse { repeated JobSummary jobs; PageResponse page; }
"""
INTERNAL = """
CreateJobRequest { JobSpec spec; string client_request_id; }
CreateJobResponse { string job_id; JobStatus status; }
DeleteJobIfStatusRequest { string job_id; JobStatus expected_status; }
DeleteJobIfStatusResponse { bool deleted; JobStatus current_status; }
GetJobRecordRequest { string job_id; }
GetJobRecordResponse { JobSummary summary; string failure_reason; }
ListJobRecordsRequest { repeated JobStatus status_filter; PageRequest page; JobSort sort; }
ListJobRecordsResponse { repeated JobSummary jobs; PageResponse page; }
TransitionJobStatusRequest { string job_id; JobStatus expected_from_status; JobStatus to_status;
  string actor; string reason; }
TransitionJobStatusResponse { bool applied; JobStatus current_status; }
SetCancelRequestedRequest { string job_id; bool cancel_requested; string reason; }
SetCancelRequestedResponse { bool applied; JobStatus current_status; }
EnqueueJobRequest { string job_id; int64 enqueued_at_ms; }
EnqueueJobResponse { bool accepted; }
DequeueJobRequest { string worker_id; }
DequeueJobResponse { bool found; string job_id; }
RemoveJobIfPresentRequest { string job_id; }
RemoveJobIfPresentResponse { bool removed; }
WorkerHeartbeatRequest { string worker_id; int64 heartbeat_at_ms; uint32 capacity_hint; }
WorkerHeartbeatResponse { bool accepted; uint32 next_heartbeat_in_ms; }
FetchWorkRequest { string worker_id; }
FetchWorkResponse { bool assigned; string job_id; JobSpec spec; uint32 retry_after_ms; }
ReportWorkOutcomeRequest { string worker_id; string job_id; JobOutcome outcome; uint32 runtime_ms;
  string failure_reason; string output_summary; bytes output_bytes; string checksum; }
ReportWorkOutcomeResponse { bool accepted; }
StoreResultRequest { string job_id; JobStatus terminal_status; uint32 runtime_ms;
  string output_summary; bytes output_bytes; string checksum; }
StoreResultResponse { bool stored; bool already_exists; JobStatus current_terminal_status; }
GetResultRequest { string job_id; }
GetResultResponse { bool found; string job_id; JobStatus terminal_status; uint32 runtime_ms;
  string output_summary; bytes output_bytes; string checksum; }
"""
# What was added since, under new numbers, as the document allows.
ADDED = {
    "CreateJobResponse": {"created": ("bool", 3)},
    "GetJobRecordResponse": {"spec": ("JobSpec", 3)},
    "WorkerHeartbeatRequest": {"running_job_ids": ("repeated string", 4)},
}

_SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_INT64: "int64",
}


def written(text, added=ADDED):
    found = {}
    for name, body in re.findall(r"(\w+) \{(.*?)\}", text, re.DOTALL):
        fields = [field.split() for field in body.split(";") if field.strip()]
        found[name] = {
            field[-1]: (" ".join(field[:-1]), number) for number, field in enumerate(fields, 1)
        } | added.get(name, {})
    return found


def kind(field):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{kind(key)}, {kind(value)}>"
    of = field.message_type or field.enum_type
    one = of.name if of is not None else _SCALARS[field.type]
    return f"repeated {one}" if field.is_repeated else one


def declared(file):
    return {
        message.name: {field.name: (kind(field), field.number) for field in message.fields}
        for message in file.message_types_by_name.values()
    }


@pytest.mark.req("tq:LOCK-11")
def test_two_files_two_packages():
    assert {(file.DESCRIPTOR.name, file.DESCRIPTOR.package) for file in (public, internal)} == set(
        zip(FILES, ("taskqueue.v1", "taskqueue.internal.v1"), strict=True)
    )
    assert [one.name for one in internal.DESCRIPTOR.dependencies] == [FILES[0]]
    assert not public.DESCRIPTOR.dependencies
    assert sorted(path.name for path in (ROOT / "proto").glob("*.proto")) == sorted(FILES)


@pytest.mark.req("tq:LOCK-26", "tq:LOCK-21")
def test_services_and_their_methods():
    found = {
        service.full_name: {method.name: method for method in service.methods}
        for file in (public, internal)
        for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert {name: set(methods) for name, methods in found.items()} == {
        name: set(methods.split()) for name, methods in SERVICES.items()
    }
    for methods in found.values():
        for name, method in methods.items():
            assert (method.input_type.name, method.output_type.name) == (
                f"{name}Request",
                f"{name}Response",
            )
            assert not method.client_streaming
            assert not method.server_streaming


@pytest.mark.req("tq:LOCK-6", "tq:LOCK-10", "tq:LOCK-29")
@pytest.mark.parametrize(("file", "text"), [(public, PUBLIC), (internal, INTERNAL)])
def test_messages_and_their_fields(file, text):
    assert declared(file.DESCRIPTOR) == written(text)


@pytest.mark.req("tq:LOCK-5")
def test_enums_and_their_values():
    enums = public.DESCRIPTOR.enum_types_by_name
    assert {name: dict(public.__dict__[name].items()) for name in enums} == ENUMS
    assert not internal.DESCRIPTOR.enum_types_by_name  # one place for what clients see


def breaking(folder, change):
    """Return the output of ``scripts/proto --breaking`` with one of the protos changed."""
    shutil.copytree(ROOT / "proto", folder / "proto")
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "proto", folder / "scripts" / "proto")
    (folder / ".venv").symlink_to(sys.prefix)
    name, before, after = change
    file = folder / "proto" / name
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    return subprocess.run(
        [sys.executable, folder / "scripts" / "proto", "--breaking"],
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
    )


def compiled(folder, made):
    """The two protos of a folder, by their names."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
    command += [f"--descriptor_set_out={made}", *FILES]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patience.longest(50))
    assert ended.returncode == 0, ended.stderr
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(made.read_bytes()).file:
        pool.Add(file)
    return {name: pool.FindFileByName(name) for name in FILES}


def methods_of(files):
    return {
        one.full_name: {method.name for method in one.methods}
        for file in files
        for one in file.services_by_name.values()
    }


def values_of(file):
    return {
        name: {value.name: value.number for value in one.values}
        for name, one in file.enum_types_by_name.items()
    }


def test_the_code_is_that_of_the_protos(tmp_path):
    made = compiled(ROOT / "proto", tmp_path / "set")
    for name, used in zip(FILES, (public.DESCRIPTOR, internal.DESCRIPTOR), strict=True):
        assert used.package == made[name].package
        assert declared(used) == declared(made[name])
        assert values_of(used) == values_of(made[name])
        assert methods_of([used]) == methods_of([made[name]])


def test_changes_are_compared_with_all_that_the_document_freezes(tmp_path):
    """A part that the last release does not have may still be changed."""
    released = compiled(ROOT / "proto" / ".snapshot", tmp_path / "set")
    for name, text in zip(FILES, (PUBLIC, INTERNAL), strict=True):
        there = declared(released[name])
        for message, fields in written(text, added={}).items():
            assert fields.items() <= there[message].items()
    assert methods_of(released.values()) == {
        name: set(methods.split()) for name, methods in SERVICES.items()
    }
    assert values_of(released[FILES[0]]) == ENUMS


@pytest.mark.parametrize(
    "change",
    [
        (FILES[0], "string client_request_id = 2;", "string request_key = 2;"),
        (FILES[0], "CANCELED = 5;", "CANCELED = 6;"),
        (FILES[0], "uint32 work_duration_ms = 2;", "uint32 work_duration_ms = 12;"),
        (FILES[1], "bool already_exists = 2;", ""),
        (FILES[1], "service QueueInternalService", "service QueueService"),
    ],
    ids=["renamed", "renumbered value", "renumbered field", "removed", "renamed service"],
)
def test_a_breaking_change_is_noticed(tmp_path, change):
    made = breaking(tmp_path, change)
    assert made.returncode != 0
    assert change[0] in made.stdout


def test_an_added_field_breaks_nothing(tmp_path):
    before = "string failure_reason = 2;"
    made = breaking(tmp_path, (FILES[1], before, f"{before}\n  string note = 9;"))
    assert made.returncode == 0, made.stdout + made.stderr
