"""How requests end at each member, and what follows: who is left out, what is sent again."""
