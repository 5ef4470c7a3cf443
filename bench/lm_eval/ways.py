"""Servers that people run: what they take and give differently."""

WAYS = {
    "add_bos": "puts a beginning before texts, which is counted and listed",
    "drop_first": "leaves the first token out of its lists",
    "no_text_offset": "has no text_offset",
    "running_offsets": "adds up the lengths of the tokens' texts for its text_offset, as vLLM does",
    "no_usage": "counts no tokens",
    "text_only": "takes no token ids: 400",
    "ids_crash": "takes no token ids: 500",
    "nested_ids": "takes token ids only as a list of lists",
    "no_max_tokens_0": "refuses max_tokens 0",
    "ignore_echo": "does not say the prompt back",
    "prompt_logprobs": "knows no echo, and gives vLLM's prompt_logprobs instead",
    "one_by_one": "has one thread, and closes each connection after its answer",
}
