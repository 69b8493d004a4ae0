"""An app that ends the process while it is imported is told as such."""

from __future__ import annotations

import pytest

from jobqueue.cli.appload import load_attribute
from jobqueue.core.errors import InvalidArgument


def test_a_module_that_exits_is_an_error_not_an_exit(tmp_path, monkeypatch):
    (tmp_path / "leaving_app.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument, match="importing leaving_app failed: SystemExit"):
        load_attribute("leaving_app:app")
