"""Behaviour beside lm-evaluation-harness: prompts, scores, the zoo of definitions."""
