"""Reads mathematics as people and models write it, compares it as text, and has math-verify compare the rest."""
