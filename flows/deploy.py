"""``nightjar deploy SUITE --cron "30 2 * * *"`` (``python -m flows.deploy``): registers a suite, so that it
runs on a schedule. Edits no file. Registered again, it is replaced.

A worker of the pool ``local`` runs it, from the folder that it was registered from; ``make worker`` starts
one.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from flows.command_line import App, examples
from metrics.errors import ConfigError

POOL = "local"
app = App()


@app.command(
    epilog=examples(
        'python -m flows.deploy suite.yaml --cron "30 2 * * *" --timezone Europe/Berlin',
    )
)
def deploy_command(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="YAML file of the suite")],
    cron: Annotated[str, typer.Option(help="Schedule: minute hour day month weekday, such as '30 2 * * *'")],
    timezone: Annotated[str, typer.Option(help="Time zone of the schedule, such as Europe/Berlin")] = "UTC",
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment; default: the suite's name")
    ] = None,
) -> None:
    """Registers a suite that runs on a schedule."""
    from flows.suite.plan import SuiteOptions, check_suite, load_suite

    loaded = load_suite(suite)
    check_suite(loaded, SuiteOptions())
    schedule, name = schedule_of(cron, timezone), name_of(loaded.name if name is None else name)
    from flows.server import link, serving

    with serving() as ui:
        deployment = register(name, suite.resolve(), schedule)
        print(f"registered suite/{name}: {cron} {timezone}")
        for other in others_of(suite.resolve(), name):
            print(
                f"suite/{other} runs this suite too, on its own schedule; if suite/{name} replaces it, "
                f"delete suite/{other} on its page"
            )
        print(f"Prefect: {link(f'{ui}/deployments/deployment/{deployment}')}")
    print(f"a worker of the pool '{POOL}' runs it: make worker starts one")


def name_of(deployment: str) -> str:
    """The deployment's name; raises ConfigError for one that Prefect does not take."""
    from prefect.types.names import BANNED_CHARACTERS

    if not deployment.strip():
        raise ConfigError("a name without a letter; give the deployment another with --name")
    if banned := [sign for sign in BANNED_CHARACTERS if sign in deployment]:
        signs = " ".join(banned)
        raise ConfigError(f"the name '{deployment}' holds {signs}; give the deployment another with --name")
    return deployment


def schedule_of(cron: str, timezone: str) -> Any:
    """The schedule; raises ConfigError for what is no cron expression or no time zone, and for a day that
    never comes. A sixth field would be seconds."""
    from prefect.schedules import Cron
    from prefect.server.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        if len(cron.split()) != 5 and not cron.startswith("@"):
            raise ValueError(f"{len(cron.split())} fields")
        asyncio.run(CronSchedule(cron=cron, timezone=timezone).get_dates(1))
    except ValueError as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"--cron {cron!r} --timezone {timezone}: {said.removeprefix('Value error, ')}; expected five "
            "fields such as '30 2 * * *', and a zone such as Europe/Berlin"
        ) from error
    return Cron(cron, timezone=timezone, slug="nightjar")


def register(name: str, suite: Path, schedule: Any) -> str:
    """Creates or replaces the deployment ``suite/NAME``, and the pool if it is not there; the deployment's
    id."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.runner.storage import LocalStorage
    from prefect.types.entrypoint import EntrypointType
    from prefect.workers.process import ProcessWorker

    from flows.suite.flow import run_suite

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
    deployment = RunnerDeployment.from_flow(
        run_suite,
        name,
        schedules=[schedule],
        parameters={"suite": str(suite)},
        # One night at a time: one that is still running makes the next wait, and does not lose it.
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
        ),
        tags=["nightly"],
        work_pool_name=POOL,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    here = {"storage": LocalStorage(str(Path.cwd()))}
    applied = deployment.model_copy(update=here).apply()
    assert isinstance(applied, UUID), "apply() waits where no loop runs"
    return str(applied)


def others_of(suite: Path, name: str) -> list[str]:
    """The other deployments that run this suite on a schedule, as those of its former names do."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    with get_client(sync_client=True) as client:
        found = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=["suite"])))
    return [
        entry.name
        for entry in found
        if entry.name != name
        and entry.parameters.get("suite") == str(suite)
        and not entry.paused
        and any(schedule.active for schedule in entry.schedules)
    ]


main = app.main

if __name__ == "__main__":
    main()
