"""What a person sees: plain lines, a live terminal, numbers in words."""
