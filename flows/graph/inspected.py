"""What Inspect's own metrics say of a task of its: beside our numbers, and waited for by none of them."""

from flows.graph.grid import GridResponses
from flows.graph.stage import Graph, Node, stage
from flows.plan.steps import Cell
from tasks.inspected import InspectNumbers, inspect_numbers
from tasks.store.keys import Step


@stage(computes=[inspect_numbers])
def inspected(graph: Graph, grid: GridResponses) -> list[Node]:
    """What Inspect's own metrics make of all samples of a task of Inspect."""
    if graph.plan.config.inspect is None:
        return []
    places: dict[tuple[str, str], list[Cell]] = {}
    for cell in grid.cells:
        places.setdefault((cell.model, cell.prompt), []).append(cell)
    nodes = []
    for (model, prompt), own in places.items():
        answers = [grid.responses[cell] for cell in own]
        if all(graph.failure(answer) is None for answer in answers):
            nodes.append(graph.submit(inspect_numbers, _step(graph, model, prompt), answers))
    return nodes


def _step(graph: Graph, model: str, prompt: str) -> Step[InspectNumbers]:
    infer = graph.plan.models[model].setup
    assert infer.inspect is not None, "the config has a task of Inspect"
    about = {"model_name": model, "prompt_template": prompt}
    setup = InspectNumbers(run=infer.inspect, base_dir=infer.base_dir, run_id=infer.run_id, **about)
    identity = {**infer.inspect.found.identity(infer.inspect.task), **about}
    return Step(name=f"inspect {model}", identity=identity, setup=setup, about=about)
