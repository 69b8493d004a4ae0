"""The blocking client, for scripts, Django and Flask; the worker is a process of its own.

``python sync_script.py worker`` runs jobs until it gets a SIGTERM; the same file without an
argument submits some and waits for them.
"""

import sys

from jobqueue import JobQueue

app = JobQueue("sqlite:///jobs.db")


@app.task
def word_count(text: str) -> int:
    return len(text.split())


def main() -> None:
    with app.sync() as q:
        one = q.submit(word_count, "to be or not to be")
        many = q.submit_many(word_count, [("a b c",), ("",), ("one more",)])
        print("one:", one.result(timeout=30))
        print("many:", [job.result(timeout=30) for job in many])
        stats = q.run(app.operator.queue_stats("default"))
        print("processed:", stats.processed)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        app.run_worker(concurrency=4)
    else:
        main()
