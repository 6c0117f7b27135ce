"""What `andrea train` does: options to a plan, a new or a resumed run, and following it."""
