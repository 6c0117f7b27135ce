"""Judging: what a loss means, and whether a model learned or learned by heart."""
