"""What routing did, and what is learned of it: decisions, predictions, tuned weights, rollouts."""
