"""What an update of a queue means: settings that are named, put back, or kept."""

from __future__ import annotations

from dataclasses import fields, replace

from jobqueue.core.queue import SETTINGS, Queue, QueueSpec, QueueUpdate

SERVER = Queue(
    name="", max_retries=7, ttl=60.0, retry_profile="producer", retry_base=2.0, retry_jitter=0.5
)


def test_everything_but_its_name_its_pause_and_its_age_can_be_changed():
    others = {field.name for field in fields(Queue)} - {"name", "paused", "created_at"}
    assert set(SETTINGS) == others


def test_only_what_is_named_changes():
    queue = Queue(name="q", max_retries=1, ttl=5.0)
    assert QueueUpdate().said == {}
    assert QueueUpdate(max_retries=0, capacity=9).resolve(queue, SERVER) == {
        "max_retries": 0,
        "capacity": 9,
    }


def test_none_puts_a_setting_back_to_the_servers():
    queue = Queue(name="q", max_retries=1, ttl=5.0, priority_weights={9: 1})
    back = QueueUpdate(max_retries=None, ttl=None, priority_weights=None)
    assert back.resolve(queue, SERVER) == {"max_retries": 7, "ttl": 60.0, "priority_weights": None}
    assert QueueUpdate(priority_weights={}).resolve(queue, SERVER) == {"priority_weights": None}


def test_the_servers_figures_go_with_the_servers_profile():
    assert QueueSpec(name="q").resolve(SERVER) == replace(SERVER, name="q")
    other = QueueSpec(name="q", retry_profile="default", retry_max=9.0).resolve(SERVER)
    assert (other.retry_base, other.retry_max, other.retry_jitter) == (None, 9.0, None)
    queue = Queue(name="q", retry_profile="default", retry_base=1.0)
    assert QueueUpdate(retry_base=None).resolve(queue, SERVER) == {"retry_base": None}
    everything = QueueUpdate(retry_profile=None, retry_base=None, retry_max=None)
    assert everything.resolve(queue, SERVER) == {
        "retry_profile": "producer",
        "retry_base": 2.0,
        "retry_max": None,
    }
