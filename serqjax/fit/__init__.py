"""Costs from what was measured: tables of layers, per-step tables, and fits to the request times of a real run."""
