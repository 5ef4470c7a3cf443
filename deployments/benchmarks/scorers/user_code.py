"""A reward function and a scorer class, as a user would write them."""


def brevity(responses, docs, words=60):
    """1 for an empty response, falling to 0 at ``words`` words."""
    return [max(0.0, 1 - len(response.split()) / words) for response in responses]


class StepScorer:
    """Counts worked steps, and says whether there are as many as in the reference solution."""

    def __init__(self, marker):
        self.marker = marker

    def get_metrics(self, filter_name):
        return ["steps", "as_many_steps"]

    def score(self, batch):
        steps = [
            response.count(self.marker) if ok else None for response, ok in zip(batch.responses, batch.scored)
        ]
        due = [references[0].count(self.marker) for references in batch.references]
        return {
            "steps": steps,
            "as_many_steps": [None if n is None else float(n == m) for n, m in zip(steps, due)],
        }
