"""Functions of the benchmarks beside this file."""

import math


def shouted(docs):
    return docs.map(lambda doc: {"question": doc["question"].upper(), "size": len(doc["choices"])})


def text(doc):
    return f"{doc['question']} ({doc['size']})\n->"


def short_text(doc):
    return doc["question"][:10]


def choices(doc):
    return [f"<{choice}>" for choice in doc["choices"]]


def target(doc):
    return doc["label"]


def which(doc):
    return doc["label"]


def halves(doc):
    return [f"{doc['before']} {option}" for option in doc["options"]]


def of_choices(doc, results):
    lls = [ll for ll, _ in results]
    right = lls[doc["label"]]
    others = [ll for at, ll in enumerate(lls) if at != doc["label"]]
    return {
        "acc": float(right > max(others)),
        "bpb": (right, len(doc["answer"].encode())),
        "word_perplexity": (right, len(doc["answer"].split())),
        "margin": right - max(others) if doc["label"] else math.nan,
        "greedy": bool(results[doc["label"]][1]),
    }


def share(values):
    return sum(values) / len(values)


def of_ending(doc, results):
    ((ll, greedy),) = results
    return {"bits": (ll, len(doc["next"].encode())), "surprise": -ll * (1 + greedy)}


def of_page(doc, results):
    (ll,) = results
    words, size = len(doc["text"].split()) + 1, len(doc["text"].encode()) + 1
    return {"word_perplexity": (ll, words), "byte_perplexity": (ll, size), "bits_per_byte": (ll, size)}


def overlap(references, predictions):
    return len(set(references[0]) & set(predictions[0])) / (1 + len(predictions[0]))


def of_answer(doc, results):
    return {"letters": sum(letter.isalpha() for letter in results[0]), "longest": len(results[0])}


def largest(values):
    return max(values)
