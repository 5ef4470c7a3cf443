"""``--from-opencompass``: each model × dataset of a folder of OpenCompass is a run.

OpenCompass writes ``predictions/MODEL/DATASET.json`` (or ``DATASET_0.json``, ``DATASET_1.json`` …: parts, one
after the other), an object by position, and ``results/MODEL/DATASET.json`` with its numbers and ``details``:
what each sample scored. Where a dataset was asked ``n`` times over, the predictions of the first time come
first, and the details are one an example, each field a list of ``n``. Accuracies are in percent there, and
between 0 and 1 here.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson

from metrics.errors import ConfigError
from tasks.benchmarks.recorded.run import FIELD, RecordedRun, pair_name, same_number
from tasks.datasets.config import DatasetError, parsed_json

JUDGED: Final = ("correct", "is_correct", "cascade_correct", "score")
"""Fields of details that are scores although they may be numbers; any that is true or false is one, too."""
ANSWERED: Final = ("pred", "predictions", "prediction")
UNSCORED: Final = "its details have no score for each sample; expected 'correct', as most evaluators write"
NO_DETAILS: Final = "has no details; run OpenCompass with --dump-eval-details"
NAMED: Final = 4
GOLD: Final = ("answer", "references", "reference", "answers", "gold")


def opencompass_runs(path: Path) -> Iterator[RecordedRun]:
    """The runs below a folder, which may be that of a model in ``results/``; of one file there, its own.
    Raises ConfigError where there are none, and DatasetError for a file that can't be read."""
    files = sorted(_files(path.resolve())) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ConfigError(
            f"--from-opencompass {path}: expected a folder of OpenCompass with predictions/ and results/, "
            "or a file below results/"
        )
    for file in files:
        yield _run(file)


def _files(folder: Path) -> Iterable[Path]:
    """The files of results below a folder, of ``results/``, or of a model's folder there."""
    if folder.name == "results":
        return folder.glob("*/*.json")
    if folder.parent.name == "results":
        return folder.glob("*.json")
    return folder.rglob("results/*/*.json")


def _run(file: Path) -> RecordedRun:
    result, predictions = _loaded(file), _predictions(file)
    samples = list(_samples(result.get("details"), predictions, file))
    names = _scores(samples)
    repeats = max((len(sample.fields[names[0]]) for sample in samples), default=1) if names else 1
    if names and len(predictions) != repeats * len(samples):
        raise DatasetError(
            f"{file}: scores {len(samples)} samples × {repeats}, and there are {len(predictions)} predictions"
        )
    if names and any(sample.place >= len(samples) for sample in samples):
        raise DatasetError(
            f"{file}: its details are not of all samples; expected '0' to '{len(samples) - 1}'"
        )
    items, responses = [], []
    for sample in samples if names else ():
        asked = predictions[sample.place]
        items.append({"id": sample.key, "input": _prompt(asked), "target": sample.target(asked)})
        for repeat in range(repeats):
            answer = predictions[repeat * len(samples) + sample.place]
            responses.append(_response(sample, names, repeat, answer))
    bounded = {
        name: all(value in (0, 1) for sample in samples for value in sample.fields.get(name, ()))
        for name in names
    }
    return RecordedRun(
        source=file,
        task=file.stem,
        model=file.parent.name,
        items=items,
        responses=responses,
        pairs={pair_name(name): verdict for name, verdict in bounded.items()},
        repeats=repeats,
        notes=tuple(f"{file}: {note}" for note in _notes(result, samples, names)),
        unreadable="" if names else UNSCORED if result.get("details") else NO_DETAILS,
    )


def _notes(result: Mapping[str, Any], samples: Sequence["_Sample"], names: Sequence[str]) -> Iterator[str]:
    """Which of OpenCompass's numbers are not here, and which of ours are none of them."""
    theirs = {
        name: float(value)
        for name, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    found = set[str]()
    for name in names:
        values = [float(one) for sample in samples for one in sample.fields.get(name, ()) if one is not None]
        mean = statistics.fmean(values)
        same = [one for one, value in theirs.items() if any(same_number(value, mean * by) for by in (1, 100))]
        found.update(same)
        if theirs and not same:
            said = _some([f"'{one}' is {value:.6g}" for one, value in theirs.items()])
            yield f"the mean of '{name}' over samples, {mean:.6g}, is none of OpenCompass's numbers: {said}"
    left = [f"'{one}'" for one in theirs if one not in found]
    if left and found:
        yield f"left out, as they are no mean of a score of samples: {_some(left)}"


def _some(words: Sequence[str]) -> str:
    """The words, or the first of many and how many more there are."""
    more = len(words) - NAMED
    return ", ".join([*words[:NAMED], *([f"{more} more"] if more > 0 else [])])


@dataclass(frozen=True)
class _Sample:
    """What the details say of one example: each field has a value for each time that it was asked."""

    key: str
    place: int
    """Of its prediction, where it was asked for the first time."""
    fields: Mapping[str, Sequence[Any]]

    def target(self, prediction: Mapping[str, Any]) -> Any:
        """The reference, of the details or of the prediction."""
        found = next((self.fields[name][0] for name in GOLD if self.fields.get(name)), None)
        return found if found is not None else prediction.get("gold")


def _samples(details: Any, predictions: Sequence[Mapping[str, Any]], file: Path) -> Iterator[_Sample]:
    if isinstance(details, Mapping):  # by position, those of the second time after those of the first
        found = {int(key): one for key, one in details.items() if key.isdigit() and isinstance(one, Mapping)}
        count = _period(predictions) if len(found) == len(predictions) else len(found)
        for place, one in found.items():
            if place < count or place >= len(found):
                again = [found.get(other, {}) for other in range(place, len(found), count)] or [one]
                yield _Sample(str(place), place, {name: [each.get(name) for each in again] for name in one})
        return
    if details is None:
        return
    if not isinstance(details, list):
        raise DatasetError(f"{file}: details: expected a list or an object, got {type(details).__name__}")
    for place, one in enumerate(details):
        if not isinstance(one, Mapping):
            raise DatasetError(f"{file}: details {place}: expected an object, got {type(one).__name__}")
        example = one.get("example_abbr")
        if example is None:
            yield _Sample(str(place), place, {name: [value] for name, value in one.items()})
        else:  # of a time, ``SUBDIVISION_INDEX``
            yield _Sample(
                str(example).rpartition("_")[2],
                place,
                {name: value for name, value in one.items() if isinstance(value, list)},
            )


def _period(predictions: Sequence[Mapping[str, Any]]) -> int:
    """How many examples were asked, where all of them were asked several times over."""
    asked = [(_prompt(one), orjson.dumps(one.get("gold"))) for one in predictions]
    for examples in range(1, len(asked) // 2 + 1):
        if len(asked) % examples == 0 and asked == asked[:examples] * (len(asked) // examples):
            return examples
    return max(len(asked), 1)


def _scores(samples: Sequence[_Sample]) -> list[str]:
    """The names of scores: true or false for every sample, or one of the fields that are scores by name."""
    names = dict.fromkeys(name for sample in samples for name in sample.fields)
    return [name for name in names if name not in (*ANSWERED, *GOLD) and _is_score(name, samples)]


def _is_score(name: str, samples: Sequence[_Sample]) -> bool:
    values = [value for sample in samples for value in sample.fields.get(name, ()) if value is not None]
    kinds = (bool, int, float) if name in JUDGED else (bool,)
    return bool(values) and all(isinstance(value, kinds) for value in values)


def _response(
    sample: _Sample, names: Sequence[str], repeat: int, prediction: Mapping[str, Any]
) -> dict[str, Any]:
    scores = {}
    for name in names:
        value = _at(sample.fields.get(name, ()), repeat)
        reason = {} if value is not None else {"error": "OpenCompass has no score for this sample"}
        scores[pair_name(name)] = {"score": None if value is None else float(value), **reason}
    read = next((sample.fields[name] for name in ANSWERED if sample.fields.get(name)), ())
    answer = prediction.get("prediction")
    return {
        "item_id": sample.key,
        "sample_index": repeat,
        "response": answer if isinstance(answer, str) else orjson.dumps(answer).decode(),
        "status": "ok",
        "metadata": {FIELD: scores, "extracted": _at(read, repeat)},
    }


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _prompt(prediction: Mapping[str, Any]) -> str:
    """The prompt as text; of messages each with its role."""
    prompt = prediction.get("origin_prompt", _of_labels(prediction))
    if isinstance(prompt, list):
        return "\n\n".join(
            f"{one.get('role')}: {one.get('prompt')}" if isinstance(one, Mapping) else str(one)
            for one in prompt
        )
    return str(prompt or "")


def _of_labels(prediction: Mapping[str, Any]) -> Any:
    """What was asked where each label had a prompt of its own: the first."""
    found = (
        one for name, one in prediction.items() if name.startswith("label: ") and isinstance(one, Mapping)
    )
    first = next(found, {})
    return first.get("testing input") or first.get("prompt")


def _predictions(result: Path) -> list[Mapping[str, Any]]:
    """The predictions beside a file of results, those of all parts one after the other."""
    folder = result.parent.parent.parent / "predictions" / result.parent.name
    whole = folder / result.name
    files = [whole] if whole.is_file() else list(_parts(folder, result.stem))
    if not files:
        raise DatasetError(f"{result}: there are no predictions for it; expected {whole}")
    return [prediction for file in files for prediction in _in_order(_loaded(file), file)]


def _parts(folder: Path, stem: str) -> Iterator[Path]:
    for number in count():
        part = folder / f"{stem}_{number}.json"
        if not part.is_file():
            return
        yield part


def _in_order(predictions: Mapping[str, Any], file: Path) -> Iterator[Mapping[str, Any]]:
    for place in range(len(predictions)):
        found = predictions.get(str(place))
        if not isinstance(found, Mapping):
            raise DatasetError(f"{file}: has no prediction '{place}' among {len(predictions)}")
        yield found


def _loaded(file: Path) -> Mapping[str, Any]:
    try:
        document = parsed_json(file.read_bytes(), str(file))
    except OSError as error:
        raise DatasetError(f"{file}: can't be read: {error}") from error
    if not isinstance(document, Mapping):
        raise DatasetError(f"{file}: expected a JSON object, got {type(document).__name__}")
    return document
