"""Nouns and errors. Imports numpy at most."""
