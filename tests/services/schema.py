"""What the databases of tests hold before a test begins."""

from __future__ import annotations

import importlib

_MIGRATIONS = "jobqueue.stores.postgres.migrate"


async def prepare(dsn: str) -> None:
    """Apply the migrations to an empty database, once for each run: the others are its copies."""
    try:
        migrations = importlib.import_module(_MIGRATIONS)
    except ModuleNotFoundError as missing:
        if missing.name is None or not _MIGRATIONS.startswith(missing.name):
            raise
        return  # there is no PostgreSQL store in this checkout
    await migrations.migrate(dsn)
