"""Every message that was seen in public is recognised, whatever is around it; nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.doctor.explain import find_page
from lpx.doctor.messages import recognise
from tests.doctor import captured

CASES = [
    (captured.MISMATCH, "library-mismatch", "570.124"),
    (captured.MISMATCH_OLD, "library-mismatch", "old module"),
    (captured.NO_COMMUNICATION, "no-communication", "does not run"),
    (captured.NO_COMMUNICATION_WRAPPED, "no-communication", "does not run"),
    (captured.NOUVEAU_LOG, "nouveau", "nouveau"),
    ("NVRM: No NVIDIA graphics adapter probed!", "nouveau", "nouveau"),
    (captured.KEY_REJECTED_LOG, "key-rejected", "Secure Boot"),
    (captured.LOST_UNKNOWN, "device-handle", "0000:0B:00.0 does not answer (Unknown Error"),
    (captured.LOST_NOT_FOUND, "device-handle", "0000:01:00.0 does not answer (Not Found"),
    (captured.LOST_REBOOT, "gpu-lost", "lost"),
    (captured.NO_DEVICES, "no-devices", "no card"),
    (captured.CONTAINER_LOST, "container-lost-gpu", "daemon-reload"),
    (captured.NO_GPU_DRIVER, "no-gpu-driver", "toolkit is missing"),
    (captured.NO_GPU_DRIVER.replace('""', "“”"), "no-gpu-driver", "toolkit is missing"),  # as pages print it
    (captured.COMPOSE_NO_GPU, "compose-no-gpu", "compose"),
    (captured.UNKNOWN_RUNTIME, "unknown-runtime", "no runtime called nvidia"),
    (captured.REQUIREMENT, "cuda-requirement", "cuda>=12.8"),
    (captured.REQUIREMENT_OLD, "cuda-requirement", "cuda>=11.6"),
    (captured.NOT_LOADED, "nvml-no-driver", "not loaded on the host"),
    (captured.TOO_OLD, "driver-too-old", "CUDA 12.4 at most"),
    (captured.NO_KERNEL, "no-kernel-image", "compute capability"),
    (captured.BAD_KERNEL, "no-kernel-image", "compute capability"),
    (captured.FORWARD, "forward-compat", "cuda-compat"),
    (captured.FORWARD_LLAMA, "forward-compat", "cuda-compat"),
    *((text, "port-in-use", "port") for text in captured.PORT_TEXTS),
    (captured.CANNOT_ASSIGN, "cannot-assign", "no such address"),
    ("NVRM: API mismatch: the client has the version 550.54.14, but\n"
     "NVRM: this kernel module has the version 535.161.07.", "module-mismatch", "550.54.14"),
    ("nvidia-container-cli: mount error: file creation failed: unknown", "container-cli", "file creation failed"),
    ("docker: permission denied while trying to connect to the Docker daemon socket", "docker-permission", "may not"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "gpu-memory", "used up"),
    ("Error response from daemon: unresolvable CDI devices nvidia.com/gpu=all: unknown", "cdi-unresolvable", "CDI"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "said"), CASES, ids=[f"{at}-{case[1]}" for at, case in enumerate(CASES)])
def test_message_is_recognised(text: str, key: str, said: str) -> None:
    first = recognise(f"2026-01-01 10:00:00 ERROR {text}\nTraceback …")[0]
    assert first.key == key
    assert said in first.cause
    assert first.do
    assert find_page(first.page)
    assert "{" not in first.cause + first.do


def test_three_texts_of_docker_are_told_apart() -> None:
    keys = [
        recognise(text)[0].key for text in (captured.NO_GPU_DRIVER, captured.COMPOSE_NO_GPU, captured.UNKNOWN_RUNTIME)
    ]
    assert len(set(keys)) == 3


def test_requirement_names_the_driver_that_is_needed() -> None:
    assert "570.26 or later" in recognise(captured.REQUIREMENT)[0].do


@pytest.mark.parametrize(
    "text", ["", "all is well", "Failed to open the file", "address book in use", "GPU 0 found", "NVIDIA driver 550"]
)
def test_other_texts_mean_nothing(text: str) -> None:
    assert recognise(text) == []


@given(st.text())
def test_any_text_is_no_crash(text: str) -> None:
    recognise(text)


@given(st.sampled_from([case[0] for case in CASES]), st.text(max_size=40), st.integers(0, 200))
def test_cut_and_spoilt_messages_are_no_crash(text: str, noise: str, at: int) -> None:
    recognise(text[:at] + noise + text[at:])
