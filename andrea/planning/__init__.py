"""Planning: what a run will be and take, before it begins."""
