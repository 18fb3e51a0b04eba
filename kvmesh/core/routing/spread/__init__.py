"""How requests spread where cost alone says nothing: among equals, and to idle workers."""
