"""Palmette: programs of language-model calls, and the runtime that executes them."""
