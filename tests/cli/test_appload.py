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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nundefined()\n", "NameError: name 'undefined' is not defined"),
        ("x = 1\nx = (\n", "SyntaxError: '(' was never closed"),
        ("x = 1\nimport no_such_module\n", "needs the module 'no_such_module', which is not inst"),
        ("x = 1\nfrom os import no_such_name\n", "ImportError: cannot import name 'no_such_name'"),
    ],
)
def test_an_error_in_the_module_is_shown_with_file_and_line(tmp_path, monkeypatch, text, said):
    name = f"broken_app_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument) as raised:
        load_attribute(f"{name}:app")
    first, *lines = raised.value.message.splitlines()
    assert said in first
    assert lines[0].startswith(f'  File "{tmp_path / name}.py", line 2')
    assert text.splitlines()[1] in lines[1]
    assert "importlib" not in raised.value.message


def test_a_file_name_in_place_of_a_module_is_explained(tmp_path, monkeypatch):
    (tmp_path / "file_app.py").write_text("app = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument, match=r"no module 'file_app.py'.*; write file_app:app"):
        load_attribute("file_app.py:app")
