"""Inference beside other clients: throughput, memory, disk."""
