"""Every random bit: one access point to the operating system's randomness, and exact laws on the integers."""
