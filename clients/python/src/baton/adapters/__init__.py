"""Handoffs for agent frameworks. Each module needs its framework and is imported by its full name."""
