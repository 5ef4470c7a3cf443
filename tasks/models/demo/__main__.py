"""``python -m tasks.models.demo``: the embedded server on its own."""

import argparse
import asyncio
from dataclasses import fields

from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.server import DemoServer, start


def main() -> None:
    """Parses the command line and serves until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tasks.models.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: a free one, which the first line names")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="demo", help="the name it serves")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--error-rate", type=float, default=0.2, help="share of problems worked out wrongly")
    parser.add_argument("--api-key", default=None, help="requests without this key are answered 401")
    parser.add_argument("--context", type=int, default=1 << 16, help="tokens a prompt may have")
    known = ", ".join(field.name for field in fields(Faults))
    parser.add_argument("--faults", default="", help=f"such as error_500=0.05,cut=0.02; known: {known}")
    args = parser.parse_args()
    try:
        faults = Faults.parse(args.faults)
    except ValueError as error:
        parser.error(str(error))
    options = DemoOptions(args.model, args.error_rate, args.latency, args.api_key, args.context, faults)
    try:
        asyncio.run(_serve(DemoServer(options), args.port, args.host))
    except KeyboardInterrupt:
        return


async def _serve(server: DemoServer, port: int, host: str) -> None:
    runner, bound = await start(server, port, host)
    print(f"http://{host}:{bound}/v1", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    main()
