"""A model's server starts, is ready, and is ended with everything that it started, whatever is killed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from metrics.errors import ConfigError
from tasks.models.errors import EndpointDead
from tasks.models.records import Call, Reply
from tasks.models.served import WatchedTransport
from tasks.serving import launch, records, servers
from tasks.serving import launch as launching
from tasks.serving.config import ServeConfig
from tasks.serving.launch import Launch, check_launch, order_for
from tasks.serving.records import lives, marked, started
from tasks.serving.servers import RunningServer, ServerFailed, end_leftovers, start_server, stop_server
from tasks.serving.weights import known_weights

FAKE = Path(__file__).with_name("fake_server.py")
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places and records of the test's own: other tests serve at the same time."""
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(launch, "locks_folder", lambda: places)
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "answer.txt").write_text("42")
    return folder


def a_launch(weights: Path, *behaviour: str, **serve: Any) -> Launch:
    events = weights.parent / "events"
    command = [sys.executable, str(FAKE), "--path", "{path}", "--port", "{port}", "--events", str(events)]
    settings = {"command": [*command, *behaviour], "start_timeout": 60, "gpus": 0, **serve}
    return Launch("m", "m", ServeConfig(**settings), str(weights), str(weights.parent))


@pytest.fixture
def serve(weights: Path) -> Iterator[Callable[..., RunningServer]]:
    running: list[RunningServer] = []

    def start(*behaviour: str, **settings: Any) -> RunningServer:
        running.append(start_server(a_launch(weights, *behaviour, **settings)))
        return running[-1]

    yield start
    for server in running:
        stop_server(Path(server.folder))


def until(condition: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def asked(server: RunningServer) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=30).json()
    return str(answer["choices"][0]["message"]["content"])


def identifier(server: RunningServer) -> str:
    return Path(server.folder).name


def test_a_server_answers_and_is_gone_with_its_children_when_it_is_stopped(
    serve: Callable[..., RunningServer],
) -> None:
    server = serve("--child")
    assert asked(server) == "42"
    assert len(list(marked(identifier(server)))) == 2
    stop_server(Path(server.folder))
    assert list(marked(identifier(server))) == []
    with pytest.raises(httpx.TransportError):
        asked(server)
    assert "the last words" in records.log_text(Path(server.folder))


def test_two_servers_on_one_place_take_turns(weights: Path, serve: Callable[..., RunningServer]) -> None:
    first = serve()
    found: list[RunningServer] = []
    second = threading.Thread(target=lambda: found.append(serve()))
    second.start()
    until(lambda: len(list(servers.servers_folder().iterdir())) == 2)
    (waiting,) = [f for f in servers.servers_folder().iterdir() if f.name != identifier(first)]
    until(lambda: records.read_state(waiting) is not None)
    time.sleep(0.5)
    state = records.read_state(waiting)
    assert state is not None
    assert state.phase == records.WAITING
    assert (weights.parent / "events").read_text().count("start") == 1
    stop_server(Path(first.folder))
    second.join(60)
    assert found[0].held == ("cpu",)


def test_nobody_else_gets_the_port_while_a_server_loads(
    weights: Path, serve: Callable[..., RunningServer]
) -> None:
    go = weights.parent / "go"
    starting = threading.Thread(target=lambda: serve("--hold", "start", "1", str(go)))
    starting.start()
    until(lambda: (weights.parent / "events").exists())
    (folder,) = servers.servers_folder().iterdir()
    state = records.read_state(folder)
    assert state is not None
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", state.port))
    finally:
        go.touch()
        starting.join(60)
    assert servers.is_ready(folder)


def test_servers_on_two_gpus_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[..., RunningServer]
) -> None:
    monkeypatch.setattr(launch, "visible_gpus", lambda: (launch.Gpu("0"), launch.Gpu("1")))
    held = {serve(gpus=1).held, serve(gpus=1).held}
    assert held == {("gpu-0",), ("gpu-1",)}


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (["--exit", "1"], "ended with exit code 1 before it was ready"),
        (["--never"], r"was not ready within 3 s \(/v1/models: .*refused"),
        (["--errors", "60"], r"was not ready within 3 s \(/v1/models answers 500\)"),
        (["--exit", "1", "--print", "3000000"], "CUDA out of memory"),
        pytest.param(
            ["--exit", "1", "--print", "1000000000"], "CUDA out of memory", marks=pytest.mark.services
        ),
    ],
)
def test_a_server_that_is_not_to_be_had_is_told_with_its_last_words(
    weights: Path, behaviour: list[str], said: str
) -> None:
    with pytest.raises(ServerFailed, match=said) as told:
        start_server(a_launch(weights, *behaviour, start_timeout=60 if "--exit" in behaviour else 3))
    assert "the last words" in str(told.value)
    assert "Traceback" not in str(told.value)  # asking whether it is ready leaves no complaints in its log


@pytest.mark.parametrize("size", [30_000_000, pytest.param(1_000_000_000, marks=pytest.mark.services)])
def test_a_log_without_end_takes_bounded_space(serve: Callable[..., RunningServer], size: int) -> None:
    server = serve("--print", str(size))
    folder = Path(server.folder)
    kept = sum(file.stat().st_size for file in folder.glob("log.*"))
    assert kept <= 3 * (1 << 20)
    text = records.log_text(folder)
    assert text.startswith("loading weights")
    assert "some of the log was left out" in text
    assert text.rstrip().endswith("the last words")


def test_a_server_that_dies_is_started_again_at_its_address(serve: Callable[..., RunningServer]) -> None:
    server = serve("--die", "1")
    with pytest.raises(httpx.TransportError):
        asked(server)
    folder = Path(server.folder)

    def is_back() -> bool:
        state = records.read_state(folder)
        return state is not None and state.starts == 2 and state.phase == records.READY

    until(is_back)
    assert asked(server) == "42"


def test_a_server_whose_weights_were_replaced_is_not_started_again(weights: Path) -> None:
    known = known_weights(str(weights), weights.parent)
    server = start_server(replace(a_launch(weights, "--die", "1"), known=known))
    folder = Path(server.folder)
    try:
        (weights / "model.safetensors").write_bytes(b"others")
        with pytest.raises(httpx.TransportError):
            asked(server)
        until(lambda: servers.failure_of(folder) is not None)
        assert "were replaced after the run had begun" in str(servers.failure_of(folder))
    finally:
        stop_server(folder)


@pytest.mark.parametrize("ends", [records.READY, records.FAILED])
def test_a_reply_of_a_server_that_was_started_again_counts_once_its_weights_are_known(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, looks = tmp_path / "server", []
    folder.mkdir()
    me = {"supervisor": os.getpid(), "supervisor_started": started(os.getpid())}

    def tell(phase: str) -> None:
        records.write(folder / records.STATE, records.State(phase=phase, **me))  # type: ignore[arg-type]

    class Answering:
        async def send(self, call: Call, timeout: float) -> Reply:
            return Reply({}, 0.0)

        async def close(self) -> None:
            pass

    async def look(_: float) -> None:
        looks.append(servers.is_ready(folder))
        tell(ends)

    async def replies() -> None:
        watched = WatchedTransport(Answering(), RunningServer("m", "http://x", str(folder)))
        tell(records.READY)
        await watched.send(Call("x", {}), 1)
        tell(records.STARTING)
        await watched.send(Call("x", {}), 1)

    monkeypatch.setattr(asyncio, "sleep", look)
    if ends == records.READY:
        asyncio.run(replies())
    else:
        with pytest.raises(EndpointDead):
            asyncio.run(replies())
    assert looks == [False]


def test_a_server_that_goes_on_dying_is_given_up(serve: Callable[..., RunningServer]) -> None:
    server = serve(restarts=0)
    folder = Path(server.folder)
    state = records.read_state(folder)
    assert state is not None
    os.kill(state.group, signal.SIGKILL)
    until(lambda: servers.failure_of(folder) is not None)
    assert "was ended by SIGKILL" in str(servers.failure_of(folder))


def test_a_supervisor_that_is_killed_leaves_nothing(serve: Callable[..., RunningServer]) -> None:
    server = serve("--child")
    state = records.read_state(Path(server.folder))
    assert state is not None
    os.kill(state.supervisor, signal.SIGKILL)
    until(lambda: not list(marked(identifier(server))))
    assert "supervisor was killed" in str(servers.failure_of(Path(server.folder)))
    serve()  # the place is free again


class Unwanted(Exception):
    """The run was interrupted."""


def phase_of(folder: Path) -> str | None:
    state = records.read_state(folder)
    return None if state is None else state.phase


@pytest.mark.parametrize("moment", [None, records.WAITING, records.STARTING])
def test_a_start_that_is_interrupted_ends_at_once_and_leaves_nothing(
    weights: Path, serve: Callable[..., RunningServer], moment: str | None
) -> None:
    held = serve() if moment == records.WAITING else None
    folders: list[Path] = []
    raised: list[BaseException] = []

    def check() -> None:
        if phase_of(folders[0]) == moment:
            raise Unwanted

    def start() -> None:
        try:
            start_server(
                a_launch(weights, "--never", "--child", start_timeout=600),
                still_wanted=check,
                admit=folders.append,
            )
        except BaseException as error:
            raised.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(90)
    assert [type(error) for error in raised] == [Unwanted]
    assert list(marked(folders[0].name)) == []
    state = records.read_state(folders[0])
    assert state is None or not lives(state.supervisor, state.supervisor_started)
    if held is not None:
        stop_server(Path(held.folder))
    serve()  # the place is free again


def test_a_supervisor_that_comes_up_after_its_server_was_stopped_starts_none(weights: Path) -> None:
    order = order_for(a_launch(weights), owner=os.getpid())
    folder = servers.servers_folder() / order.id
    folder.mkdir(parents=True)
    records.write(folder / records.ORDER, order)
    stop_server(folder)
    words = [sys.executable, "-m", "tasks.serving.supervisor", str(folder)]
    late = subprocess.Popen(words, cwd=PROJECT, stderr=subprocess.PIPE)
    try:
        late.communicate(timeout=60)
    finally:
        late.kill()
    assert not (weights.parent / "events").exists()


def test_a_supervisor_that_does_not_answer_is_killed_with_its_server(
    serve: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(servers, "GONE_SECONDS", 0.2)
    server = serve("--child")
    state = records.read_state(Path(server.folder))
    assert state is not None
    os.kill(state.supervisor, signal.SIGSTOP)
    stop_server(Path(server.folder))
    assert list(marked(identifier(server))) == []
    assert not lives(state.supervisor, state.supervisor_started)


OWNER = """
import sys, time
from pathlib import Path
from tasks.serving import launch
launch.locks_folder = lambda: Path(sys.argv[1])
from tasks.serving.config import ServeConfig
from tasks.serving.launch import Launch
from tasks.serving.servers import start_server
command = [sys.executable, sys.argv[3], "--path", "{path}", "--port", "{port}", "--child"]
serve = ServeConfig(command=command, gpus=0, start_timeout=60)
server = start_server(Launch("m", "m", serve, sys.argv[2], "/"))
print(server.folder, flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_the_process_that_it_is_for(weights: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", OWNER, str(tmp_path / "places"), str(weights), str(FAKE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert len(list(marked(folder.name))) == 2
        owner.kill()
    until(lambda: not list(marked(folder.name)))
    assert end_leftovers() == [folder.name]
    assert not folder.exists()


def test_what_a_crash_left_is_ended_by_the_next_command(weights: Path) -> None:
    order = order_for(a_launch(weights), owner=1)
    folder = servers.servers_folder() / order.id
    folder.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    since = started(gone.pid)
    gone.wait()
    records.write(
        folder / records.ORDER, records.Order(**{**vars(order), "owner": gone.pid, "owner_started": since})
    )
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=order.environment)
    until(lambda: left.pid in marked(order.id))
    assert end_leftovers() == [order.id]
    assert left.wait(30) == -signal.SIGKILL


def test_servers_of_a_container_that_shares_the_home_are_left_alone(weights: Path) -> None:
    order = records.Order(**{**vars(order_for(a_launch(weights), owner=2**22 + 1)), "space": "here pid:[7]"})
    folder = servers.servers_folder() / order.id
    folder.mkdir(parents=True)
    records.write(folder / records.ORDER, order)
    records.write(folder / records.STATE, records.State(phase=records.READY))
    assert end_leftovers() == []
    assert folder.exists()


def test_servers_of_runs_that_go_on_are_left_alone(serve: Callable[..., RunningServer]) -> None:
    server = serve()
    assert end_leftovers() == []
    assert asked(server) == "42"


def test_a_number_that_is_used_again_is_another_process() -> None:
    assert lives(os.getpid(), started(os.getpid()))
    assert not lives(os.getpid(), "another boot:17")


def test_a_server_is_given_few_variables_and_no_key(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY", "VLLM_USE_V1", "HF_TOKEN", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "x")
    given = order_for(a_launch(weights), os.getpid()).environment
    assert "VLLM_USE_V1" in given
    assert {"OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "WANDB_PROJECT"}.isdisjoint(given)
    assert "HF_TOKEN" in order_for(a_launch(weights, env=["HF_TOKEN"]), os.getpid()).environment
    with pytest.raises(ConfigError, match=r"serve\.env: NOT_THERE is not set"):
        order_for(a_launch(weights, env=["NOT_THERE"]), os.getpid())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpus": 3}, "serve.gpus is 3, and this machine has 0 that may be used"),
        ({"command": ["no-such-server", "{port}"]}, "there is no program no-such-server"),
        (
            {"command": None, "preset": "vllm", "python": "/nowhere/python"},
            "there is no program /nowhere/python .serve.python, else NIGHTJAR_SERVE_PYTHON.",
        ),
        ({"command": None, "preset": "vllm", "python": sys.executable}, "vllm is not installed for"),
        ({"command": None, "preset": "llama.cpp"}, "expected one .gguf file, found 0"),
    ],
)
def test_what_can_not_be_served_here_is_refused(weights: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_launch(a_launch(weights, **settings))


def test_weights_beyond_the_memory_are_refused(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (weights / "model.safetensors").open("wb") as file:
        file.truncate(1 << 42)  # a hole: more than any machine has
    with pytest.raises(ServerFailed, match=r"its weights take 4398\.05 GB, and the main memory has"):
        start_server(a_launch(weights))
    gpus = (launch.Gpu("0", free=70), launch.Gpu("1", free=70))
    monkeypatch.setattr(launch, "visible_gpus", lambda: gpus)
    assert launch.lacking_memory(100, ("gpu-0", "gpu-1")) is None
    assert "gpu-1 has 0.00 GB free" in str(launch.lacking_memory(100, ("gpu-1",)))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library, as it tells of two GPUs."""
    nvml: Any = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda number: number
    nvml.nvmlDeviceGetMemoryInfo = lambda number: types.SimpleNamespace(free=1000 + number)
    nvml.nvmlDeviceGetUUID = lambda number: f"GPU-{'ab'[number]}0c1"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("GPU-b0c1", ["1"]),
        ("GPU-b, GPU-a0c1", ["1", "0"]),
        ("0,GPU-a", ["0"]),
        ("1,-1,0", ["1"]),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_a_gpu_is_one_place_by_whatever_name_it_is_visible(
    monkeypatch: pytest.MonkeyPatch, said: str | None, seen: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    found = launch.visible_gpus()
    assert [(gpu.place, gpu.free) for gpu in found] == [(f"gpu-{name}", 1000 + int(name)) for name in seen]
    assert all(launch.lacking_memory(10**12, [gpu.place]) is not None for gpu in found)


@pytest.mark.usefixtures("two_gpus")
def test_a_part_of_a_gpu_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert launch.visible_gpus() == (launch.Gpu("MIG-1234"),)


def test_a_container_gets_weights_port_and_devices(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    # A stand-in: it runs what it is asked to run here, with the paths as the container would see them.
    (programs / "podman").write_text(
        # By way of the shell: the first line of a script can't name a program whose path has a blank.
        f"#!/bin/sh\n''':'\nexec '{sys.executable}' \"$0\" \"$@\"\n'''\n"
        "import os, sys\n"
        f"open({str(tmp_path / 'podman')!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n"
        "if sys.argv[1] == 'kill': sys.exit(0)\n"
        "image = sys.argv.index('example/image')\n"
        "entry = sys.argv[sys.argv.index('--entrypoint') + 1]\n"
        f"words = [w.replace('/model', {str(weights)!r}) for w in sys.argv[image + 1:]]\n"
        "os.execvp(entry, [entry, *words])\n"
    )
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(launch, "visible_gpus", lambda: (launch.Gpu("3"), launch.Gpu("5")))
    server = start_server(a_launch(weights, container="example/image", gpus=2))
    assert asked(server) == "42"
    stop_server(Path(server.folder))
    ran, killed = (tmp_path / "podman").read_text().splitlines()
    port = server.base_url.rpartition(":")[2].removesuffix("/v1")
    for expected in (
        f"127.0.0.1:{port}:{port}",
        f"{weights}:/model:ro",
        "'nvidia.com/gpu=3'",
        "'nvidia.com/gpu=5'",
    ):
        assert expected in ran
    assert "--rm" in ran
    assert killed.startswith("['kill', 'nightjar-")


def test_presets_are_filled_in_whole(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "visible_gpus", lambda: tuple(launch.Gpu(str(n)) for n in range(2)))
    for preset in launching.PRESETS.values():
        if preset.file is not None:
            (weights / f"m{preset.file}").write_bytes(b"x")
        serve = ServeConfig(preset=preset.name, gpus=2, args=("--seed", "1"))
        command = order_for(Launch("m", "m", serve, str(weights), "/"), os.getpid()).command
        assert command[-2:] == ("--seed", "1")
        assert not [word for word in command if "{" in word.replace("{port}", "")]
        assert "{port}" in command


SPREAD: dict[str, tuple[str, ...]] = {
    "transformers": ("--dtype", "bfloat16", "--device-map", "auto"),
    "vllm": ("--dtype", "bfloat16", "--quantization", "awq", "--tensor-parallel-size", "4"),
    "sglang": ("--dtype", "bfloat16", "--quantization", "awq", "--tp", "4"),
}


@pytest.mark.parametrize("preset", SPREAD)
def test_one_server_on_several_gpus_is_told_how_to_lie_over_them(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.setattr(launch, "visible_gpus", lambda: tuple(launch.Gpu(str(n)) for n in range(4)))
    # A stand-in for the server's Python: it notes its words and the GPUs that it sees, and serves.
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\n''':'\nexec '{sys.executable}' \"$0\" \"$@\"\n'''\n"
        "import json, os, sys\n"
        "if '-c' in sys.argv: print(*['1.0'] * (len(sys.argv) - 3)); sys.exit()\n"
        "told = [sys.argv[1:], os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('CUDA_DEVICE_ORDER')]\n"
        f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps(told))\n"
        "port = sys.argv[sys.argv.index('--port') + 1]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, {str(FAKE)!r}, '--path', {str(weights)!r}, "
        "'--port', port])\n"
    )
    python.chmod(0o755)
    more: dict[str, Any] = {"device_map": "auto"} if preset == "transformers" else {"quantization": "awq"}
    serve = ServeConfig(preset=preset, gpus=4, dtype="bfloat16", python=str(python), ready="/", **more)
    server = start_server(Launch("m", "m", serve, str(weights), "/"))
    try:
        assert asked(server) == "42"
    finally:
        stop_server(Path(server.folder))
    words, devices, order = json.loads((tmp_path / "told").read_text())
    assert tuple(words[-len(SPREAD[preset]) :]) == SPREAD[preset]
    assert str(weights) in words
    assert sorted(devices.split(",")) == ["0", "1", "2", "3"]
    assert order == "PCI_BUS_ID"  # the driver's numbers, by which places and memory are known


def test_where_a_model_lies_is_no_part_of_its_identity_and_only_ours_is_told(weights: Path) -> None:
    spread = ServeConfig(preset="transformers", device_map="auto", version="1")
    assert launching.server_identity(spread) == launching.server_identity(ServeConfig(version="1"))
    with pytest.raises(ConfigError, match=r"serve\.device_map: vllm takes none"):
        check_launch(Launch("m", "m", ServeConfig(preset="vllm", device_map="auto"), str(weights), "/"))
    own = ServeConfig(command="python --port {port}", dtype="float32")
    with pytest.raises(ConfigError, match=r"serve\.dtype: a command of yours takes none"):
        check_launch(Launch("m", "m", own, str(weights), "/"))
