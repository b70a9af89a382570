"""Hubs, addresses and what they do wrong: the right files, whole, or a reason that helps."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import DownloadError, LpxError, ModelFileError, UnsupportedModelError
from lpx.store.fetch import fetch
from lpx.store.folder import StoredModel, list_models
from lpx.store.http import Patience
from lpx.store.manifest import FileRecord, Manifest
from lpx.store.sources.plan import HubFile
from lpx.store.sources.reference import parse_reference
from lpx.store.sources.selection import choose, quant_of
from lpx.store.verify import verify
from tests.store.fake_hub import COMMIT, Answer, Hub, Request, cut, sha256, status
from tests.store.openable import gguf, hf_folder, split

CONTENT = gguf(3, 700_000)
OTHER = gguf(4)
PARTS = split(5)
QUANTS = "Someone/Tiny-Model-GGUF"
FOLDER = "someone/Folder"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    with Hub() as hub:
        hub.files = {
            QUANTS: {
                "README.md": b"hello",
                "tiny-model-q4_k_m.gguf": CONTENT,
                "Q8_0/tiny-model-Q8_0.gguf": OTHER,
                "mmproj-model-f16.gguf": OTHER,
                "big-f16-00001-of-00002.gguf": PARTS[0],
                "big-f16-00002-of-00002.gguf": PARTS[1],
            },
            FOLDER: {
                **hf_folder(6),
                "pytorch_model.bin": b"pickle",
                "consolidated.safetensors": CONTENT,
                "onnx/model.onnx": b"onnx",
                "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}',
            },
            "someone/pickles": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
        }
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MODELSCOPE_DOMAIN", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_TOKEN_PATH", "/nonexistent")
        yield hub


class Sleeps:
    """Pauses that do not happen, and how long they would have been."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def pull(hub: Hub, tmp_path: Path, sleeps: Sleeps):
    def call(reference: str, **options: object) -> StoredModel:
        return fetch(reference, tmp_path, patience=Patience(tries=4, sleep=sleeps), **options)  # type: ignore[arg-type]

    return call


# --- which files ---


@pytest.mark.parametrize("hub_name", ["hf", "ms"])
def test_a_precision_of_a_repository(pull, hub_name: str) -> None:
    model = pull(f"{hub_name}:{QUANTS}:q4_k_m")
    assert model.name == "tiny-model-q4_k_m"
    assert model.path.read_bytes() == CONTENT
    assert (model.source, model.revision, model.licence) == (f"{hub_name}:{QUANTS}:q4_k_m", COMMIT, "apache-2.0")
    assert model.version == sha256(CONTENT)[:12]
    assert verify(model).sound


def test_without_a_precision_it_is_q4_k_m(pull) -> None:
    assert pull(f"hf:{QUANTS}").name == "tiny-model-q4_k_m"


def test_a_file_in_a_folder_and_a_split_model(pull, tmp_path: Path) -> None:
    assert pull(f"hf:{QUANTS}:Q8_0/tiny-model-Q8_0.gguf").path.read_bytes() == OTHER
    parts = pull(f"hf:{QUANTS}:f16", name="parts")
    assert parts.path.name == "big-f16-00001-of-00002.gguf"
    assert parts.file_bytes == sum(map(len, PARTS))


@pytest.mark.parametrize("hub_name", ["hf", "ms"])
def test_a_repository_of_safetensors_comes_without_pickles(pull, hub_name: str) -> None:
    model = pull(f"{hub_name}:{FOLDER}")
    names = {path.relative_to(model.path).as_posix() for path in model.path.rglob("*") if path.is_file()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json", "manifest.json"}
    assert verify(model).sound
    assert model.tokenizer_sha256 == sha256(hf_folder(6)["tokenizer.json"])


def test_what_there_is_is_told_when_the_wrong_thing_is_asked_for(pull) -> None:
    with pytest.raises(DownloadError, match=r"no precision 'q2_k'; there are: f16, q4_k_m, q8_0"):
        pull(f"hf:{QUANTS}:q2_k")
    with pytest.raises(UnsupportedModelError, match="pickle"):
        pull("hf:someone/pickles")
    with pytest.raises(DownloadError, match="there is no hf:someone/nothing"):
        pull("hf:someone/nothing")
    with pytest.raises(DownloadError, match="no revision 'v9'"):
        pull(f"hf:{QUANTS}", revision="v9")
    with pytest.raises(DownloadError, match="ms:someone/nothing cannot be had"):
        pull("ms:someone/nothing")


def test_what_is_here_is_not_fetched_again(pull, hub: Hub, tmp_path: Path) -> None:
    first = pull(f"hf:{QUANTS}:q4_k_m")
    asked = len(hub.requests)
    assert pull(f"hf:{QUANTS}:q4_k_m").path == first.path
    assert pull(f"hf:{FOLDER}").path == pull(f"hf:{FOLDER}").path
    assert len(hub.requests) == asked + 4
    (tmp_path / "by-hand.gguf").write_bytes(CONTENT)  # adopted: nothing is copied or fetched
    assert pull(f"hf:{QUANTS}:q4_k_m", name="by-hand").path == tmp_path / "by-hand.gguf"
    assert len(hub.requests) == asked + 4


def test_another_state_of_a_repository_is_another_version(pull, hub: Hub) -> None:
    one = pull(f"ms:{QUANTS}:q4_k_m")
    hub.files[QUANTS]["tiny-model-q4_k_m.gguf"] = OTHER
    two = pull(f"ms:{QUANTS}:q4_k_m", make_current=False)
    assert one.version != two.version
    assert not two.current
    assert one.path.exists()


def test_a_token_goes_to_its_hub_and_not_where_that_redirects(pull, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    with Hub() as elsewhere:
        elsewhere.plain["x.gguf"] = CONTENT
        location = elsewhere.url.replace("127.0.0.1", "localhost") + "/files/x.gguf"
        hub.faults.append(status(302, *range(10), headers={"location": location}))
        assert pull(f"hf:{QUANTS}:q4_k_m").path.read_bytes() == CONTENT
        assert [request.headers.get("authorization") for request in elsewhere.requests] == [None]
    assert hub.requests[0].headers["authorization"] == "Bearer hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DownloadError, match="HF_TOKEN") as refused:
        pull(f"hf:{QUANTS}:q8_0")
    assert "hf_wrong" not in str(refused.value)


# --- addresses ---


def test_a_file_at_an_address(pull, hub: Hub) -> None:
    hub.plain["my model.gguf"] = CONTENT
    url = f"{hub.url}/files/my%20model.gguf"
    model = pull(f"{url}#sha256={sha256(CONTENT)}", insecure=True)
    assert (model.name, model.path.name) == ("my-model", "my model.gguf")
    assert pull(url, sha256=sha256(CONTENT), insecure=True).path == model.path
    with pytest.raises(DownloadError, match="not the file it should be"):
        pull(f"{url}#sha256={sha256(OTHER)}", insecure=True, name="other")
    assert [each.name for each in list_models(model.path.parents[2])] == ["my-model"]


def test_a_signed_address_is_not_kept_and_a_fresh_signature_goes_on(pull, hub: Hub, tmp_path: Path) -> None:
    """What signs a download is good for an hour, and for whoever reads it."""
    hub.plain["x.gguf"] = CONTENT
    hub.faults += [cut(0, 300_000), status(403, *range(1, 100))]
    url = f"{hub.url}/files/x.gguf"
    signed = [f"{url}?X-Amz-Signature=SECRET{number}#sha256={sha256(CONTENT)}" for number in range(2)]
    with pytest.raises(DownloadError) as refused:
        pull(signed[0], insecure=True)
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(CONTENT[:1000] in data for data in left)
    hub.faults.clear()
    before = len(hub.requests)
    model = pull(signed[1], insecure=True)
    assert [request.headers["range"] for request in hub.requests[before:]] == ["bytes=300000-"]
    assert model.source == f"{url}#sha256={sha256(CONTENT)}"
    left += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(b"SECRET" in data for data in left)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("http://example.com/x.gguf#sha256=" + "0" * 64, "no TLS"),
        ("https://example.com/x.gguf", "SHA-256"),
        ("https://example.com/x.gguf#sha256=123", "SHA-256"),
        ("https://user:pw@example.com/x.gguf#sha256=" + "0" * 64, "password"),
        ("hf:no-owner", "OWNER/NAME"),
        ("hf:../../etc", "OWNER/NAME"),
        ("hf:a/b/c", "OWNER/NAME"),
        ("ms:a/..", "OWNER/NAME"),
        ("pypi:package", "NAME==VERSION"),
        ("pypi:package==1.0;evil", "NAME==VERSION"),
        ("pypi:--index-url=x==1", "NAME==VERSION"),
    ],
)
def test_references_that_cannot_be(tmp_path: Path, reference: str, said: str) -> None:
    with pytest.raises(DownloadError, match=said):
        fetch(reference, tmp_path)


def test_a_page_is_no_model_even_if_its_hash_is_right(pull, hub: Hub, tmp_path: Path) -> None:
    hub.plain["x.gguf"] = page = b"<html>sorry</html>"
    with pytest.raises(DownloadError, match="no GGUF file"):
        pull(f"{hub.url}/files/x.gguf#sha256={sha256(page)}", insecure=True)
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]


def test_hubs_without_tls_are_on_this_machine(pull, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror.example")
    with pytest.raises(DownloadError, match=r"HF_ENDPOINT.*--insecure"):
        pull(f"hf:{QUANTS}")


def test_redirects_do_not_lead_to_worse_places(pull, hub: Hub) -> None:
    hub.faults.append(status(302, 0, headers={"location": "file:///etc/passwd"}))
    with pytest.raises(DownloadError, match="not a web address"):
        pull(f"hf:{QUANTS}:q8_0")
    hub.faults[:] = [status(302, *range(1, 40), headers={"location": f"{hub.url}/{QUANTS}/resolve/x/README.md"})]
    with pytest.raises(DownloadError, match="more than 10 times"):
        pull(f"hf:{QUANTS}:q8_0")


# --- what goes wrong on the way ---


def test_a_cut_connection_is_gone_on_with(pull, hub: Hub, sleeps: Sleeps) -> None:
    hub.faults += [cut(number, 100_000) for number in range(5)]
    assert pull(f"hf:{QUANTS}:q4_k_m").path.read_bytes() == CONTENT
    starts = [request.headers.get("range") for request in hub.requests]
    assert starts == [None, *(f"bytes={count}-" for count in range(100_000, 600_000, 100_000))]
    assert all(request.headers["if-range"] for request in hub.requests[1:])
    assert sleeps.slept == [1.0] * 5  # each came further, so patience began anew


def test_a_file_that_changes_on_the_way_begins_anew(pull, hub: Hub) -> None:
    hub.plain["x.gguf"] = CONTENT
    url = f"{hub.url}/files/x.gguf#sha256={sha256(OTHER)}"

    def change(request: Request, answer: Answer) -> None:
        hub.plain["x.gguf"] = OTHER

    hub.faults += [cut(0, 300_000), change]
    assert pull(url, insecure=True).path.read_bytes() == OTHER


def test_a_server_without_ranges_sends_all_again(pull, hub: Hub) -> None:
    hub.takes_ranges = False
    hub.faults.append(cut(0, 300_000))
    assert pull(f"hf:{QUANTS}:q4_k_m").path.read_bytes() == CONTENT
    assert len(hub.requests) == 2


def test_parts_that_do_not_fit_are_thrown_away_once(pull, hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(cut(0, 300_000))
    hub.faults += [status(503, 1, 2, 3, 4)]
    with pytest.raises(DownloadError):
        pull(f"hf:{QUANTS}:q4_k_m")
    (part,) = tmp_path.glob(".*/*.part")
    part.write_bytes(b"?" * 300_000)  # as after a power failure
    hub.faults.clear()
    assert pull(f"hf:{QUANTS}:q4_k_m").path.read_bytes() == CONTENT


def test_patience_ends_and_what_came_is_kept(pull, hub: Hub, sleeps: Sleeps, tmp_path: Path) -> None:
    hub.faults += [cut(0, 300_000), status(503, *range(1, 50))]
    with pytest.raises(DownloadError, match=r"503.*tried 4 times"):
        pull(f"hf:{QUANTS}:q4_k_m")
    assert sleeps.slept == [1.0, 2.0, 4.0]
    assert [path.stat().st_size for path in tmp_path.glob(".*/*.part")] == [300_000]
    assert list_models(tmp_path) == []
    hub.faults.clear()
    assert pull(f"hf:{QUANTS}:q4_k_m").path.read_bytes() == CONTENT
    assert hub.requests[-1].headers["range"] == "bytes=300000-"


def test_too_many_requests_are_asked_again_when_the_server_says(pull, hub: Hub, sleeps: Sleeps) -> None:
    hub.faults.append(status(429, 0, 1, headers={"retry-after": "7"}))
    pull(f"hf:{QUANTS}:q8_0")
    assert sleeps.slept == [7.0, 7.0]


@pytest.mark.parametrize(
    ("code", "said"), [(401, "private, gated"), (403, "private, gated"), (404, "has no"), (410, "has no"), (400, "400")]
)
def test_refusals_are_told_at_once(pull, hub: Hub, sleeps: Sleeps, code: int, said: str) -> None:
    hub.faults.append(status(code, 0))
    with pytest.raises(DownloadError, match=said):
        pull(f"hf:{QUANTS}:q8_0")
    assert (len(hub.requests), sleeps.slept) == (1, [])


@pytest.mark.parametrize("fault", ["longer", "shorter", "other", "flipped", "wrong part"])
def test_what_is_not_the_file_is_not_stored(pull, hub: Hub, tmp_path: Path, fault: str) -> None:
    def spoil(request: Request, answer: Answer) -> None:
        if fault == "longer":
            answer.body += b"more"
        elif fault == "shorter":
            answer.body = answer.body[:-5]
        elif fault == "other":
            answer.body = b"GGUF" + bytes(len(answer.body) - 4)
        elif fault == "flipped":
            answer.body = answer.body[:500] + bytes([answer.body[500] ^ 1]) + answer.body[501:]
        else:
            answer.status = 206
            answer.headers["content-range"] = f"bytes 7-{len(answer.body) + 6}/{len(answer.body) + 7}"

    hub.faults.append(spoil)
    with pytest.raises(DownloadError):
        pull(f"hf:{QUANTS}:q8_0")
    assert list_models(tmp_path) == []
    hub.faults.clear()
    assert pull(f"hf:{QUANTS}:q8_0").path.read_bytes() == OTHER


def test_a_body_without_an_end_is_stopped_at_its_size(pull, hub: Hub, tmp_path: Path) -> None:
    def lie(request: Request, answer: Answer) -> None:
        answer.body = CONTENT  # longer than the file is
        answer.headers["content-length"] = str(len(OTHER))

    hub.faults.append(lie)
    with pytest.raises(DownloadError):
        pull(f"hf:{QUANTS}:q8_0")
    assert all(path.stat().st_size <= len(OTHER) for path in tmp_path.glob(".*/*.part"))


def test_small_files_are_checked_by_gits_hash(pull, hub: Hub) -> None:
    def spoil(request: Request, answer: Answer) -> None:
        if request.path.endswith("tokenizer.json"):
            answer.body = answer.body.replace(b"{", b"[", 1)

    hub.faults.append(spoil)
    with pytest.raises(DownloadError, match="git"):
        pull(f"hf:{FOLDER}")


def test_files_that_would_lead_elsewhere_are_refused(pull, hub: Hub, tmp_path: Path) -> None:
    hub.files["someone/evil"] = {"x/..\\..\\evil-q4_k_m.gguf": CONTENT}
    with pytest.raises(LpxError, match="could lead elsewhere"):
        pull("ms:someone/evil")
    assert list(tmp_path.iterdir()) == []


# --- parsers ---


@given(st.text(max_size=80), st.sampled_from(["hf:", "ms:", "pypi:", "https://", "", "HF:"]))
def test_references_are_parsed_or_refused(text: str, scheme: str) -> None:
    with contextlib.suppress(LpxError):
        parse_reference(scheme + text)


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "q4_k_m"),
        ("Model.Q5_K_S.gguf", "q5_k_s"),
        ("model-IQ4_XS.gguf", "iq4_xs"),
        ("model-BF16-00001-of-00003.gguf", "bf16"),
        ("gemma-3-270m-it-F16.gguf", "f16"),
        ("q4_0/Phi-3-mini-4k-instruct-q4.gguf", "q4"),
        ("plain.gguf", None),
    ],
)
def test_the_precision_is_read_from_the_name(path: str, quant: str | None) -> None:
    assert quant_of(path) == quant


@given(st.lists(st.text("abqQ4_KMm.-/0", max_size=20).map(lambda name: name + ".gguf"), max_size=5, unique=True))
def test_choosing_never_makes_files_up(paths: list[str]) -> None:
    files = [HubFile(path, 1) for path in paths]
    try:
        _, chosen, _ = choose(files, None, "here")
    except LpxError:
        return
    assert set(chosen) <= set(files)


ODD_INFO = [
    [],
    5,
    None,
    [None],
    {},
    {"siblings": "abc"},
    {"siblings": [None]},
    {"siblings": [{"rfilename": 5}]},
    {"siblings": [{"rfilename": "a-q4_k_m.gguf", "size": 10**400}]},
    {"siblings": [{"rfilename": "a-q4_k_m.gguf", "size": -1}]},
    {"siblings": [{"rfilename": "a-q4_k_m.gguf", "size": 1.5e300}]},
    {"siblings": [{"rfilename": "a-q4_k_m.gguf", "size": 5, "lfs": {"sha256": [1]}}]},
    {"siblings": [{"rfilename": "a-q4_k_m.gguf", "size": 5, "lfs": 3}]},
    {"siblings": [], "sha": 5},
]


@pytest.mark.parametrize("info", ODD_INFO, ids=lambda info: str(info)[:40])
def test_a_mirror_that_answers_nonsense_is_said_to(hub: Hub, pull, info: object, monkeypatch) -> None:
    told = {"id": "a/b", "sha": COMMIT, **info} if isinstance(info, dict) and info else info
    monkeypatch.setattr(hub, "_hub_info", lambda *asked: hub._json(told))
    with pytest.raises(DownloadError, match=hub.url):
        pull(f"hf:{QUANTS}")


ODD_FILES = [5, "abc", [None], [{"Path": 1, "Size": 1}], [{"Path": "a.gguf", "Size": 10**400}]]


@pytest.mark.parametrize("files", ODD_FILES, ids=lambda files: str(files)[:40])
def test_nonsense_of_modelscope_is_said_to(hub: Hub, pull, files: object, monkeypatch) -> None:
    monkeypatch.setattr(hub, "_scope_list", lambda *asked: hub._json({"Code": 200, "Data": {"Files": files}}))
    with pytest.raises(DownloadError, match="list"):
        pull(f"ms:{QUANTS}")


def test_dates_of_modelscope_that_cannot_be_compared(hub: Hub, pull, monkeypatch) -> None:
    entries = [
        {"Path": f"big-f16-0000{part}-of-00002.gguf", "Size": len(data), "Revision": COMMIT, "CommittedDate": date}
        for part, data, date in ((1, PARTS[0], "yesterday"), (2, PARTS[1], 5))
    ]
    monkeypatch.setattr(hub, "_scope_list", lambda *asked: hub._json({"Code": 200, "Data": {"Files": entries}}))
    assert pull(f"ms:{QUANTS}:f16").revision == COMMIT


# --- what came and cannot be run ---


def test_what_cannot_be_opened_never_becomes_current(pull, hub: Hub, tmp_path: Path) -> None:
    good = pull(f"hf:{QUANTS}:q4_k_m")
    hub.files[QUANTS]["tiny-model-q4_k_m.gguf"] = CONTENT[:8] + bytes(5000)
    with pytest.raises(DownloadError, match="cannot be opened"):
        pull(f"hf:{QUANTS}:q4_k_m")
    hub.files[FOLDER]["config.json"] = b"{"
    with pytest.raises(DownloadError, match="cannot be opened"):
        pull(f"hf:{FOLDER}")
    assert [(model.version, model.current) for model in list_models(tmp_path)] == [(good.version, True)]


def test_what_is_not_supported_waits_for_an_lpx_that_does(pull, hub: Hub, tmp_path: Path) -> None:
    newer = b"GGUF" + (9).to_bytes(4, "little") + bytes(5000)
    hub.files[QUANTS]["tiny-model-q4_k_m.gguf"] = newer
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="was fetched and is not made a version"):
            pull(f"hf:{QUANTS}:q4_k_m")
    assert list_models(tmp_path) == []
    assert len(hub.requests) == 1  # the second time it was there


def test_a_version_that_cannot_be_opened_stays_what_it_is(pull, hub: Hub, tmp_path: Path) -> None:
    one = pull(f"hf:{QUANTS}:q4_k_m")
    other = tmp_path / one.name / "v2"
    other.mkdir()
    broken = b"GGUF" + (3).to_bytes(4, "little") + bytes(5000)
    (other / "tiny.gguf").write_bytes(broken)
    record = FileRecord("tiny.gguf", len(broken), sha256(broken))
    Manifest(name=one.name, version="v2", files=(record,), format="gguf").write(other)
    hub.files[QUANTS]["tiny-model-q4_k_m.gguf"] = broken
    with pytest.raises(ModelFileError):
        pull(f"hf:{QUANTS}:q4_k_m")
    assert [(model.version, model.current) for model in list_models(tmp_path)] == [(one.version, True)]
