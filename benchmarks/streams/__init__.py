"""What streams that outlive their engine cost, and how many do."""
