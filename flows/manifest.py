"""The manifest: what was run, on what, with what, and what it took."""

import platform
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from flows.responses import Responses
from flows.run import Run
from flows.start import git_revision
from metrics.metric import installed_version
from tasks.infer import InferSetup
from tasks.models.identity import model_identity
from tasks.models.options import Tally
from tasks.reporting.exports.files import RunInfo
from tasks.store.keys import digest

LIBRARIES = ("prefect", "numpy", "pyarrow", "openai", "aiohttp", "sacrebleu", "rouge-score")
PROJECT = Path(__file__).resolve().parents[1]


def run_info(run: Run, responses: Responses) -> RunInfo:
    """What the exports say about the run."""
    config, plan = run.plan.config, run.plan
    items = max((cell.stop for cell in responses.cells), default=0)
    return RunInfo(
        run_id=str(run.options.run_id),
        benchmark=config.name,
        models=tuple(plan.models),
        prompts=tuple(plan.prompts),
        date=run.started,
        n_items=items,
        n_used=items,
        config=config.model_dump(mode="json"),
        num_fewshot=config.fewshot.count() if config.fewshot is not None else 0,
        output_type=config.output_type,
        versions=_versions(),
        git_revision=git_revision(str(PROJECT)),
    )


def manifest_of(run: Run, info: RunInfo, over_budget: Mapping[str, str]) -> dict[str, Any]:
    """The manifest as a JSON object. No key is in it: a config holds only the names of keys."""
    plan, config = run.plan, run.plan.config
    inference, judging = _inference(run, "model"), _inference(run, "judge")
    judges = {model.infer.setup.model.name: model.infer.setup for model in plan.asked}
    total = _total([*inference.values(), *judging.values()])
    return {
        "run_id": info.run_id,
        "run_name": run.options.run_name or info.run_id,
        "flow_run_id": str(flow_run.id),
        "benchmark": config.name,
        "started": run.started,
        "wall_seconds": round(time.time() - run.started, 3),
        "steps": run.steps(),
        "requests": {"sent": total.sent, "cached": total.cached, "failed": total.failed + total.model_errors},
        "tokens": {
            "prompt": total.prompt_tokens,
            "completion": total.completion_tokens,
            "cached": total.cached_tokens,
            "reasoning": total.reasoning_tokens,
            "total": total.total_tokens,
        },
        "cost": total.cost,
        "saved": {"tokens": total.saved_tokens, "cost": total.saved_cost, "seconds": total.saved_seconds},
        "models": {
            name: _model(plan.models[name].setup, run.served.get(name), tally)
            for name, tally in inference.items()
        },
        "judges": {
            name: _model(judges[name], run.served.get(name), tally) for name, tally in judging.items()
        },
        "over_budget": dict(over_budget),
        "config": info.config,
        "config_digest": digest(info.config),
        "dataset_digest": plan.load.identity["dataset"],
        "seeds": _seeds(run),
        "artifacts": run.artifacts(),
        "store": run.options.store,
        "output": run.options.output,
        "limit": run.options.limit,
        "command": shlex.split(run.options.command) if run.options.command else None,
        "versions": dict(info.versions),
        "git_revision": info.git_revision,
    }


def _inference(run: Run, role: str) -> dict[str, Tally]:
    """What each model's requests took in this run: of what the cache served, only that it was served."""
    names = run.plan.models if role == "model" else [model.infer.setup.model.name for model in run.plan.asked]
    tallies = {name: Tally() for name in names}
    for model, answered, cached in run.answered(role):
        counts = Tally.from_dict(answered.accounts.tally)
        if cached:
            counts = Tally(
                requests=counts.requests,
                cached=counts.requests,
                model_errors=counts.model_errors,
                served=counts.served,
                fingerprints=counts.fingerprints,
                saved_tokens=counts.total_tokens + counts.saved_tokens,
                saved_cost=counts.cost + counts.saved_cost,
                saved_seconds=counts.seconds + counts.saved_seconds,
            )
        tallies[model] = tallies[model].merged(counts)
    return tallies


def _total(tallies: list[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total = total.merged(tally)
    return total


def _model(setup: InferSetup, served: Any, tally: Tally) -> dict[str, Any]:
    counts = tally.as_dict()
    counts["answered_by"] = counts.pop("served")
    return {
        "identity": model_identity(setup.model, Path(setup.base_dir)),
        "served": served,
        "sampling": setup.sampling.model_dump(mode="json", exclude_none=True),
        **counts,
    }


def _seeds(run: Run) -> dict[str, Any]:
    config = run.plan.config
    return {
        "sampling": {name: step.identity["seed"] for name, step in run.plan.models.items()},
        "fewshot": config.fewshot.seed if config.fewshot is not None else None,
        "statistics": config.statistics.seed,
    }


def _versions() -> dict[str, str]:
    found = {name: installed_version(name) for name in ("nightjar", *LIBRARIES)}
    return found | {"python": platform.python_version()}
