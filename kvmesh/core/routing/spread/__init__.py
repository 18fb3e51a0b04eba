"""How requests spread where cost alone says nothing: among equals, and to workers at rest."""
