"""Measure the health rules on trainings whose fault is known: what is found, where, from which step on, and what is a false alarm.

``python -m benchmarks.health`` runs seeded failures, healthy controls and (with ``--architectures``) the first steps of a hundred
architectures, and prints the table of docs/rules-measured.md.
"""
