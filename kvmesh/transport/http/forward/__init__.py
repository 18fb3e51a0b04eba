"""One exchange forwarded: attempts, the answer, its end."""
