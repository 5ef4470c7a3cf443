"""A reward model: one number for each response."""


def brevity(responses, docs, words):
    """1 for a response of at most ``words`` words, less the longer it is."""
    return [min(1.0, words / max(1, len(response.split()))) for response in responses]
