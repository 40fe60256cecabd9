"""What a federation is made of: capabilities, options and their hooks, and what a resumed run may change."""
