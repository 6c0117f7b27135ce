"""Lessons: what a transformer's blocks are made of and do, counted, traced and tried.

Plain data, computed from a configuration or by the engine; nothing here prints.
"""
