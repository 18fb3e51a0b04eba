"""What a request costs: instructions, processes side by side, and the page of all figures."""
