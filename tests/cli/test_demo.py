"""The demo, as its output is piped into a file."""

from __future__ import annotations

import re

import pytest

from tests.cli import processes


@pytest.mark.req("inp:DEMO", "inp:BACKPRESSURE", "inp:IDEMP", "inp:POOL")
def test_the_demo_does_what_it_says(tmp_path):
    answer = processes.run("demo", "--fast", "--seed", "3", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    text = answer.stdout
    assert "5 workers, capacity 100, memory store (not durable)" in text
    priorities = re.search(r"Seeded 15 jobs with priorities ([\d ]+) \(", text)
    assert priorities is not None
    assert len(priorities[1].split()) == 15
    assert len(set(priorities[1].split())) > 1
    assert "same job again:        rejected" in text
    assert "same key, other job:   rejected" in text
    flood = re.search(r"(\d+) accepted, (\d+) refused by backpressure", text)
    assert flood is not None
    accepted, refused = int(flood[1]), int(flood[2])
    assert accepted + refused == 200
    assert refused >= 80  # 100 fit beside what is being run
    stats = re.findall(r"pending=(\d+).* dead_lettered=(\d+)  retries=(\d+)", text)
    assert len(stats) >= 2
    pending, dead, retries = map(int, stats[-1])
    assert pending == 0
    assert dead > 0
    assert retries > 0
    summary = re.search(r"(\d+) jobs done, (\d+) retries, (\d+) dead letters", text)
    assert summary is not None
    assert int(summary[1]) + int(summary[3]) == 15 + 1 + accepted
    assert int(summary[3]) == dead
    letters = re.findall(r"dead letter [0-9a-f-]{36}: RuntimeError: .*RETRIES_EXHAUSTED", text)
    assert len(letters) == dead
    order = re.search(r"the seeded jobs started in the order of priority: ([\d ]+)", text)
    assert order is not None
    assert order[1].split() == sorted(priorities[1].split(), reverse=True)
    helped = re.search(r"(\d+) jobs failed at first and were retried: orders ([\d ]+)", text)
    assert helped is not None
    assert int(helped[1]) == len(helped[2].split()) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_makes_the_same_choices(tmp_path):
    first, second = (
        processes.run("demo", "--fast", "--seed", "5", cwd=tmp_path).stdout for _ in range(2)
    )
    line = next(line for line in first.splitlines() if "Seeded" in line)
    assert line in second
