"""Handoffs in the shapes of agent frameworks. Each module needs its framework, and is imported by its own name only."""
