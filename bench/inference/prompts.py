"""Chat prompts of the size of GSM8K's: word problems that differ in their numbers."""

import orjson
import pyarrow as pa

from tasks.store.schemas import REQUESTS

QUESTION = (
    "A bakery on the market square bakes {a} trays of {b} rolls every morning before the shop opens. On the "
    "way to the market, {c} rolls fall from the cart and are thrown away. The baker sells each roll for $2. "
    "How much money does the bakery earn?"
)


def question(index: int) -> str:
    """The text of problem ``index``."""
    return QUESTION.format(a=10 + index % 97, b=12 + index // 97, c=3 + index % 7)


def messages(index: int) -> list[dict[str, str]]:
    """The problem as a chat."""
    return [{"role": "user", "content": f"Question: {question(index)}\nAnswer:"}]


def requests(count: int, first: int = 0) -> pa.RecordBatch:
    """Problems as rows of the REQUESTS schema."""
    rows = [
        {
            "item_id": str(index),
            "doc_id": index,
            "item_digest": str(index),
            "cluster": None,
            "prompt_template": "plain",
            "kind": "generate",
            "chat": True,
            "prompts": [orjson.dumps(messages(index)).decode()],
            "continuations": [""],
            "unconditional": [],
            "references_json": "[]",
            "gold": [],
            "choices": [],
            "doc_json": "{}",
            "first_sample": 0,
        }
        for index in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=REQUESTS)
