"""What autoscalers ask: how full the workers are together, how many it takes, which may leave."""
