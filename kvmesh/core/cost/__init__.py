"""What one request costs at one worker: the formulas, their compiled forms, and the pick."""
