"""Reporting: a run's numbers as curves, tables and one page to look at."""
