"""Throughput of the inference stage."""
