"""User functions and classes that the cases name, as a user would write them."""


def shout(resps, docs, mark=""):
    return [[None if resp is None else resp.upper() + mark for resp in item] for item in resps]


def graded(doc, results):
    return {"graded": float(results[0] == doc["answer"])}


def reward(responses, docs):
    return [len(response) for response in responses]


class LengthScorer:
    def __init__(self, scale=1):
        self.scale = scale

    def score(self, batch):
        return [self.scale * len(prediction) for prediction in batch.predictions]
