import random
import re


def upper_topics(dataset):
    def _one(doc):
        digits = re.findall(r"\d+", doc["question"])
        return {"question": doc["question"].strip(), "topic": doc["topic"].upper(), "digits": digits}

    return dataset.map(_one)


def only_even(dataset):
    return dataset.filter(lambda doc: doc["label"] % 2 == 0).select(range(5))


def shuffled_options(dataset):
    def _one(doc):
        options = list(doc["options"])
        gold = options[doc["label"]]
        random.shuffle(options)
        return {"options": options, "label": options.index(gold)}

    return dataset.map(_one)


def question(doc):
    return f"Q: {doc['stem']} ({', '.join(doc['options'])})\nA:"


def letters(doc):
    return ["A", "B", "C", "D"]


def gold(doc):
    return doc["label"]


def blanked(doc):
    index = doc["sentence"].index("_")
    return [doc["sentence"][:index] + doc[f"option{i}"] for i in (1, 2)]


def rest(doc):
    index = doc["sentence"].index("_") + 1
    return doc["sentence"][index:].strip()


def which(doc):
    return {"1": 0, "2": 1}[doc["answer"]]


def samples():
    return [{"q": "Name a bird.", "answers": ["heron"]}, {"q": "Name a fish.", "answers": ["trout", "pike"]}]


def length_scores(doc, results):
    exact = float(results[0].strip() == doc["summary"])
    return {"exact": exact, "ratio": len(results[0]) / len(doc["summary"])}
