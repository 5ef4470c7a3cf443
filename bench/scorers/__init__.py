"""Speed and memory of scoring."""
