import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import eventually, pending


def test_a_signal_in_the_middle_of_a_line_ends_it(tmp_path: Path) -> None:
    """Nobody reads what it writes when the signal comes."""
    (tmp_path / "out").write_bytes(b"x")
    copies = {str(tmp_path / "out"): f"file://{tmp_path}/there"}
    order = {"step": "outputs", "copies": copies, "credentials": "", "tries": 1}
    (tmp_path / "order").write_text(json.dumps(order))
    (tmp_path / "progress").touch()
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write_end, b"\n" * 4096)
    program = [sys.executable, "-I", "-m", "muster.supervisors.staging.stage"]
    with subprocess.Popen([*program, tmp_path / "order", tmp_path / "progress"], stdout=write_end) as stage:
        os.close(write_end)
        try:
            eventually(lambda: "pipe" in Path(f"/proc/{stage.pid}/wchan").read_text(), 60, "it waits for its reader")
            stage.send_signal(signal.SIGTERM)
            eventually(lambda: signal.SIGTERM not in pending(stage.pid), 60, "it has got the signal")
            with open(read_end, encoding="utf-8") as told:
                said = told.read().split("\n")
        finally:
            stage.kill()
    assert "outputs: ended by SIGTERM; no other output is delivered" in said
    assert stage.returncode == 128 + signal.SIGTERM
