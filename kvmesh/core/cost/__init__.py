"""What one request costs at one worker: formulas, their compiled forms, arms that compare two."""
