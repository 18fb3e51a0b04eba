"""Drives actors on asyncio and carries their effects out."""
