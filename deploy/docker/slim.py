"""Takes out of an installed folder what a running program does not need: see `main`.

    python slim.py FOLDER

Run while an image is built, with binutils' `strip` in PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

# Sources of compiled modules, and what only type checkers read.
UNUSED = {".c", ".cpp", ".h", ".hpp", ".pxd", ".pyc", ".pyi", ".pyx"}
FOLDERS = {"__pycache__", "test", "tests"}
# Parts of packages that nothing here imports: readers of 500 languages, which rich would colour,
# and the client of a server that is not Kafka.
PARTS = ("pygments/lexers/*.py", "confluent_kafka/schema_registry/**/*.py")
KEPT = {"__init__.py", "_mapping.py"}
# A library that a wheel brings along was moved to its place by a tool whose work strip can undo.
MOVED = ".libs"
WORTH_IT = 100_000  # bytes


def main() -> int:
    folder = Path(sys.argv[1])
    for inside in sorted(folder.rglob("*")):
        if inside.is_dir() and not inside.is_symlink() and inside.name in FOLDERS:
            shutil.rmtree(inside)
    for part in (found for pattern in PARTS for found in folder.rglob(pattern)):
        if part.name not in KEPT:
            part.unlink()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix in UNUSED:
            file.unlink()
        elif file.suffix == ".so" and file.stat().st_size > WORTH_IT:
            strip(file)
    return 0


def strip(file: Path) -> None:
    """Without its debugging symbols, if it can still be loaded then."""
    if any(part.name.endswith(MOVED) for part in file.parents):
        return
    before = file.read_bytes()
    subprocess.run(["strip", "--strip-unneeded", file], check=True)
    if subprocess.run(
        [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", file],
        capture_output=True,
        check=False,
    ).returncode:
        file.write_bytes(before)


if __name__ == "__main__":
    sys.exit(main())
