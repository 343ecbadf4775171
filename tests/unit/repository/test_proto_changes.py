"""What `make check-proto` refuses: a change of the API that breaks clients."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUF = ROOT / ".venv-proto" / "bin" / "buf"


def breaking(folder: Path) -> str:
    command = [str(BUF), "breaking", str(folder), "--against", str(ROOT / "proto" / "baseline.binpb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(not BUF.exists(), reason="buf is not installed: make check-proto installs it")
def test_a_new_field_is_welcome_and_a_new_number_is_not(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto" / "muster" / "v1", tmp_path / "muster" / "v1")
    event = tmp_path / "muster" / "v1" / "event.proto"
    text = event.read_text()
    event.write_text(text.replace("  string cursor = 2;\n", "  string cursor = 2;\n  string later = 3;\n", 1))
    assert breaking(tmp_path) == ""
    event.write_text(text.replace("string cursor = 1;", "string cursor = 5;"))
    assert 'Previously present field "1" with name "cursor"' in breaking(tmp_path)
