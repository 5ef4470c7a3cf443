"""Mutated configs and data files, opened by the command line: an exit code that is documented and a sentence,
never a traceback, a hang or a file of results.

What is drawn is fixed by the number of the case: a failure names the numbers, and shows the first input.
"""

import contextlib
import copy
import io
import json
import re
import resource
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.eval.__main__ import main

pytestmark = pytest.mark.slow

BATCH = 100
MUTATED_CONFIGS, DAMAGED_CONFIGS, DATA_FILES = 1_600, 400, 1_000
PATIENCE = 60
ROOM = 4 << 30
"""Bytes that a case may take beyond what the process has."""

ROWS = [
    {"id": f"i{n}", "question": f"What is {n} + {n}?", "answer": str(2 * n), "choices": ["a", "b"], "gold": 0}
    for n in range(4)
]
RECORDED = [{"name": "r", "type": "replay", "config": {"path": "recorded.jsonl"}}]
SHUT = [{"name": "m", "config": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "max_retries": 0}}]
PLAIN = {"name": "b", "dataset": "data.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}"}
UNASKED = {key: value for key, value in PLAIN.items() if key != "prompt_template"}
CONFIGS: list[dict[str, Any]] = [
    {
        **PLAIN,
        "models": RECORDED,
        "sample_params": {"temperature": 0.7, "max_tokens": 16, "num_samples": 4, "stop": ["\n"], "seed": 1},
        "filter_list": [
            {
                "name": "number",
                "filter": [{"function": "regex", "regex_pattern": "([0-9]+)"}, {"function": "take_first"}],
                "metric_list": [{"metric": "exact_match", "ignore_case": True, "reduction": ["mean"]}],
            }
        ],
        "statistics": {"ci_level": 0.9, "bootstrap_iters": 10, "method": "auto"},
        "facets": ["model_name", "item.gold"],
        "errors": {"max_rate": 0.5},
        "prices": {"r": {"prompt": 1.0, "completion": 2.0}, "currency": "USD"},
        "limits": {"max_tokens": 100},
        "cut_off": "unscored",
        "answers": {"max_age": "20h"},
    },
    {
        "name": "mc",
        "output_type": "multiple_choice",
        "dataset": {"path": "data.jsonl", "id": "id"},
        "prompt_template": "{{question}}",
        "choices": "{{choices}}",
        "target": "{{gold}}",
        "models": RECORDED,
        "metric_list": ["acc", "acc_norm"],
        "fewshot": {"num": 1, "seed": 3},
        "cluster": "gold",
    },
    {
        **PLAIN,
        "models": RECORDED,
        "evaluation_methods": [
            {"name": "right", "type": "exact_match"},
            {"name": "own", "function": "file.py:label"},
        ],
        "metrics": [{"name": "pass@1", "type": "pass_at_k", "params": {"k": 1}, "facets": ["model_name"]}],
    },
    {
        **UNASKED,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "{{question}}"}],
        "models": SHUT,
        "scorer": {
            "type": "llm_judge",
            "judges": SHUT,
            "prompt": "{{response}}",
            "parse": {"type": "number", "min": 0, "max": 5},
        },
    },
    {
        **UNASKED,
        "dataset": {"function": "file.py:items", "params": {"count": 3}},
        "prompt_templates": [{"name": "plain", "template": "{{question}}"}, {"name": "b", "template": "B"}],
        "models": RECORDED,
        "process_results": "file.py:results",
        "metric_list": ["even"],
    },
    {
        "workflow": {"mode": "full", "max_workers": 4},
        "dataset": {"type": "file", "path": "data.jsonl"},
        "eval_prompt_template": "{{question}}",
        "models": RECORDED,
        "evaluation_methods": [{"name": "exact_match", "type": "built_in", "params": {"ignore_case": True}}],
        "metrics": [{"name": "pass@1", "type": "pass_at_k", "params": {"k": 1}}],
    },
    {
        "task": "h",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "data.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": "(.*)"}]}],
        "metadata": {"version": 1.0},
    },
]
WITH_MODELS = ("--set", f"models={json.dumps(RECORDED)}")
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 2**63, float("inf"), float("nan"), "", " ", "..", "x" * 300, "a,b",
    "\u202ename", "\x1b[31m", "ünïcode", "{{", "{{ question", "{% for x in y %}", "{{ missing }}",
    "{{ 1/0 }}", "{{ 'x' * 10**10 }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ question.x.y }}",
    "{{ item.answer|int }}", "file.py:fn", "file.py:nowhere", "absent.py:fn", "data.jsonl", "/", "0", "1e9",
    "random:5", [], {}, [[]], [None], {"": None}, {"name": "x"}, [1, "a", {}], {"a": {"b": {"c": []}}}, "(",
    "[0-9", "\\", "(?P<a>.)(?P<a>.)",
]  # fmt: skip
KEYS = [
    "cut_off", "scorer", "metrics", "dataset", "filter_list", "models", "metric_list", "target", "choices",
    "fewshot", "output_type", "facets", "name", "type", "task", "function", "params", "reduction", "config",
    "stop", "seed", 7, None,
]  # fmt: skip
ABOUT_CONTENT = re.compile(
    r"would fail: |template '|item '|is undefined|is in no item|document \d+(:| can't)"
)
"""A refusal of what a whole file holds names the item."""
CODE = """
def fn(*args, **kwargs):
    return {}


def items(count=3):
    for n in range(count):
        yield {"id": f"i{n}", "question": f"q{n}", "answer": str(n)}


def results(doc, results):
    return {"even": 1.0}


def label(response, ground_truth, inference_result):
    return [{"label": "l", "passed": True, "score": 1.0}]
"""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a config, the root left out."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def odd(draw: Random) -> Any:
    text = "".join(chr(draw.choice((draw.randrange(32, 127), draw.randrange(0xD7FF)))) for _ in range(6))
    return copy.deepcopy(draw.choice([*ODD, text, draw.randrange(-(10**6), 10**6), draw.uniform(-9, 9)]))


def mutated(config: dict[str, Any], draw: Random) -> dict[str, Any]:
    """The config with a key or value deleted, replaced, renamed, doubled, wrapped, swapped or added."""
    config = copy.deepcopy(config)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        every = list(places(config))
        if not every:
            break
        *path, last = draw.choice(every)
        holder = at(config, tuple(path))
        how = draw.choice(["delete", "replace", "replace", "rename", "double", "wrap", "swap", "add"])
        if how == "delete":
            del holder[last]
        elif how == "rename" and isinstance(holder, dict):
            holder[draw.choice([f"{last}s", f"{last}"[:-1], *KEYS])] = holder.pop(last)
        elif how == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        elif how == "wrap":
            holder[last] = draw.choice([[holder[last]], {"name": holder[last]}, {"x": holder[last]}])
        elif how == "swap":
            holder[last] = copy.deepcopy(at(config, draw.choice(every)))
        elif how == "add" and isinstance(holder, dict):
            holder[draw.choice(KEYS)] = odd(draw)
        else:
            holder[last] = odd(draw)
    return config


def damaged(content: bytes, draw: Random) -> bytes:
    """The bytes with some of them changed, cut out, put in, repeated, or all after them gone."""
    data = bytearray(content)
    pieces = [
        b"\n",
        b'"',
        b"{",
        b"]",
        b": ",
        b"- ",
        b"\\ud800",
        b"\xff",
        b"\x00",
        b"&a ",
        b"*a",
        b"!!python/none ",
    ]
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        place, size = draw.randrange(len(data) + 1), draw.randint(1, 8)
        piece = draw.choice([*pieces, draw.randbytes(draw.randint(1, 8))])
        how = draw.choice(["change", "cut", "insert", "repeat", "end"])
        if how == "change":
            data[place : place + size] = piece
        elif how == "cut":
            del data[place : place + size]
        elif how == "insert":
            data[place:place] = piece
        elif how == "repeat":
            data[place:place] = data[place : place + 64] * draw.randint(1, 30)
        else:
            del data[place:]
    return bytes(data)


@dataclass
class Opener:
    """Opens inputs by ``--dry-run`` in one process, and remembers what went wrong with which."""

    folder: Path
    more: tuple[str, ...] = ()
    """Further arguments."""
    taken: int = 0
    faults: dict[str, list[str]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def open(self, case: str, shown: Callable[[], str], names: str | None = None) -> None:
        """Opens what lies in the folder. ``names`` is what a refusal has to name."""
        fault = self._fault(names)
        if fault is not None:
            self.faults.setdefault(fault, []).append(case)
            self.inputs.setdefault(fault, shown())

    def _fault(self, names: str | None) -> str | None:
        try:
            with _at_most(PATIENCE):
                code, said = self.dry_run()
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
        self.taken += code == 0
        if code not in (0, 2):
            return f"exit code {code}: {said[-300:]}"
        if "Traceback" in said:
            return f"a traceback is shown: {said[-300:]}"
        if code == 2 and not said.strip():
            return "refused without a word"
        if code == 2 and names is not None and names not in said and not ABOUT_CONTENT.search(said):
            return f"{names} is not named: {said[-300:]}"
        if (self.folder / "out").exists():
            return "a plan left files behind"
        return None

    def dry_run(self) -> tuple[int, str]:
        said = io.StringIO()
        sys.argv = ["flows.eval", str(self.config), "--dry-run", *self.more]
        sys.argv += ["--store", str(self.folder / "store"), "--output", str(self.folder / "out")]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return code, said.getvalue()

    def check(self) -> None:
        listed = "\n".join(
            f"{fault}\n    cases {', '.join(cases)}; the first: {self.inputs[fault]}"
            for fault, cases in self.faults.items()
        )
        assert not self.faults, listed
        assert self.taken >= BATCH / 50, "hardly any was taken: nothing behind the first check was tried"


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    recorded = [
        {"item_id": row["id"], "sample_index": index, "response": row["answer"]}
        for row in ROWS
        for index in range(4)
    ]
    (tmp_path / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in recorded))
    (tmp_path / "file.py").write_text(CODE)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody is to start a server here
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield Opener(tmp_path)
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("batch", range(MUTATED_CONFIGS // BATCH))
def test_mutated_configs_are_refused_in_a_sentence_or_taken(opener: Opener, batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        whole = CONFIGS[number % len(CONFIGS)]
        config = mutated(whole, Random(f"config {number}"))
        opener.more = WITH_MODELS if "task" in whole else ()
        opener.config.write_text(
            yaml.safe_dump(config, allow_unicode=True), encoding="utf-8", errors="replace"
        )
        opener.open(str(number), opener.config.read_text)
    opener.check()


@pytest.mark.parametrize("batch", range(DAMAGED_CONFIGS // BATCH))
def test_configs_with_damaged_bytes_are_refused_in_a_sentence_or_taken(opener: Opener, batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        whole = CONFIGS[number % len(CONFIGS)]
        opener.more = WITH_MODELS if "task" in whole else ()
        content = damaged(yaml.safe_dump(whole, sort_keys=False).encode(), Random(f"bytes {number}"))
        opener.config.write_bytes(content)
        opener.open(str(number), lambda content=content: repr(content))  # type: ignore[misc]
    opener.check()


def deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value] if depth % 2 else {"a": value}
    return value


def value(draw: Random, depth: int = 0) -> Any:
    plain: list[Callable[[], Any]] = [
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.choice([0, -1, 2**63, 10**40, draw.randrange(-(2**64), 2**64)]),
        lambda: draw.choice([0.5, float("nan"), float("inf"), 1e308, 5e-324]),
        lambda: draw.choice(["", " ", "\ud83d", "\x00", "\u202e", "a\nb", "x" * 5000, "Größe 東京 🙂"]),
    ]
    nested: list[Callable[[], Any]] = [
        lambda: [value(draw, depth + 1) for _ in range(draw.randrange(3))],
        lambda: {draw.choice(["", "a", "\ud83d", "question"]): value(draw, depth + 1)},
    ]
    return draw.choice(plain if depth > 3 else [*plain, *nested])()


def json_rows(draw: Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [dict(row) for row in ROWS]
    for _ in range(draw.randrange(4)):
        drawn = deep(draw.randint(150, 400)) if draw.random() < 0.1 else value(draw)
        draw.choice(rows)[draw.choice(["id", "question", "answer", "", "x" * 99])] = drawn
    if draw.random() < 0.15:
        del draw.choice(rows)[draw.choice(["id", "question", "answer"])]
    return rows


def parquet(draw: Random) -> bytes:
    """A table with columns of types of which Python may have no value."""
    numbers = pa.array([draw.randint(-(2**63), 2**63 - 1) for _ in range(3)], pa.int64())
    raw = pa.array([draw.randbytes(draw.randrange(6)) for _ in range(3)], pa.binary())
    kinds = [
        numbers,
        numbers.cast(pa.timestamp("us")),
        numbers.cast(pa.timestamp("ms")),
        numbers.cast(pa.timestamp("ns", tz=draw.choice(["UTC", "Mars/X", "+25:00"]))),
        numbers.cast(pa.duration("s")),
        raw,
        raw.view(pa.string()),
        pa.array([[1], None, [2, 3]]),
        pa.array([{"a": 1}, {"a": None}, None]),
        pa.array([struct.unpack("<d", draw.randbytes(8))[0] for _ in range(3)]),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.nulls(3),
        pa.array(["q1", "q2", "q3"]),
    ]
    names = draw.choice(
        [["question", "answer", "extra"], ["question", "answer", "answer"], ["id", "question", "answer"]]
    )
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([draw.choice(kinds) for _ in names], names=names), sink)
    return sink.getvalue()


def csv(draw: Random) -> bytes:
    header = draw.choice(["id,question,answer", "id,question,answer,answer", "id,,answer", "question;answer"])
    cells = ["1", "a question", '"quoted, ""twice"""', '"open', "", "\x00", "\ud83d", "x" * 200_000, "a\rb"]
    lines = [header, *(",".join(draw.choice(cells) for _ in range(draw.randint(2, 4))) for _ in range(4))]
    return draw.choice(["\n", "\r\n", "\r"]).join(lines).encode("utf-8", "surrogatepass")


def data_file(suffix: str, draw: Random) -> bytes:
    if suffix == "parquet":
        content = parquet(draw)
    elif suffix == "csv":
        content = csv(draw)
    else:
        texts = [json.dumps(row) for row in json_rows(draw)]
        content = ("\n".join(texts) if suffix == "jsonl" else f"[{','.join(texts)}]").encode()
    return damaged(content, draw) if draw.random() < 0.5 else content


SUFFIXES = ("jsonl", "json", "csv", "parquet")
READERS = ("native", "harness", "replay")


def recorded(suffix: str, draw: Random) -> bytes:
    """Recorded responses with something else in some place."""
    rows: list[dict[str, Any]] = [
        {"item_id": row["id"], "sample_index": 0, "response": row["answer"], "timestamp": 1.5, "metadata": {}}
        for row in ROWS
    ]
    for _ in range(draw.randrange(3)):
        draw.choice(rows)[draw.choice([*rows[0], "status", "prompt_tokens", "ll", "logprobs_json"])] = value(
            draw
        )
    if suffix == "parquet":
        table = pa.table({"item_id": ["i0", "i1", "i2"], "response": ["0", "2", "4"]})
        more = pq.ParquetFile(io.BytesIO(parquet(draw))).read()
        for name in draw.sample(["sample_index", "timestamp", "status", "prompt_tokens", "metadata"], 2):
            table = table.append_column(name, more.column(draw.randrange(3)))
        sink = io.BytesIO()
        pq.write_table(table, sink)
        content = sink.getvalue()
    else:
        content = "\n".join(json.dumps(row) for row in rows).encode()
    return damaged(content, draw) if draw.random() < 0.5 else content


@pytest.mark.parametrize("batch", range(DATA_FILES // BATCH))
def test_data_files_are_refused_by_name_or_taken(opener: Opener, batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        suffix, reader = SUFFIXES[number % 4], READERS[number // 4 % 3]
        draw, file = Random(f"data {number}"), f"fuzzed.{suffix}"
        opener.more = WITH_MODELS if reader == "harness" else ()
        if reader == "replay":
            content = recorded(suffix, draw)
            config = {**PLAIN, "models": [{"name": "r", "type": "replay", "config": {"path": file}}]}
        elif reader == "native":
            content = data_file(suffix, draw)
            config = {**PLAIN, "dataset": file, "models": RECORDED}
        else:
            content = data_file(suffix, draw)
            form, files = {"jsonl": "json"}.get(suffix, suffix), {"data_files": {"test": file}}
            config = {**CONFIGS[-1], "dataset_path": form, "dataset_kwargs": files}
        (opener.folder / file).write_bytes(content)
        opener.config.write_text(yaml.safe_dump(config))
        opener.open(f"{number} ({reader}, {suffix})", lambda content=content: repr(content[:3000]), file)  # type: ignore[misc]
    opener.check()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(next(iter(config))))
def test_the_whole_configs_are_taken(opener: Opener, config: dict[str, Any]) -> None:
    opener.config.write_text(yaml.safe_dump(config))
    opener.more = WITH_MODELS if "task" in config else ()
    code, said = opener.dry_run()
    assert code == (2 if config.get("models") is SHUT else 0), said


NAMES_OF_FILES: list[tuple[int, tuple[Any, ...]]] = [
    (0, ("dataset",)),
    (0, ("models", 0, "config", "path")),
    (0, ("models", 0, "tokenizer")),
    (1, ("dataset", "path")),
    (1, ("dataset", "function")),
    (1, ("dataset", "hub")),
    (1, ("fewshot", "path")),
    (2, ("evaluation_methods", 1, "function")),
    (4, ("process_results",)),
    (4, ("dataset", "function")),
    (4, ("prompt_templates", 1, "path")),
    (5, ("dataset", "path")),
    (5, ("eval_prompt_template",)),
    (6, ("dataset_path",)),
    (6, ("dataset_kwargs", "data_files")),
    (6, ("dataset_kwargs", "data_files", "test")),
    (6, ("dataset_kwargs", "data_dir")),
    (6, ("include",)),
    (6, ("process_docs",)),
    (6, ("custom_dataset",)),
]
NO_NAMES: list[Any] = [
    "x" * 300, "x" * 5000, "a\0b", "/proc/self/mem", "/dev/null", "/root", "~nobody/x", "file:///etc/passwd",
    "", "*", True, 3, None, ["a", 1], {"a": 1}, [True], [["a"]], {"test": [True]}, {"test": {"a": 1}},
]  # fmt: skip


@pytest.mark.parametrize(("number", "place"), NAMES_OF_FILES)
def test_what_is_no_name_of_a_file_is_refused(opener: Opener, number: int, place: tuple[Any, ...]) -> None:
    for name in NO_NAMES:
        config = copy.deepcopy(CONFIGS[number])
        at(config, place[:-1])[place[-1]] = copy.deepcopy(name)
        opener.more = WITH_MODELS if "task" in config else ()
        opener.config.write_text(yaml.safe_dump(config))
        opener.open(repr(name)[:20], opener.config.read_text)
    assert not opener.faults, opener.faults
