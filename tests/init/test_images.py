"""What the images start and how they check it, on a server that really runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.init.conftest import free_port, write_environment
from tests.init.image import Container, read_stages
from tests.server.live_server import eventually


@pytest.fixture
def root(tmp_path: Path, work: Path) -> Path:
    """The image's folders: the installed package, and the working folder where it is mounted."""
    write_environment(tmp_path / "root" / "opt" / "lpx-venv")
    (tmp_path / "root" / "lpx").symlink_to(work)
    return tmp_path / "root"


def test_the_image_serves_with_keys_and_its_health_check_tells(root: Path, work: Path, tmp_path: Path) -> None:
    stage = read_stages(work / "Dockerfile")[-1]
    port = free_port()
    container = Container(stage, root, tmp_path / "log", {"LPX_PORT": str(port)})
    try:
        eventually(lambda: container.health() == 0 or container.process.poll() is not None, "health")
        assert container.process.poll() is None, (tmp_path / "log").read_text()
        url = f"http://127.0.0.1:{port}"
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, trust_env=False).status_code == 401
        tested = subprocess.run(
            [work / "scripts" / "smoke-test.sh"],
            env={**os.environ, "LPX_PORT": str(port)},
            capture_output=True,
            text=True,
        )
        assert tested.returncode == 0, tested.stderr
        assert "overruled: host, port" in (tmp_path / "log").read_text()
    finally:
        code = container.end()
    assert code == 0
    assert container.health() == 1


def test_without_keys_the_image_refuses_to_listen(root: Path, work: Path, tmp_path: Path) -> None:
    (work / "config" / "keys.txt").unlink()
    container = Container(read_stages(work / "Dockerfile")[-1], root, tmp_path / "log", {"LPX_PORT": "0"})
    assert container.process.wait(120) != 0
    assert "LPX-E045" in (tmp_path / "log").read_text()


def test_the_cuda_image_ends_without_a_gpu_and_says_so(root: Path, work: Path, tmp_path: Path) -> None:
    container = Container(read_stages(work / "Dockerfile.cuda")[-1], root, tmp_path / "log", {"LPX_PORT": "0"})
    if container.process.wait(120) == 0:
        pytest.skip("a GPU is here")
    said = (tmp_path / "log").read_text()
    assert "GPU access" in said
    assert "listening" not in said
    assert container.health() in (1, 2)


def test_every_path_that_is_copied_is_there(work: Path) -> None:
    source = Path(__file__).parents[2]
    for name in ("Dockerfile", "Dockerfile.cuda"):
        build, final = read_stages(work / name)
        copied = [step.copied for step in build.steps if step.instruction == "COPY"]
        for place, names, _ in copied:
            assert place == "lpx"
            for each in names:
                assert (source / each).exists(), each
        assert {"pyproject.toml", "native", "src"} <= {each for _, names, _ in copied for each in names}
        assert [step.copied for step in final.steps if step.instruction == "COPY"] == [
            ("build", ["/opt/lpx-venv"], "/opt/lpx-venv")
        ]
