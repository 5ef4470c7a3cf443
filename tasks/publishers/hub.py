"""The hub's evaluation results: a file in ``.eval_results/`` of a model's repository, which the page of the
model and the leaderboard of the benchmark show.

The file has the shape of the hub's ``eval_results.yaml`` (github.com/huggingface/hub-docs). It is named by
the benchmark: a newer run takes its place, and what is sent twice is one commit.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import yaml
from pydantic import Field

from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.publishers.publisher import (
    FinishedRun,
    Server,
    WebAddress,
    identifier,
    is_finite,
    is_overall,
    named_key,
    number_name,
)

FOLDER: Final = ".eval_results"


class Hub(Server):
    """A model's repository on the Hugging Face Hub, or on a server that speaks as it does."""

    extra = "hub"
    client = ("huggingface_hub",)
    key_variables = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

    repo: str | dict[str, str] = Field(
        description="The model's repository, as OWNER/NAME; of several models a mapping from their names, "
        "and those that are not in it are not sent"
    )
    dataset: str = Field(
        min_length=1, description="The benchmark's dataset on the hub, whose leaderboard it is: cais/hle"
    )
    task: str = Field(
        "default", min_length=1, description="The task's id, as the dataset's eval.yaml names it"
    )
    revision: str | None = Field(None, min_length=1, description="The dataset's revision")
    metric: str | None = Field(None, min_length=1, description="Which metric; default: each")
    filter: str | None = Field(None, min_length=1, description="Of which filter; default: of each")
    source: WebAddress | None = Field(
        None, description="Address of a page or of traces that the numbers are from"
    )
    private: bool = Field(True, description="Whether the repository has to be private; a new one is made so")
    create_pr: bool = Field(
        False, description="Whether to open a pull request, as for a model of others; no repository is made"
    )
    endpoint: WebAddress | None = Field(
        None, description="Address of the hub; default: the variable HF_ENDPOINT, else the public one"
    )
    token_env: str | None = Field(
        None, min_length=1, description="Environment variable that holds the token; default: HF_TOKEN"
    )

    def check(self, models: Sequence[str]) -> None:
        """Raises ConfigError where the client or the token is not there, or the models don't fit ``repo``."""
        super().check(models)
        named_key(self.token_env, "token_env")
        if isinstance(self.repo, str):
            if len(models) > 1:
                raise ConfigError(
                    f"expected a repository for each of {len(models)} models, repo: {{MODEL: OWNER/NAME}}; "
                    f"got {self.repo!r} for all"
                )
            return
        for model in self.repo:
            if model not in models:
                raise ConfigError(
                    f"repo names no model of this config: {model!r}{nearest(model, models)} "
                    f"(models: {', '.join(models)})"
                )

    def destination(self, run: FinishedRun) -> str:
        """The hub's address, and the repositories."""
        address = self.endpoint or (
            "$HF_ENDPOINT" if "HF_ENDPOINT" in os.environ else "https://huggingface.co"
        )
        repositories = [self.repo] if isinstance(self.repo, str) else self.repo.values()
        return f"{address} {', '.join(repositories)}"

    def key_names(self) -> Sequence[str]:
        """The variable that is named, else the client's own."""
        return [self.token_env] if self.token_env else self.key_variables[:1]

    def secrets(self) -> Iterable[str]:
        """The tokens of the variables, and the one that its client keeps."""
        from huggingface_hub import get_token

        return [*super().secrets(), os.environ.get(self.token_env or "", ""), get_token() or ""]

    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends each model that has a repository and a number; says which commit or pull request has it.

        Raises ConfigError where the repository is public and the config does not say ``private: false``, and
        where a model has no number of ``metric`` and ``filter``.
        """
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=named_key(self.token_env, "token_env"))
        models = run.manifest["models"]
        repositories = (
            self.repo if isinstance(self.repo, Mapping) else dict.fromkeys(list(models)[:1], self.repo)
        )
        places = []
        for model in models:
            if model in repositories and (rows := run.numbers(model)):
                found = [self._entry(run, row) for row in self._chosen(rows, model)]
                with patience(self.timeout):
                    places.append(self._add(api, repositories[model], run, found))
        return places

    def _chosen(self, rows: Sequence[Mapping[str, Any]], model: str) -> Sequence[Mapping[str, Any]]:
        """The numbers that are about the whole benchmark: a leaderboard knows no facets."""
        whole = [row for row in rows if is_overall(row)]
        wanted = {"metric": self.metric, "filter": self.filter}
        chosen = [row for row in whole if all(value in (None, row[name]) for name, value in wanted.items())]
        if not chosen:
            names = sorted({f"{row['metric']}/{row['filter']}" for row in whole}) or ["none"]
            raise ConfigError(
                f"{model!r} has no number of metric {self.metric!r} and filter {self.filter!r}; "
                f"there are: {', '.join(names)}"
            )
        return chosen

    def _entry(self, run: FinishedRun, row: Mapping[str, Any]) -> dict[str, Any]:
        revision = {"revision": self.revision} if self.revision else {}
        source = {"source": {"url": self.source, "name": "Nightjar"}} if self.source else {}
        return {
            "dataset": {"id": self.dataset, "task_id": self.task, **revision},
            "value": row["value"],
            "date": datetime.fromtimestamp(run.manifest["started"], UTC).isoformat(timespec="seconds"),
            **source,
            "notes": _notes(run, row),
        }

    def _add(self, api: Any, repository: str, run: FinishedRun, entries: list[dict[str, Any]]) -> str:
        from huggingface_hub import CommitOperationAdd

        self._prepare(api, repository)
        title = f"Results of {run.manifest['benchmark']} (Nightjar, run {run.run_id})"
        opened = next((one for one in self._opened(api, repository) if one.title == title), None)
        text = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
        commit = api.create_commit(
            repository,
            [CommitOperationAdd(hub_file(str(run.manifest["benchmark"])), text.encode())],
            commit_message=title,
            revision=opened.git_reference if opened is not None else None,
            create_pr=self.create_pr and opened is None,
        )
        if opened is not None:
            return f"{repository} pull request {opened.num}"
        return str(commit.pr_url or commit.commit_url)

    def _prepare(self, api: Any, repository: str) -> None:
        """Makes the repository where there is none; raises ConfigError where it is public unasked."""
        if not self.create_pr and not api.repo_exists(repository):
            api.create_repo(repository, private=self.private, exist_ok=True)
        if self.private and not api.repo_info(repository).private:
            raise ConfigError(
                f"publish: hub: the repository {repository!r} is public; say private: false to send there"
            )

    def _opened(self, api: Any, repository: str) -> Sequence[Any]:
        """Open pull requests: what an earlier time opened is gone on with."""
        if not self.create_pr:
            return ()
        return list(
            api.get_repo_discussions(repository, discussion_type="pull_request", discussion_status="open")
        )


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """A block in which the hub's client waits that long for an answer; by itself it waits without end."""
    from huggingface_hub import get_session

    session: Any = get_session()
    # Before 1.0 the client asks by requests, whose sessions have no time of their own.
    name = "timeout" if hasattr(session, "timeout") else "request"
    before = getattr(session, name)
    setattr(session, name, seconds if name == "timeout" else partial(_in_time, before, seconds))
    try:
        yield
    finally:
        setattr(session, name, before)


def _in_time(request: Callable[..., Any], seconds: float, *args: Any, **given: Any) -> Any:
    return request(*args, **given | {"timeout": given.get("timeout") or seconds})


def _notes(run: FinishedRun, row: Mapping[str, Any]) -> str:
    """What the number is, and how sure: the format has no fields for it."""
    parts = ["/".join(number_name(row))]
    if is_finite(row["stderr"]):
        parts.append(f"stderr {row['stderr']:.4g}")
    if is_finite(row["ci_low"]) and is_finite(row["ci_high"]):
        parts.append(f"interval {row['ci_low']:.4g} to {row['ci_high']:.4g}")
    return ", ".join([*parts, f"{row['n_scored']} samples", f"Nightjar run {run.run_id}"])


def hub_file(benchmark: str) -> str:
    """The file of a benchmark, beside those that others write. A name that had to be changed has a mark."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", benchmark).strip("._")
    mark = "" if name == benchmark else f"_{identifier(benchmark).hex[:8]}"
    return f"{FOLDER}/nightjar_{name or 'results'}{mark}.yaml"
