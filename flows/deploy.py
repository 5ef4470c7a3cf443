"""``nightjar deploy SUITE --cron "30 2 * * *"`` (``python -m flows.deploy``): registers a suite, so that it
runs on a schedule. Edits no file. Registered again, it is replaced.

A worker of the pool ``local`` runs it, from the folder that it was registered from; ``make worker`` starts
one.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from flows.command_line import command_line, examples, new_app, quiet_prefect
from metrics.errors import ConfigError

POOL = "local"
app = new_app()


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
    schedule = schedule_of(cron, timezone)
    from flows.server import link, serving

    with serving() as ui:
        deployment = register(name or loaded.name, suite.resolve(), schedule)
        print(f"registered suite/{name or loaded.name}: {cron} {timezone}")
        print(f"Prefect: {link(f'{ui}/deployments/deployment/{deployment}')}")
    print(f"a worker of the pool '{POOL}' runs it: make worker starts one")


def schedule_of(cron: str, timezone: str) -> Any:
    """The schedule; raises ConfigError for what is no cron expression or no time zone."""
    from prefect.schedules import Cron
    from prefect.server.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        said = str(error).splitlines()
        reason = next((line.strip() for line in said if "Value error" in line), said[-1])
        raise ConfigError(
            f"--cron {cron!r} --timezone {timezone}: {reason.removeprefix('Value error, ')}; expected five "
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits."""
    quiet_prefect()
    command_line(app, arguments)


if __name__ == "__main__":
    main()
