import re


def answer_length(references, predictions, scale=1):
    return scale * len(predictions[0]) / len(references[0])


def passed(items):
    return items


def overlap(items):
    pairs = [(set(gold.split()), set(said.split())) for gold, said in items]
    return sum(len(a & b) / max(len(a | b), 1) for a, b in pairs) / len(pairs)


def share_right(items):
    golds, predictions = zip(*items, strict=True)
    return sum(gold == said for gold, said in zip(golds, predictions, strict=True)) / len(golds)


def spread(values):
    return max(values) - min(values)


def any_right(references, predictions):
    return float(any(references[0] in said for said in predictions[0]))


def chosen(doc, results):
    lls = [ll for ll, _ in results]
    best = lls.index(max(lls))
    margin = max(lls) - sorted(lls)[-2]
    return {"right": int(best == doc["label"]), "margin": margin, "pair": (doc["label"], best)}


def of_pair(items):
    return sum(gold == said for gold, said in items) / len(items)


def continued(doc, results):
    ((ll, greedy),) = results
    return {"greedy": int(greedy), "words": (ll, len(doc["text"].split()))}


def whole_page(doc, results):
    (ll,) = results
    return {"per_word": (ll, len(doc["page"].split())), "short": ll > -50}


def repeated(doc, results):
    (texts,) = results
    return {"distinct": len(set(texts)), "first": float(texts[0] == texts[-1])}


def shorten(resps, docs):
    return [[text[:9] + doc["topic"][:0] for text in item] for item, doc in zip(resps, docs, strict=True)]


class LastNumber:
    def __init__(self, sign="", fallback="[invalid]"):
        self.sign, self.fallback = sign, fallback

    def apply(self, resps, docs):
        return [[self.last(text) for text in item] for item in resps]

    def last(self, text):
        found = re.findall(r"\d+", text)
        return self.sign + found[-1] if found else self.fallback
