"""What memory below the device and other engines' caches are worth."""
